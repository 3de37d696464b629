//! Where a thing is: a handle of its directory and its name in it.
//!
//! In: a path of the root. Out: a handle through which all that follows is done, so that the directory
//! cannot be swapped meanwhile; missing parents are made with the mode that is declared for them.

use super::RepairError;
use crate::{
    observation::{
        Observer,
        resolve::{LINK_OF_OTHERS, is_just_made, others_can_write},
    },
    sys::durable,
};
use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat, renameat},
    sys::stat::{FileStat, Mode, fchmod, fstat, fstatat, mkdirat},
    unistd::{Gid, Uid, UnlinkatFlags, fchown, fsync, unlinkat},
};
use sensor_model::{compare::Ids, expectation::Owner, merge::Rendered};
use std::{
    ffi::{OsStr, OsString},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Mode of a missing parent that nobody declares.
const PARENT_MODE: u32 = 0o755;

/// Mode of a missing directory of ssh keys: sshd refuses keys that others could have written.
const SSH_MODE: u32 = 0o700;

/// Somebody else was at work at the same time.
pub(super) const TAKEN: &str =
    "another process put something in its place a moment ago; find it with `holdfast who`, and repair again";

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// The host that things are restored on, and what is declared of it.
#[derive(Debug)]
pub(super) struct Host<'a> {
    pub(super) observer: &'a Observer,
    pub(super) rendered: &'a Rendered,
    pub(super) ids: &'a Ids,
}

/// A name in an open directory.
#[derive(Debug)]
pub(super) struct Place {
    /// The directory.
    pub(super) directory: OwnedFd,
    /// The name in it.
    pub(super) name: OsString,
    /// The whole path, for messages.
    pub(super) path: PathBuf,
}

/// Who owns directories of ssh keys that have to be made.
pub(super) type KeyOwner = Option<(Option<u32>, Option<u32>)>;

impl Host<'_> {
    /// The place of a path. Missing parents are made.
    pub(super) fn place(&self, path: &Path, keys: KeyOwner) -> Result<Place, RepairError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(refused(path, "the root itself cannot be replaced"));
        };
        let directory = self.directory(parent, keys)?;
        Ok(Place { directory, name: name.to_owned(), path: path.to_owned() })
    }

    /// The place of a path whose parent is there; `None` when it is not.
    pub(super) fn existing_place(&self, path: &Path) -> Result<Option<Place>, RepairError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
        match self.observer.root().open_at(parent, DIRECTORY) {
            Ok(directory) => Ok(Some(Place { directory, name: name.to_owned(), path: path.to_owned() })),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(Errno::ELOOP) => Err(refused(parent, LINK_OF_OTHERS)),
            Err(errno) => Err(failed(parent, "open the directory", errno)),
        }
    }

    /// Opens a directory, and makes it and its parents where they are missing.
    pub(super) fn directory(&self, path: &Path, keys: KeyOwner) -> Result<OwnedFd, RepairError> {
        match self.observer.root().open_at(path, DIRECTORY) {
            Ok(directory) => return Ok(directory),
            Err(Errno::ENOENT) => {}
            Err(Errno::ENOTDIR) => {
                return Err(refused(path, "it or one of its parents is not a directory; move it away first"));
            }
            Err(Errno::ELOOP) => return Err(refused(path, LINK_OF_OTHERS)),
            Err(errno) => return Err(failed(path, "open the directory", errno)),
        }
        let is_ssh = path.ancestors().any(|ancestor| ancestor.ends_with(".ssh"));
        if keys.is_some() && !is_ssh {
            return Err(refused(path, "the user's home directory is missing"));
        }
        let place = self.place(path, keys)?;
        if place.stat()?.is_some() {
            return Err(refused(path, "it is a link that leads nowhere; remove it first"));
        }
        let (mode, user, group) = self.declared_parent(path, keys)?;
        // Closed to all others until its owner is right.
        match mkdirat(&place.directory, place.name.as_os_str(), Mode::S_IRWXU) {
            Ok(()) => {}
            // Whose it is nobody knows, so it is given to nobody.
            Err(Errno::EEXIST) => return Err(refused(path, TAKEN)),
            Err(errno) => return Err(failed(path, "make the directory", errno)),
        }
        let opened =
            openat(&place.directory, place.name.as_os_str(), DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty())
                .map_err(|errno| failed(path, "open the directory", errno))?;
        if !is_just_made(&opened).map_err(|errno| failed(path, "look at the directory", errno))? {
            return Err(refused(path, TAKEN));
        }
        own(&opened, user, group).map_err(|errno| failed(path, "change the owner", errno))?;
        super::metadata::remove_attributes(&opened, path)?;
        fchmod(&opened, bits(mode)).map_err(|errno| failed(path, "change the mode", errno))?;
        place.sync()?;
        Ok(opened)
    }

    fn declared_parent(
        &self,
        path: &Path,
        keys: KeyOwner,
    ) -> Result<(u32, Option<u32>, Option<u32>), RepairError> {
        if let Some(declared) = path.to_str().and_then(|path| self.rendered.directories.get(path)) {
            let directory = &declared.value;
            let mode = directory.mode.and_then(|mode| u32::try_from(mode).ok());
            let owner = |id: Option<i64>, name: Option<&String>| match (id, name) {
                (Some(id), _) => Owner::Id(u32::try_from(id).unwrap_or(0)),
                (None, Some(name)) if !name.is_empty() => Owner::Name(name.clone()),
                _ => Owner::Id(0),
            };
            let user =
                directory.user.as_ref().map_or(Owner::Id(0), |user| owner(user.id, user.name.as_ref()));
            let group =
                directory.group.as_ref().map_or(Owner::Id(0), |group| owner(group.id, group.name.as_ref()));
            let (user, group) = self.owners(path, &user, &group)?;
            return Ok((mode.unwrap_or(PARENT_MODE) & 0o7777, user, group));
        }
        Ok(match keys {
            Some((user, group)) => (SSH_MODE, user, group),
            None => (PARENT_MODE, Some(0), Some(0)),
        })
    }
}

