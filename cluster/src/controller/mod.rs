//! The controller: which nodes have taken which drift policy.
//!
//! In: `DriftPolicies`, and the policies in the `DriftReports` of all nodes. Out: the status of each `DriftPolicy`. Reporters cannot
//! write it: each of them may write only its own report. It is written only when it changes, at most every two seconds.

mod status;
mod task;
#[cfg(test)]
mod tests;

pub use task::{ControllerError, ControllerOptions, run};
