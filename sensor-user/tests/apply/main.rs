//! `holdfast apply` as it is run: on a root of its own, with every kind of thing that a config declares.

#[cfg(feature = "fault-injection")]
mod faults;
mod table;
mod world;
