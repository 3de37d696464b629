//! The inspection of a host without a daemon: what differs, what is known of a path, what the present state would declare.
//!
//! In: a host and its declared state. Out: the answers of `check`, `explain` and `adopt`. It changes nothing.

mod adopt;
mod check;
mod declared_host;
mod explain;

pub use adopt::{AdoptedPaths, AdoptionError, ManifestChoice, ObjectNameError, adopt, check_name};
pub use check::{CheckReport, DifferingThing, check};
pub use declared_host::{DeclaredHost, DeclaredHostError};
pub use explain::{ExplainReport, ExplainedThing, Explanation, PathPolicy, explain};