impl Place {
    /// What is there, without following it.
    pub(super) fn stat(&self) -> Result<Option<FileStat>, RepairError> {
        match fstatat(&self.directory, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("stat")(errno)),
        }
    }

    /// A handle of what is there, also of a link.
    pub(super) fn handle(&self) -> Result<OwnedFd, RepairError> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        openat(&self.directory, self.name.as_os_str(), flags, Mode::empty()).map_err(self.failed("open"))
    }

    /// Opens what is there, through a handle that is looked at before it is opened: no device, no FIFO.
    pub(super) fn open(&self, observer: &Observer) -> Result<OwnedFd, RepairError> {
        observer.open_again(self.handle()?).map_err(self.failed("open"))
    }

    /// Opens a directory. What was seen there may have been replaced since by a file of root's, which nothing is to be set on.
    pub(super) fn open_directory(&self) -> Result<OwnedFd, RepairError> {
        openat(&self.directory, self.name.as_os_str(), DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty()).map_err(
            |errno| match errno {
                Errno::ENOTDIR | Errno::ELOOP => refused(&self.path, TAKEN),
                errno => self.failed("open the directory")(errno),
            },
        )
    }

    /// Whether others than root can put another file in the place of one of this directory.
    pub(super) fn is_of_others(&self) -> Result<bool, RepairError> {
        others_can_write(&self.directory).map_err(self.failed("look at the directory"))
    }

    /// Takes an empty directory out of the way; everything else a rename replaces.
    pub(super) fn clear_way(&self, observer: &Observer) -> Result<(), RepairError> {
        let Some(stat) = self.stat()? else { return Ok(()) };
        let kind = stat.st_mode & nix::libc::S_IFMT;
        if kind == nix::libc::S_IFREG {
            super::metadata::clear_flags(&self.open(observer)?, &self.path)?;
        }
        if kind != nix::libc::S_IFDIR {
            return Ok(());
        }
        match unlinkat(&self.directory, self.name.as_os_str(), UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {
                Err(refused(&self.path, "a directory that is not empty is in its place; move it away first"))
            }
            Err(errno) => Err(self.failed("remove the directory in its place")(errno)),
        }
    }

    /// Removes the name; a directory only when it is empty. `false` when it was gone already.
    pub(super) fn remove(&self, observer: &Observer) -> Result<bool, RepairError> {
        let Some(stat) = self.stat()? else { return Ok(false) };
        if stat.st_mode & nix::libc::S_IFMT == nix::libc::S_IFDIR {
            self.clear_way(observer)?;
            return Ok(true);
        }
        self.clear_way(observer)?;
        match unlinkat(&self.directory, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(self.failed("remove")(errno)),
        }
    }

    /// Puts a temporary name in the place of the name, at once. `made` is what was made under it: whoever owns the directory may
    /// have put another object there since, which must not get the name.
    pub(super) fn rename(&self, made: impl AsFd, mut temporary: Temporary<'_>) -> Result<(), RepairError> {
        let made = fstat(made).map_err(self.failed("stat"))?;
        match fstatat(&self.directory, temporary.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) if (found.st_dev, found.st_ino) == (made.st_dev, made.st_ino) => {}
            Ok(_) | Err(Errno::ENOENT) => return Err(refused(&self.path, TAKEN)),
            Err(errno) => return Err(self.failed("stat")(errno)),
        }
        renameat(&self.directory, temporary.name.as_os_str(), &self.directory, self.name.as_os_str())
            .map_err(self.failed("rename into place"))?;
        // Two names of one inode: the rename does nothing, and the temporary one has to go.
        temporary.renamed =
            fstatat(&self.directory, temporary.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW).is_err();
        drop(temporary);
        self.sync()
    }

    /// Makes what was done to names durable.
    pub(super) fn sync(&self) -> Result<(), RepairError> {
        self.sync_of(&self.directory, "sync the directory")
    }

    /// Makes a file of the directory, or the directory itself, durable.
    pub(super) fn sync_of(&self, of: &OwnedFd, operation: &'static str) -> Result<(), RepairError> {
        let synced = durable::fsync_is_enough(of).and_then(|enough| {
            if enough {
                return fsync(of);
            }
            rustix::fs::syncfs(of).map_err(|errno| Errno::from_raw(errno.raw_os_error()))
        });
        synced.map_err(self.failed(operation))
    }

    /// Calls `make` with a free name in the directory, until the name was free.
    pub(super) fn temporary<T>(
        &self,
        operation: &'static str,
        make: impl Fn(&OsStr) -> Result<T, Errno>,
    ) -> Result<(T, Temporary<'_>), RepairError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            // No ending that anything reads in a drop-in directory.
            let name = OsString::from(format!(".holdfast-{}-{number}.new", std::process::id()));
            match make(&name) {
                Ok(object) => {
                    return Ok((object, Temporary { directory: &self.directory, name, renamed: false }));
                }
                Err(Errno::EEXIST) => {}
                Err(errno) => return Err(self.failed(operation)(errno)),
            }
        }
    }

    pub(super) fn failed(&self, operation: &'static str) -> impl Fn(Errno) -> RepairError {
        let path = self.path.clone();
        move |errno| RepairError::Failed { path: path.clone(), operation, errno }
    }
}

