//! Bringing the host from one config to another, crash-safely.
//!
//! In: two rendered configs, a plan, the host. Out: the new config on the host, verified, or the old one. What is to be
//! done is written to a journal before anything is done ([`sensor_model::journal`]); whoever starts next finishes or
//! gives back what a dead process left. Nothing outside the declared set of acts is ever run, and no content is in
//! an error or a log.

mod actions;
mod acts;
mod engine;
mod forced;
mod image;
mod interrupts;
mod labels;
mod links;
mod listing;
mod names;
mod originals;
pub mod os;
mod password;
mod preflight;
mod run;
mod taken_back;
mod targets;
pub(crate) mod tie;
mod turns;
mod verify;
mod waiting;

pub use crate::desired::STATE;
pub use crate::store::{Entry, Store, TakenBack, note};
pub use actions::{Acted, Actor, NoActs, Rested, Systemd, Undone};
pub use engine::{Applied, Back, Engine, Options, Recovered, Request};
pub use forced::removed_by_force;
pub use interrupts::Interrupts;
pub use os::is_there as os_is_there;
pub use run::Reach;
pub use taken_back::foreseen;
pub use verify::Differences;
pub use waiting::{waits, waits_or_none};

use nix::errno::Errno;
use sensor_model::{expectations::ExpectationError, journal::codec::JournalError};
use std::{
    io,
    path::{Path, PathBuf},
};

/// The Machine Config Operator's wish that everything be written again.
pub const FORCE_FILE: &str = "/run/machine-config-daemon-force";

/// Why a config was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Doing it would destroy or guess something, or it cannot be done.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// What stands in the way.
        reason: String,
    },
    /// The kernel refused an operation.
    #[error("{}: {operation}: {}", path.display(), errno.desc())]
    Failed {
        /// The path.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        errno: Errno,
    },
    /// A journal that cannot be relied on.
    #[error("{0}; it was left as it is, and so was the node")]
    Journal(JournalError),
    /// A config whose contents cannot be decoded.
    #[error("{0}")]
    Expectation(ExpectationError),
    /// The config cannot be reconciled with a running node.
    #[error("the config is not reconcilable: {}", .0.join("; "))]
    Unreconcilable(Vec<String>),
    /// The node is not as its current config says, or something else forbids to begin.
    #[error("preflight: {}", .0.join("; "))]
    Preflight(Vec<String>),
    /// Another one is at work.
    #[error("another apply is at work; its lock is {}", .0.display())]
    Locked(PathBuf),
    /// Another apply was faster.
    #[error("another config became current meanwhile ({0}); apply again, from that one")]
    Overtaken(String),
    /// An earlier apply could not be finished or given back.
    #[error("an earlier apply is not over: {0}")]
    Unfinished(String),
}

impl ApplyError {
    pub(crate) fn refused(path: &Path, reason: impl Into<String>) -> Self {
        Self::Refused { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn failed(path: &Path, operation: &'static str, errno: Errno) -> Self {
        Self::Failed { path: path.to_owned(), operation, errno }
    }

    /// A directory could not be opened.
    fn opening(path: &Path, operation: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::ELOOP => Self::refused(path, crate::observation::resolve::LINK_OF_OTHERS),
            errno => Self::failed(path, operation, errno),
        }
    }

    pub(crate) fn store(path: &Path, operation: &'static str, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::failed(path, operation, Errno::from_raw(errno)),
            None => Self::refused(path, format!("{operation}: {error}")),
        }
    }
}
