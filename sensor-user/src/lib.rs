//! Holdfast's daemon and command line, as a library of pipeline stages.
