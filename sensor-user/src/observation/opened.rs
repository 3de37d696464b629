//! The objects that an observation opens, and so shows to the kernel programs.
//!
//! In: the path of a directory below the host root. Out: a handle of the directory, and the object that was opened.

use super::object::{FailedOperation, device, stat_handle, without_access_time};
use super::resolve::{HANDLE, Root};
use nix::{errno::Errno, fcntl::OFlag};
use rustix::fs::StatxFlags;
use sensor_model::observation::FileType;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

/// The operation that an error names if a link is in a directory that others than root can write.
const FOLLOW: &str = "follow a link that others than root can change, on the way to";

/// Why an object was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpenedKind {
    /// A directory in which the thing's name was looked up.
    Parent,
    /// The thing itself.
    Object,
}

/// A directory or file that was opened with the observation flags, or a symbolic link that was read. The kernel programs have seen
/// that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedObject {
    /// Why.
    pub kind: OpenedKind,
    /// Its path below the host root, which may lead through links.
    pub path: PathBuf,
    /// Regular file, directory or symbolic link.
    pub file_type: FileType,
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// Opens a directory of the root for reading, with the observation flags. If this process may search but not read the directory, it
/// gives a handle for look-ups and opens nothing.
pub(super) fn open_directory(
    root: &Root,
    path: &Path,
    on_open: &mut dyn FnMut(&OpenedObject),
) -> Result<OwnedFd, FailedOperation> {
    let opened = without_access_time(|flags| root.open_at(path, flags | OFlag::O_DIRECTORY));
    match opened {
        Ok(directory) => {
            let stat = stat_handle(directory.as_fd(), StatxFlags::INO)?;
            on_open(&OpenedObject {
                kind: OpenedKind::Parent,
                path: path.to_owned(),
                file_type: FileType::Directory,
                device: device(&stat),
                inode: stat.stx_ino,
            });
            Ok(directory)
        }
        Err(Errno::EACCES) => root
            .open_at(path, HANDLE | OFlag::O_DIRECTORY)
            .map_err(FailedOperation::at("open the directory of")),
        Err(errno @ Errno::ELOOP) => Err(FailedOperation { operation: FOLLOW, errno }),
        Err(errno) => Err(FailedOperation { operation: "open the directory of", errno }),
    }
}
