//! What was opened for a look, and so was seen by the kernel programs.
//!
//! In: a path of a directory below the host root. Out: a handle of it, and the object that was opened.

use super::object::{Refused, device, stat_handle, without_access_time};
use super::resolve::{HANDLE, Root};
use nix::{errno::Errno, fcntl::OFlag};
use rustix::fs::StatxFlags;
use sensor_model::observation::FileType;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

/// What is not done below a directory that others than root can write.
const FOLLOW: &str = "follow a link that others than root can change, on the way to";

/// Why an object was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpenedKind {
    /// A directory in which the thing's name was looked up.
    Parent,
    /// The thing itself.
    Object,
}

/// A directory or file that was opened with the observation flags, or a symbolic link that was read, and so
/// was seen by the kernel programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedObject {
    /// Why.
    pub kind: OpenedKind,
    /// By which path, below the host root; links in it were followed.
    pub path: PathBuf,
    /// Regular file, directory or symbolic link.
    pub file_type: FileType,
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// Opens a directory of the root for reading, with the observation flags. Where it may be passed
/// through but not read, a handle for look-ups must do, and nothing was opened.
pub(super) fn open_directory(
    root: &Root,
    path: &Path,
    on_open: &mut dyn FnMut(&OpenedObject),
) -> Result<OwnedFd, Refused> {
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
        Err(Errno::EACCES) => {
            root.open_at(path, HANDLE | OFlag::O_DIRECTORY).map_err(Refused::at("open the directory of"))
        }
        Err(errno @ Errno::ELOOP) => Err(Refused { operation: FOLLOW, errno }),
        Err(errno) => Err(Refused { operation: "open the directory of", errno }),
    }
}
