//! Why a managed path was not read or written.

use crate::{observation::resolve::LINK_OF_OTHERS, sys::CallError};
use nix::errno::Errno;
use std::path::{Path, PathBuf};

/// Why a managed path was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A write would destroy something, or follow a link of another user.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// What stands in the way.
        reason: String,
    },
    /// Another process put another object under the name between two calls.
    #[error(
        "{}: another process replaced it a moment ago; find it with `holdfast who`, and run this command again",
        path.display()
    )]
    Replaced {
        /// The path.
        path: PathBuf,
    },
    /// The kernel refused an operation.
    #[error(transparent)]
    Failed(#[from] CallError),
    /// The kernel refused to add, exchange or remove the name.
    #[error(transparent)]
    Name(CallError),
}

impl DiskError {
    pub(crate) fn refused(path: &Path, reason: impl Into<String>) -> Self {
        Self::Refused { path: path.to_owned(), reason: reason.into() }
    }

    /// The error for a directory that could not be opened.
    pub(crate) fn opening(path: &Path, operation: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::ELOOP => Self::refused(path, LINK_OF_OTHERS),
            errno => CallError::new(path, operation, errno).into(),
        }
    }

    /// Whether another process added or removed the name first.
    pub(crate) fn is_race(&self) -> bool {
        matches!(self, Self::Name(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EEXIST)))
    }

    /// Whether another process removed the name first.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Name(error) if error.errno() == Some(Errno::ENOENT))
    }

    /// Whether a file cannot have another name there: on another file system, or because the file has as many names as the file
    /// system allows.
    pub(crate) fn is_no_hard_link(&self) -> bool {
        matches!(self, Self::Failed(error) if matches!(error.errno(), Some(Errno::EXDEV | Errno::EMLINK)))
    }
}
