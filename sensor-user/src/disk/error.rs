//! Why a managed path was not read or written.

use crate::{bounded, observation::resolve::LINK_OF_OTHERS, sys::CallError};
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
        /// The reason.
        reason: DiskRefusal,
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

/// Why a read or a write is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DiskRefusal {
    /// A user who is not root could put a link there.
    #[error("{LINK_OF_OTHERS}")]
    LinkOfOthers,
    /// The path has no name.
    #[error("the root itself cannot be replaced")]
    Root,
    /// The journal was changed, or another version wrote it.
    #[error("an extended attribute in the journal is not hexadecimal")]
    BadAttribute,
    /// The store lost the file's bytes.
    #[error("its content is missing in the store")]
    NoContent,
    /// The file system changes or drops what is written.
    #[error("the file system does not keep mode, owner, attributes or content as written")]
    NotKept,
    /// The file is too large to keep.
    #[error("it has {size} bytes, and {} bytes are the limit; move it away first", bounded::CONTENT)]
    TooLarge {
        /// Its size.
        size: u64,
    },
    /// The object cannot be kept.
    #[error("a device, FIFO or socket is in its place; move it away first")]
    SpecialObject,
    /// Only an empty directory can be replaced.
    #[error("a directory that is not empty is in its place; move it away first")]
    FullDirectory,
}

impl DiskError {
    pub(crate) fn refused(path: &Path, reason: DiskRefusal) -> Self {
        Self::Refused { path: path.to_owned(), reason }
    }

    /// The error for a directory that could not be opened.
    pub(crate) fn opening(path: &Path, operation: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::ELOOP => Self::refused(path, DiskRefusal::LinkOfOthers),
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
