//! What the daemon could do on this host, tested without a daemon.
//!
//! In: the kernel, procfs and sysfs. Out: facts about both, each backend with its hooks, and the changes that the daemon would
//! not see when they happen. The programs that a test loads end with it. It pins nothing.

mod backends;
mod error;
mod facts;
mod report;
mod unseen;

pub use crate::agent::reports::BackendName;
pub use backends::{TestedBackend, TestedHook, TestedHookState};
pub use error::DiagnosisError;
pub use facts::{Fact, FactState};
pub use report::{Diagnosis, KeptCapability, diagnose};
pub use unseen::{SWEPT, UnseenChange};
