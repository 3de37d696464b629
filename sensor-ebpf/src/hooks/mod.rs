//! The bodies of the hooks, one file for each family. A body takes the hook's arguments. It gives 0, or a negative error if a deny
//! rule refuses the operation. Only LSM programs can enforce a refusal.
//!
//! A body finds the inode's entry by `managed::lookup` and calls `managed::record_attempt`. That asks `deny`, counts the attempt, and
//! sends a record by `ring::push`.

pub(crate) mod attributes;
pub(crate) mod content;
pub(crate) mod devices;
pub(crate) mod mounts;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod process;
pub(crate) mod tunables;
