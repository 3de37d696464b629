//! Why an object was not moved to the quarantine, or not back.

use super::limits::{MOST_DEEP, MOST_ITEMS, MOVE_BYTES, MOVE_OBJECTS, WHOLE_BYTES};
use crate::sys::CallError;
use nix::errno::Errno;
use std::{
    io,
    path::{Path, PathBuf},
};

/// Why an object was not moved.
#[derive(Debug, thiserror::Error)]
pub enum QuarantineError {
    /// The object, or the quarantine, is not as it has to be.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The path of the object, or of a file of the quarantine.
        path: PathBuf,
        /// The reason.
        reason: QuarantineRefusal,
    },
    /// The kernel refused an operation.
    #[error(transparent)]
    Failed(#[from] CallError),
    /// The directory of the object cannot be opened.
    #[error(transparent)]
    Disk(#[from] crate::disk::DiskError),
}

/// The reason of a refusal.
#[derive(Debug, thiserror::Error)]
pub enum QuarantineRefusal {
    /// Another process moves something.
    #[error("another process of Holdfast uses the quarantine; try again when it has ended")]
    Locked,
    /// A file system is mounted in the closed directory.
    #[error("a file system is mounted there; unmount it first")]
    Mount,
    /// Holdfast itself needs the object.
    #[error("it holds Holdfast's own files; declare it, or except it in the rule")]
    OwnFiles,
    /// The object is too large for one move.
    #[error("it has more than {MOVE_BYTES} bytes, which are the limit of one move; move it away by hand")]
    TooLarge,
    /// It has too many objects for one move.
    #[error("it has more than {MOVE_OBJECTS} objects, which are the limit of one move; move it away by hand")]
    TooMany,
    /// Its directories are nested too deeply.
    #[error("its directories are nested more than {MOST_DEEP} deep; move it away by hand")]
    TooDeep,
    /// The quarantine is full.
    #[error(
        "the quarantine is full: {MOST_ITEMS} items and {WHOLE_BYTES} bytes are the limit; look at it with `holdfast quarantine \
         list`, and remove items"
    )]
    Full,
    /// Another process writes it all the time.
    #[error("another process keeps writing it while it is copied; find the process with `holdfast who`")]
    KeepsChanging,
    /// The name is gone, or has another object.
    #[error("another process put another object there")]
    Replaced,
    /// The kernel lets this process make no device node.
    #[error(
        "it is or holds a device node, the quarantine is on another file system, and the kernel lets this process make no device node \
         there: it lacks CAP_MKNOD, or a device rule of its control group or the file system forbids it. Nothing was moved; move it away \
         by hand, or run `holdfast repair` for the directory as root of the host"
    )]
    DeviceNode,
    /// The file system of the directory cannot move it.
    #[error("its file system cannot rename it within its directory; move it away by hand")]
    NotRenamed,
    /// It can be moved neither on nor back.
    #[error(
        "the object is in {} beside its path, and cannot be copied: {}; Holdfast tries again at the next move",
        private.display(), source
    )]
    Kept {
        /// The temporary directory beside the path.
        private: PathBuf,
        /// Why the copy failed.
        source: Box<QuarantineError>,
    },
    /// There is no item with this id.
    #[error("the quarantine has no item with this id; `holdfast quarantine list` shows the ids")]
    NoItem,
    /// The manifest cannot be used.
    #[error("the manifest cannot be read: {0}")]
    Manifest(io::Error),
    /// Something is at the path of an item.
    #[error("something is there; move it away first")]
    Occupied,
    /// The directory of an item's path is missing.
    #[error("its directory is missing; make it first")]
    NoDirectory,
    /// The directory in which an interrupted move has its original is missing.
    #[error(
        "its directory is missing, so the interrupted move to {} cannot be completed: mount the file system of the directory; if the directory \
         does not exist any more, remove the item's directory by hand",
        item.display()
    )]
    Interrupted {
        /// The directory of the item that is not complete.
        item: PathBuf,
    },
}

impl QuarantineError {
    pub(super) fn refused(path: &Path, reason: QuarantineRefusal) -> Self {
        Self::Refused { path: path.to_owned(), reason }
    }

    /// The kernel's number of the error.
    pub(super) fn errno(&self) -> Option<Errno> {
        match self {
            Self::Failed(error) => error.errno(),
            Self::Refused { .. } | Self::Disk(_) => None,
        }
    }

    /// Whether the command names something that does not exist.
    pub fn is_input(&self) -> bool {
        matches!(self, Self::Refused { reason: QuarantineRefusal::NoItem, .. })
    }
}

/// The error of an operation on a path.
pub(super) fn failed(path: &Path, operation: &'static str) -> impl Fn(Errno) -> QuarantineError {
    move |errno| CallError::new(path, operation, errno).into()
}
