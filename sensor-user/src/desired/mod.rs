//! What should be: MachineConfigs and drift policies, read from files.
//!
//! In: paths. Out: expectations, the ids they name, and the policy. Every error names file, field and
//! reason, and nothing is used of a set in which one file is bad.

pub mod apart;
pub(crate) mod generation;
pub mod last_valid;
mod load;
pub mod manifests;

pub use load::*;
