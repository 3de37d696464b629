//! Copies of an object on another file system, and the removal of objects.
//!
//! In: an object, and a directory that only root can open. Out: the object there, with type, content, mode, owner, attributes and
//! times as far as the file system takes them; or the object removed, if it is what a survey found.

use super::{
    error::{QuarantineError, QuarantineRefusal, failed},
    limits::{MOST_DEEP, MOVE_BYTES, MOVE_OBJECTS},
    survey::{Survey, handle, kind, open_directory, open_file},
};
use crate::{observation::resolve::link_target, sys};
use nix::{
    errno::Errno,
    fcntl::openat,
    sys::stat::{FileStat, Mode, SFlag, fstat},
};
use std::{
    ffi::OsStr,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

/// How many losses a copy names.
const MOST_LOSSES: usize = 16;

/// One copy.
#[derive(Debug)]
pub(super) struct Copy<'a> {
    /// The path of the original, for messages.
    path: &'a Path,
    /// What the copy does not have.
    pub(super) losses: Vec<String>,
    /// How many objects and bytes it may still write. A process in a moved directory can make more than the survey found.
    objects: usize,
    bytes: u64,
}

impl<'a> Copy<'a> {
    pub(super) fn new(path: &'a Path) -> Self {
        Self { path, losses: Vec::new(), objects: MOVE_OBJECTS, bytes: MOVE_BYTES }
    }

    /// Counts so many objects and bytes.
    fn spend(&mut self, objects: usize, bytes: u64) -> Result<(), QuarantineError> {
        let left = (self.objects.checked_sub(objects), self.bytes.checked_sub(bytes));
        let (Some(objects), Some(bytes)) = left else {
            return Err(QuarantineError::refused(self.path, QuarantineRefusal::KeepsChanging));
        };
        (self.objects, self.bytes) = (objects, bytes);
        Ok(())
    }

