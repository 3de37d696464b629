//! Why the store could not read or write.

use crate::sys::CallError;
use nix::errno::Errno;
use sensor_model::journal::codec::JournalError;
use std::path::{Path, PathBuf};

/// Why the store could not read or write.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file of the store is not as Holdfast wrote it.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel refused an operation.
    #[error(transparent)]
    Failed(#[from] CallError),
    /// The journal was changed.
    #[error("{0}; Holdfast changed neither the journal nor the node")]
    Journal(JournalError),
}

impl StoreError {
    pub(super) fn invalid(path: &Path, reason: impl Into<String>) -> Self {
        Self::Invalid { path: path.to_owned(), reason: reason.into() }
    }

    /// Whether the process may not read the store.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self, Self::Failed(error) if error.errno() == Some(Errno::EACCES))
    }
}
