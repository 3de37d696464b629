//! A managed path as a handle of its directory and a name in it.
//!
//! In: a path of the root. Out: a handle of its directory. All later calls use the handle, so no process can replace the directory
//! between them.

use super::error::{DiskError, DiskRefusal};
use crate::{
    observation::{
        Observer, Pristine,
        resolve::{Root, others_can_write},
    },
    sys::{self, CallError},
};
use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat},
    sys::stat::{FileStat, Mode, SFlag, fstatat},
};
use std::{
    ffi::{OsStr, OsString},
    ops::ControlFlow,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

pub(super) const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// A name in an open directory.
#[derive(Debug)]
pub(crate) struct Place {
    /// The directory.
    pub(crate) directory: OwnedFd,
    /// The name in it.
    pub(crate) name: OsString,
    /// The whole path, for messages.
    pub(crate) path: PathBuf,
}

impl Place {
    /// The place of a path; `None` when its directory is missing.
    pub(crate) fn find(root: &Root, path: &Path) -> Result<Option<Self>, DiskError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(DiskError::refused(path, DiskRefusal::Root));
        };
        match root.open_at(parent, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            Ok(directory) => Ok(Some(Self { directory, name: name.to_owned(), path: path.to_owned() })),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(errno) => Err(DiskError::opening(parent, "open the directory", errno)),
        }
    }

    /// The place at which the booted image ships a path; `None` for paths outside `/etc`, and when the directory is missing.
    pub(crate) fn shipped(pristine: Pristine<'_>, path: &Path) -> Result<Option<Self>, DiskError> {
        pristine.place(path).map_or(Ok(None), |place| Self::find(pristine.root(), &place))
    }

    /// `stat` of the object with the name, without following a link; `None` if the name is free.
    pub(crate) fn stat(&self) -> Result<Option<FileStat>, DiskError> {
        self.stat_name(&self.name)
    }

    /// `stat` of another name in the directory.
    pub(crate) fn stat_name(&self, name: &OsStr) -> Result<Option<FileStat>, DiskError> {
        match fstatat(&self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("stat")(errno)),
        }
    }

    /// Whether a name in the directory is that of a directory; `None` if the name is free.
    pub(crate) fn is_directory(&self, name: &OsStr) -> Result<Option<bool>, DiskError> {
        Ok(self.stat_name(name)?.map(|stat| kind(&stat) == SFlag::S_IFDIR))
    }

    /// A handle of the object with the name, also of a link.
    pub(crate) fn handle(&self) -> Result<OwnedFd, DiskError> {
        self.handle_of(&self.name).map_err(self.failed("open"))
    }

    pub(super) fn handle_of(&self, name: &OsStr) -> Result<OwnedFd, Errno> {
        openat(&self.directory, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
    }

    /// Opens the object with the name. Its type is read first, so that no device and no FIFO is opened.
    pub(crate) fn open(&self, observer: &Observer) -> Result<OwnedFd, DiskError> {
        observer.open_again(self.handle()?).map_err(self.failed("open"))
    }

    /// Opens the directory with the name. A user may have replaced it by a file of root, which must not get another owner.
    pub(crate) fn open_directory(&self) -> Result<OwnedFd, DiskError> {
        openat(&self.directory, &*self.name, DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty()).map_err(|errno| {
            match errno {
                Errno::ENOTDIR | Errno::ELOOP => self.replaced(),
                errno => self.failed("open the directory")(errno),
            }
        })
    }

    /// Whether the directory with the name is empty.
    pub(crate) fn is_empty_directory(&self) -> Result<bool, DiskError> {
        let mut is_empty = true;
        let listed = sys::each_name(self.open_directory()?, |_| {
            is_empty = false;
            ControlFlow::Break(())
        });
        listed.map_err(self.failed("read the directory"))?;
        Ok(is_empty)
    }

    /// Whether others than root can put another file under a name in the directory.
    pub(crate) fn is_of_others(&self) -> Result<bool, DiskError> {
        others_can_write(&self.directory).map_err(self.failed("stat the directory"))
    }

    /// Makes changes of names durable. Some file systems also need [`sys::sync_all`] before the next record of a journal.
    pub(crate) fn sync_names(&self) -> Result<(), DiskError> {
        sys::sync_directory(&self.directory).map_err(self.failed("sync the directory"))
    }

    /// Makes changes of names durable at once, on every file system.
    pub(crate) fn sync(&self) -> Result<(), DiskError> {
        sys::sync_content(&self.directory).map_err(self.failed("sync the directory"))
    }

    pub(super) fn failed(&self, operation: &'static str) -> impl Fn(Errno) -> DiskError {
        move |errno| CallError::new(&self.path, operation, errno).into()
    }

    pub(super) fn replaced(&self) -> DiskError {
        DiskError::Replaced { path: self.path.clone() }
    }
}

/// The type of an object.
pub(super) fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}
