//! The kernel programs: what this kernel offers, loading and attaching, and typed access to their maps.
//!
//! In: the object and the running kernel's BTF. Out: ring records as bytes, map entries as values. It never interprets a change.
//! `agent::receive` drains the rings ([`maps::Rings::drain`]) and gives the bytes of each record to `event::decode`.

pub(crate) mod attached;
pub mod btrfs;
pub(crate) mod groups;
pub mod hooks;
pub mod layout;
pub mod load;
pub mod maps;
pub mod object;
mod own_process;
mod pins;
pub mod recursion;
pub mod size;