    /// Copies an object to a free name in a directory that only root can open.
    pub(super) fn run(
        &mut self,
        from: (&OwnedFd, &OsStr),
        to: (&OwnedFd, &OsStr),
        depth: usize,
    ) -> Result<(), QuarantineError> {
        let path = self.path;
        let failed = |operation| failed(path, operation);
        if depth > MOST_DEEP {
            return Err(QuarantineError::refused(self.path, QuarantineRefusal::TooDeep));
        }
        let original = handle(from.0, from.1).map_err(failed("look up an object"))?;
        let stat = fstat(&original).map_err(failed("stat"))?;
        let (directory, name) = to;
        let size = if kind(&stat) == SFlag::S_IFREG { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
        self.spend(1, size)?;
        match kind(&stat) {
            SFlag::S_IFREG => {
                let file = open_file(&original).map_err(failed("open"))?;
                let made = sys::create(directory, name).map_err(failed("make the copy"))?;
                let whole =
                    sys::each_chunk(&file, size, |chunk| sys::write(&made, chunk)).map_err(failed("copy"))?;
                if !whole {
                    return Err(QuarantineError::refused(self.path, QuarantineRefusal::KeepsChanging));
                }
            }
            SFlag::S_IFDIR => {
                sys::mkdir(directory, name).map_err(failed("make the copy of a directory"))?;
                let made = openat(directory, name, sys::DIRECTORY, Mode::empty())
                    .map_err(failed("open the copy"))?;
                let names =
                    open_directory(&original).and_then(sys::names).map_err(failed("read a directory"))?;
                for name in names {
                    self.run((&original, name.as_os_str()), (&made, name.as_os_str()), depth + 1)?;
                }
            }
            SFlag::S_IFLNK => {
                let target = link_target(original.as_fd()).map_err(failed("read the link"))?;
                let target = target.ok_or_else(|| failed("read the link")(Errno::EINVAL))?;
                sys::symlink(&target, directory, name).map_err(failed("make the copy of a link"))?;
            }
            node => {
                sys::make_node(directory, name, node, stat.st_rdev).map_err(|errno| match errno {
                    // The kernel has the same answer for each of the reasons that the message names.
                    Errno::EPERM if matches!(node, SFlag::S_IFCHR | SFlag::S_IFBLK) => {
                        QuarantineError::refused(path, QuarantineRefusal::DeviceNode)
                    }
                    errno => failed("make the copy of a node")(errno),
                })?;
            }
        }
        self.finish(&original, &stat, to)
    }

    /// Gives the copy the owner, the attributes, the mode and the times. The mode is set late: chown(2) clears the setuid bits.
    fn finish(
        &mut self,
        original: &OwnedFd,
        stat: &FileStat,
        (directory, name): (&OwnedFd, &OsStr),
    ) -> Result<(), QuarantineError> {
        let path = self.path;
        let failed = |operation| failed(path, operation);
        let copy = handle(directory, name).map_err(failed("look up the copy"))?;
        sys::own_link(&copy, Some(stat.st_uid), Some(stat.st_gid)).map_err(failed("change the owner"))?;
        let attributes = match sys::attributes_by_handle(original) {
            // Its owner chose them, and it is moved all the same.
            Err(Errno::E2BIG) => {
                self.lose("extended attributes: they have more than a MiB, or their names more than 64 KiB");
                Vec::new()
            }
            read => read.map_err(failed("read attributes"))?,
        };
        for (attribute, value) in attributes {
            self.spend(0, value.len() as u64)?;
            if let Err(errno) = sys::set_link_attribute(&copy, attribute.as_os_str(), &value) {
                self.lose(&format!("extended attribute {}: {}", attribute.to_string_lossy(), errno.desc()));
            }
        }
        if kind(stat) != SFlag::S_IFLNK {
            sys::mode_of_name(directory, name, stat.st_mode).map_err(failed("change the mode"))?;
        }
        if let Err(errno) = sys::times_of_name(directory, name, stat) {
            self.lose(&format!("times: {}", errno.desc()));
        }
        Ok(())
    }

    fn lose(&mut self, loss: &str) {
        if self.losses.len() < MOST_LOSSES && !self.losses.iter().any(|known| known == loss) {
            self.losses.push(loss.to_owned());
        }
    }
}

/// Clears the flags that refuse a rename or a removal. Returns whether one was set.
pub(super) fn clear_flags(directory: &OwnedFd, name: &OsStr) -> Result<bool, Errno> {
    let object = handle(directory, name)?;
    let opened = match kind(&fstat(&object)?) {
        SFlag::S_IFREG => open_file(&object)?,
        SFlag::S_IFDIR => open_directory(&object)?,
        _ => return Ok(false),
    };
    sys::clear_refusing_flags(&opened)
}

/// Removes an object with everything below it, if each object is one of the survey. `false` if one is not: it stays, with the
/// directories above it.
pub(super) fn erase(
    directory: &OwnedFd,
    name: &OsStr,
    survey: &Survey,
    path: &Path,
) -> Result<bool, QuarantineError> {
    erase_below((directory, name), Path::new(""), Some(survey), path, 0)
}

/// Removes an object in a directory that only root can open, with everything below it.
pub(super) fn remove_all(directory: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), QuarantineError> {
    erase_below((directory, name), Path::new(""), None, path, 0).map(drop)
}

fn erase_below(
    (directory, name): (&OwnedFd, &OsStr),
    relative: &Path,
    survey: Option<&Survey>,
    path: &Path,
    depth: usize,
) -> Result<bool, QuarantineError> {
    let failed = |operation| failed(path, operation);
    if depth > MOST_DEEP + 2 {
        return Err(QuarantineError::refused(path, QuarantineRefusal::TooDeep));
    }
    let object = match handle(directory, name) {
        Err(Errno::ENOENT) => return Ok(true),
        Err(Errno::EXDEV) => return Err(QuarantineError::refused(path, QuarantineRefusal::Mount)),
        opened => opened.map_err(failed("look up an object"))?,
    };
    let stat = fstat(&object).map_err(failed("stat"))?;
    if let Some(survey) = survey
        && !survey.entries.get(relative).is_some_and(|entry| entry.is_now(&stat))
    {
        return Ok(false);
    }
    let is_directory = kind(&stat) == SFlag::S_IFDIR;
    let mut is_empty = true;
    if is_directory {
        // A directory with such a flag keeps its names.
        clear_flags(directory, name).map_err(failed("clear the immutable flag"))?;
        let names = open_directory(&object).and_then(sys::names).map_err(failed("read a directory"))?;
        for name in names {
            let below = relative.join(&name);
            is_empty &= erase_below((&object, name.as_os_str()), &below, survey, path, depth + 1)?;
        }
    }
    if !is_empty {
        return Ok(false);
    }
    let remove = || sys::remove(directory, name, is_directory);
    let removed = match remove() {
        Err(Errno::EPERM) if clear_flags(directory, name).map_err(failed("clear the immutable flag"))? => {
            remove()
        }
        removed => removed,
    };
    match removed {
        Ok(()) | Err(Errno::ENOENT) => Ok(true),
        // Another process put a name into the directory meanwhile.
        Err(Errno::ENOTEMPTY | Errno::EEXIST) if survey.is_some() => Ok(false),
        Err(errno) => Err(failed("remove")(errno)),
    }
}
