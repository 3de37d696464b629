//! Why a managed path was not read or written.

use crate::observation::resolve::LINK_OF_OTHERS;
use nix::errno::Errno;
use std::path::{Path, PathBuf};

/// Why a managed path was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Writing it would destroy something, or follow a link of another user.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// What stands in the way.
        reason: String,
    },
    /// Another process put another object under the name between two calls.
    #[error(
        "{}: another process put something in its place a moment ago; find it with `holdfast who`, and run this command again",
        path.display()
    )]
    Replaced {
        /// The path.
        path: PathBuf,
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
    /// The kernel refused to give the path its object, or to take it away.
    #[error("{}: {operation}: {}", path.display(), errno.desc())]
    Name {
        /// The path.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        errno: Errno,
    },
}

impl DiskError {
    pub(crate) fn refused(path: &Path, reason: impl Into<String>) -> Self {
        Self::Refused { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn failed(path: &Path, operation: &'static str, errno: Errno) -> Self {
        Self::Failed { path: path.to_owned(), operation, errno }
    }

    /// A directory could not be opened.
    pub(crate) fn opening(path: &Path, operation: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::ELOOP => Self::refused(path, LINK_OF_OTHERS),
            errno => Self::failed(path, operation, errno),
        }
    }

    /// Whether another process added or removed the name first.
    pub(crate) fn is_race(&self) -> bool {
        matches!(self, Self::Name { errno: Errno::ENOENT | Errno::EEXIST, .. })
    }

    /// Whether the name was gone already.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Name { errno: Errno::ENOENT, .. })
    }

    /// Whether a file can have no other name there: on another file system, or because it has as many as that one allows.
    pub(crate) fn is_no_hard_link(&self) -> bool {
        matches!(self, Self::Failed { errno: Errno::EXDEV | Errno::EMLINK, .. })
    }
}
