//! Part of Holdfast.
