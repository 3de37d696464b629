//! An apply in progress.
//!
//! In: the requests of the journal's machine. Out: observations, steps, acts and records, and the end of the apply.

mod drive;
mod durable;
mod hard_links;
mod prepare;
mod progress;
mod state;
mod steps;
mod type_changes;

pub use state::ResumeLimit;
pub(super) use state::{DaemonNotice, Progress, Run, RunNotes};
pub(super) use type_changes::changing;
