//! An apply in progress: the journal's machine, and what it asks for.

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
