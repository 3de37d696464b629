//! The inspection of a host without a daemon: what differs, what is known of a path (by its config and by the OS image), what the present state would declare,
//! and whose requests to the API server match a change.
//!
//! In: a host and its declared state, or changes and an audit log. Out: the answers of `check`, `explain`, `adopt` and `who`. It
//! changes nothing.

mod adopt;
mod audit_log;
#[cfg(test)]
mod audit_log_tests;
mod check;
mod declared_host;
mod explain;
mod image;
mod pristine;

pub use adopt::{AdoptedPaths, AdoptionError, ManifestChoice, ObjectNameError, adopt, check_name};
pub use audit_log::{AuditLogError, AuditLogs, AuditNotes};
pub use check::{CheckReport, DifferingThing, check};
pub use declared_host::{DeclaredHost, DeclaredHostError, ThingsToRestoreError};
pub use explain::{
    ExplainError, ExplainReport, ExplainedThing, Explanation, PathPolicy, explain, explain_undeclared,
};
pub use image::{BlamedLayer, ExplainedEntry, ExplainedImage, ImageState};
pub use pristine::ExplainedPristine;
