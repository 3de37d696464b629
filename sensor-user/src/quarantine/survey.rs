//! What an object is, with everything below it.
//!
//! In: a directory and a name in it. Out: one entry for each object: type, mode, owner, size, digest, identity. It follows no link,
//! crosses no mount, opens no device and no FIFO, and stops at limits, because an attacker made the objects.

use super::{
    error::{QuarantineError, QuarantineRefusal, failed},
    limits::{MOST_DEEP, MOVE_BYTES, MOVE_OBJECTS},
};
use crate::{
    observation::resolve::{link_target, reopen_directory},
    sys,
};
use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::{FileStat, Mode, SFlag, fstat},
};
use sensor_model::observation::FileType;
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    ops::ControlFlow,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

/// One object.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) sha256: Option<[u8; 32]>,
    pub(super) target: Option<OsString>,
    stat: FileStat,
}

/// An object and everything below it, by relative path. The object itself has the empty path.
#[derive(Debug, Clone, Default)]
pub(super) struct Survey {
    pub(super) entries: BTreeMap<PathBuf, Entry>,
    /// Bytes of all files.
    pub(super) bytes: u64,
}

/// Whether a survey reads the contents of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    Skip,
    Read,
}

impl Entry {
    pub(super) fn kind(&self) -> SFlag {
        kind(&self.stat)
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind() == SFlag::S_IFDIR
    }

    pub(super) fn identity(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    pub(super) fn file_type(&self) -> FileType {
        match self.kind() {
            SFlag::S_IFDIR => FileType::Directory,
            SFlag::S_IFLNK => FileType::Symlink,
            SFlag::S_IFCHR => FileType::CharacterDevice,
            SFlag::S_IFBLK => FileType::BlockDevice,
            SFlag::S_IFIFO => FileType::Fifo,
            SFlag::S_IFSOCK => FileType::Socket,
            _ => FileType::Regular,
        }
    }

    /// The number of names; 1 for a directory, which has one.
    #[expect(clippy::useless_conversion, reason = "the type differs between architectures")]
    pub(super) fn links(&self) -> u64 {
        if self.is_directory() { 1 } else { u64::from(self.stat.st_nlink) }
    }

    /// Major and minor number of a device.
    pub(super) fn device(&self) -> Option<[u32; 2]> {
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let device = self.raw_device()?;
        Some([number(nix::sys::stat::major(device)), number(nix::sys::stat::minor(device))])
    }

    fn raw_device(&self) -> Option<u64> {
        matches!(self.kind(), SFlag::S_IFCHR | SFlag::S_IFBLK).then_some(self.stat.st_rdev)
    }

    /// Whether this is the object of a `stat` from now. The removal of names changes the times of a directory, and of a file with
    /// more names.
    pub(super) fn is_now(&self, stat: &FileStat) -> bool {
        if self.identity() != (stat.st_dev, stat.st_ino) || self.kind() != kind(stat) {
            return false;
        }
        let content = |stat: &FileStat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        let change = |stat: &FileStat| (stat.st_ctime, stat.st_ctime_nsec);
        self.is_directory()
            || (content(&self.stat) == content(stat)
                && (self.links() > 1 || change(&self.stat) == change(stat)))
    }

    /// Whether another object is a faithful copy.
    fn is_like(&self, other: &Self) -> bool {
        let facts =
            |entry: &Self| (entry.stat.st_mode, entry.uid, entry.gid, entry.sha256, entry.raw_device());
        facts(self) == facts(other) && self.target == other.target
    }

    /// Whether this is the same object, and nothing changed since.
    fn is_unchanged(&self, other: &Self) -> bool {
        let times = |entry: &Self| {
            let stat = &entry.stat;
            (stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec, stat.st_size)
        };
        self.identity() == other.identity() && times(self) == times(other) && self.is_like(other)
    }
}

impl Survey {
    /// Surveys an object. `path` is for messages.
    pub(super) fn of(
        directory: &OwnedFd,
        name: &OsStr,
        contents: Contents,
        path: &Path,
    ) -> Result<Self, QuarantineError> {
        let mut survey = Self::default();
        let mut walk = Walk { survey: &mut survey, contents, path };
        walk.visit(directory, name, Path::new(""), 0)?;
        Ok(survey)
    }

    /// The object itself.
    pub(super) fn top(&self) -> Option<&Entry> {
        self.entries.get(Path::new(""))
    }

    /// Whether all of another survey is a part of this one. The objects of a copy, or those that are left of an original.
    pub(super) fn covers(&self, part: &Self) -> bool {
        part.entries.iter().all(|(path, entry)| self.entries.get(path).is_some_and(|own| own.is_like(entry)))
    }

