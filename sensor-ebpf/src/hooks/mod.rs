//! One file for each family of hooks. Each body takes the hook's arguments and returns 0, or a
//! negative error where a policy denies the change (which only an LSM program can enforce).

pub(crate) mod attributes;
pub(crate) mod content;
pub(crate) mod devices;
pub(crate) mod mounts;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod process;
pub(crate) mod tunables;
