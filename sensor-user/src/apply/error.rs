//! Why a config was not applied.

use crate::{disk::DiskError, store::StoreError};
use nix::errno::Errno;
use sensor_model::expectations::ExpectationError;
use std::{
    io,
    path::{Path, PathBuf},
};

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
    /// A managed path could not be read or written.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The store could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
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
    pub(super) fn refused(path: &Path, reason: impl Into<String>) -> Self {
        Self::Refused { path: path.to_owned(), reason: reason.into() }
    }

    pub(super) fn failed(path: &Path, operation: &'static str, errno: Errno) -> Self {
        Self::Failed { path: path.to_owned(), operation, errno }
    }

    /// From an error of the standard library, which may have no number of the kernel's.
    pub(super) fn io(path: &Path, operation: &'static str, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::failed(path, operation, Errno::from_raw(errno)),
            None => Self::refused(path, format!("{operation}: {error}")),
        }
    }
}
