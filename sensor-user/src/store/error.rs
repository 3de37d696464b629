//! Why the store could not read or write.

use nix::errno::Errno;
use sensor_model::journal::codec::JournalError;
use std::{
    io,
    path::{Path, PathBuf},
};

/// Why the store could not read or write.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file of the store is not what Holdfast wrote.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel refused an operation.
    #[error("{}: {operation}: {}", path.display(), errno.desc())]
    Failed {
        /// The file.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        errno: Errno,
    },
    /// The journal was changed.
    #[error("{0}; it was left as it is, and so was the node")]
    Journal(JournalError),
}

impl StoreError {
    pub(super) fn invalid(path: &Path, reason: impl Into<String>) -> Self {
        Self::Invalid { path: path.to_owned(), reason: reason.into() }
    }

    pub(super) fn failed(path: &Path, operation: &'static str, errno: Errno) -> Self {
        Self::Failed { path: path.to_owned(), operation, errno }
    }

    /// From an error of the standard library, which may have no number of the kernel's.
    pub(crate) fn io(path: &Path, operation: &'static str, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::failed(path, operation, Errno::from_raw(errno)),
            None => Self::invalid(path, format!("{operation}: {error}")),
        }
    }

    /// Whether the process has no right to read the store.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self, Self::Failed { errno: Errno::EACCES, .. })
    }
}