    /// Whether another survey is of a faithful copy.
    pub(super) fn is_like(&self, copy: &Self) -> bool {
        self.entries.len() == copy.entries.len() && self.covers(copy)
    }

    /// Whether a later survey of the same object found no change.
    pub(super) fn is_unchanged(&self, later: &Self) -> bool {
        self.entries.len() == later.entries.len()
            && self
                .entries
                .iter()
                .all(|(path, entry)| later.entries.get(path).is_some_and(|later| entry.is_unchanged(later)))
    }
}

struct Walk<'a> {
    survey: &'a mut Survey,
    contents: Contents,
    path: &'a Path,
}

impl Walk<'_> {
    fn refused(&self, reason: QuarantineRefusal) -> QuarantineError {
        QuarantineError::refused(self.path, reason)
    }

    fn visit(
        &mut self,
        directory: &OwnedFd,
        name: &OsStr,
        relative: &Path,
        depth: usize,
    ) -> Result<(), QuarantineError> {
        if depth > MOST_DEEP {
            return Err(self.refused(QuarantineRefusal::TooDeep));
        }
        if self.survey.entries.len() >= MOVE_OBJECTS {
            return Err(self.refused(QuarantineRefusal::TooMany));
        }
        let handle = self.handle(directory, name)?;
        let path = self.path;
        let failed = |operation| failed(path, operation);
        let stat = fstat(&handle).map_err(failed("stat"))?;
        let mut entry = Entry {
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            sha256: None,
            target: None,
            stat,
        };
        let mut names = Vec::new();
        match kind(&stat) {
            SFlag::S_IFREG => {
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                self.survey.bytes = self.survey.bytes.saturating_add(size);
                if self.survey.bytes > MOVE_BYTES {
                    return Err(self.refused(QuarantineRefusal::TooLarge));
                }
                if self.contents == Contents::Read {
                    let file = open_file(&handle).map_err(failed("open"))?;
                    let mut digest = Sha256::new();
                    let read = sys::each_chunk(&file, size, |chunk| {
                        digest.update(chunk);
                        Ok(())
                    });
                    if !read.map_err(failed("read"))? {
                        return Err(self.refused(QuarantineRefusal::KeepsChanging));
                    }
                    entry.sha256 = Some(digest.finalize().into());
                }
            }
            SFlag::S_IFLNK => entry.target = link_target(handle.as_fd()).map_err(failed("read the link"))?,
            SFlag::S_IFDIR => names = self.names(&handle)?,
            _ => {}
        }
        self.survey.entries.insert(relative.to_owned(), entry);
        for name in names {
            self.visit(&handle, &name, &relative.join(&name), depth + 1)?;
        }
        Ok(())
    }

    fn handle(&self, directory: &OwnedFd, name: &OsStr) -> Result<OwnedFd, QuarantineError> {
        handle(directory, name).map_err(|errno| match errno {
            Errno::EXDEV => self.refused(QuarantineRefusal::Mount),
            errno => failed(self.path, "look up an object")(errno),
        })
    }

    fn names(&self, handle: &OwnedFd) -> Result<Vec<OsString>, QuarantineError> {
        let failed = failed(self.path, "read a directory");
        let left = MOVE_OBJECTS - self.survey.entries.len();
        let mut names = Vec::new();
        sys::each_name(open_directory(handle).map_err(&failed)?, |name| {
            names.push(name.to_owned());
            if names.len() <= left { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .map_err(&failed)?;
        if names.len() > left {
            return Err(self.refused(QuarantineRefusal::TooMany));
        }
        names.sort_unstable();
        Ok(names)
    }
}

/// A handle of the object with a name, also of a link. `EXDEV` if another file system is mounted there.
pub(super) fn handle(directory: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_BENEATH);
    loop {
        match openat2(directory.as_fd(), name, how) {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            done => return done,
        }
    }
}

/// Opens the directory of a handle for reading.
pub(super) fn open_directory(handle: &OwnedFd) -> Result<OwnedFd, Errno> {
    reopen_directory(handle, OFlag::O_RDONLY | OFlag::O_NOATIME).or_else(|errno| match errno {
        Errno::EPERM => reopen_directory(handle, OFlag::O_RDONLY),
        errno => Err(errno),
    })
}

/// Opens the regular file of a handle for reading. The caller has read its type.
pub(super) fn open_file(handle: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let path = sys::by_handle(handle);
    match open(path.as_str(), flags | OFlag::O_NOATIME, Mode::empty()) {
        Err(Errno::EPERM) => open(path.as_str(), flags, Mode::empty()),
        opened => opened,
    }
}

pub(super) fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}
