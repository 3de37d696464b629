//! One file for each family of hooks. Each body takes the hook's arguments. It gives 0, or a negative error if a deny rule
//! refuses the operation, which only an LSM program can enforce.

pub(crate) mod attributes;
pub(crate) mod content;
pub(crate) mod devices;
pub(crate) mod mounts;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod process;
pub(crate) mod tunables;
