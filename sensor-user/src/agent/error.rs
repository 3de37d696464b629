//! Why the daemon ends early.
//!
//! In: the errors of other rooms. Out: one error with a text for people. No state.

use super::backend::NoBackend;
use super::lock::LockError;
use super::privileges::PrivilegesError;
use super::reports::ReportError;
use crate::attribution::ProcfsError;
use crate::desired::DesiredError;
use crate::fanotify::FanotifyError;
use crate::kernel::load::LoadError;
use crate::kernel::maps::MapsError;
use crate::kernel::size::Outgrown;
use crate::observation::RootError;
use std::io;
use std::path::PathBuf;

/// The daemon cannot start or cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Another daemon runs, or the lock that excludes one cannot be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Neither kernel programs nor fanotify work.
    #[error(transparent)]
    Backend(#[from] NoBackend),
    /// The daemon keeps more capabilities than it needs.
    #[error(transparent)]
    Privileges(#[from] PrivilegesError),
    /// The maps of the kernel programs cannot be read or written.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// Reports cannot be stored or shown.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// A config or policy cannot be used.
    #[error(transparent)]
    Desired(#[from] DesiredError),
    /// The programs of an earlier daemon cannot be used.
    #[error("cannot use the pinned kernel programs: {0}")]
    Programs(#[source] Box<LoadError>),
    /// The programs stopped answering.
    #[error(
        "the kernel programs ({backend}) no longer answer, as the canary shows: the daemon ends, and its next start uses the first \
         backend that answers"
    )]
    ProgramsStopped {
        /// Their backend.
        backend: &'static str,
    },
    /// The maps are too small for the declared things.
    #[error(transparent)]
    Outgrown(#[from] Outgrown),
    /// More things than their numbers have room for.
    #[error("more than {} managed things", u32::MAX)]
    TooMany,
    /// The daemon cannot create one of its directories.
    #[error("cannot make directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The host's root cannot be opened.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The host's procfs cannot be opened.
    #[error(transparent)]
    Procfs(#[from] ProcfsError),
    /// The fanotify backend cannot continue.
    #[error(transparent)]
    Fanotify(#[from] FanotifyError),
    /// The kernel refused an operation.
    #[error("cannot {operation}: {source}")]
    Io {
        /// Which operation.
        operation: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl AgentError {
    /// An operation failed.
    pub(super) fn io(operation: &'static str, source: io::Error) -> Self {
        Self::Io { operation, source }
    }
}
