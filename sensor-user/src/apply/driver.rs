//! The driver of one apply: it carries out the requests of the journal's machine.
//!
//! In: the requests of the machine. Out: observations, edits, acts and records, and the end of the apply.

mod daemon_notice;
mod drive;
mod durable;
mod edits;
mod hard_links;
mod prepare;
mod replaced_directories;
mod request_texts;
mod state;

pub(super) use daemon_notice::DaemonNotice;
pub(super) use replaced_directories::changing;
pub use state::ResumeLimit;
pub(super) use state::{ApplyNotes, Driver};
