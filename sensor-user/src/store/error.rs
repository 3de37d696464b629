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
        reason: StoreFault,
    },
    /// The kernel refused an operation.
    #[error(transparent)]
    Failed(#[from] CallError),
    /// The journal was changed.
    #[error("{0}; Holdfast changed neither the journal nor the node")]
    Journal(JournalError),
}

/// A command names no config, and the store cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "without --config, Holdfast uses the config that was applied last, and cannot read which one that is; run this as root, \
     or name a config by --config"
)]
pub struct UnknownApplied(#[source] StoreError);

/// What is wrong with a file of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreFault {
    /// The name of a content is its digest.
    #[error("its content does not match the digest in its name")]
    Digest,
    /// It cannot be read as JSON.
    #[error("it is not as Holdfast wrote it: {0}")]
    Read(serde_json::Error),
    /// It cannot be written as JSON.
    #[error("{0}")]
    Written(serde_json::Error),
    /// The link to the current generation leads elsewhere.
    #[error("it is not a link to generations/NUMBER/config")]
    CurrentLink,
}

impl From<StoreError> for UnknownApplied {
    fn from(error: StoreError) -> Self {
        Self(error)
    }
}

impl StoreError {
    pub(super) fn invalid(path: &Path, reason: StoreFault) -> Self {
        Self::Invalid { path: path.to_owned(), reason }
    }

    /// Whether the process may not read the store.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self, Self::Failed(error) if error.errno() == Some(Errno::EACCES))
    }
}