/// A name that goes away again unless it was renamed.
#[derive(Debug)]
pub(super) struct Temporary<'a> {
    directory: &'a OwnedFd,
    pub(super) name: OsString,
    renamed: bool,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            // Nothing can be done about a name that cannot be removed; whoever lists the directory sees it.
            let _ = unlinkat(self.directory, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

pub(super) fn refused(path: &Path, reason: impl Into<String>) -> RepairError {
    RepairError::Refused { path: path.to_owned(), reason: reason.into() }
}

pub(super) fn failed(path: &Path, operation: &'static str, errno: Errno) -> RepairError {
    RepairError::Failed { path: path.to_owned(), operation, errno }
}

/// Permission bits with setuid, setgid and sticky.
pub(super) fn bits(mode: u32) -> Mode {
    Mode::from_bits_truncate(mode & 0o7777)
}

/// Sets owners that are declared and differ. Says whether it did.
pub(super) fn own(file: &OwnedFd, user: Option<u32>, group: Option<u32>) -> Result<bool, Errno> {
    let stat = fstat(file)?;
    let user = user.filter(|user| *user != stat.st_uid);
    let group = group.filter(|group| *group != stat.st_gid);
    if user.is_none() && group.is_none() {
        return Ok(false);
    }
    fchown(file, user.map(Uid::from_raw), group.map(Gid::from_raw))?;
    Ok(true)
}
