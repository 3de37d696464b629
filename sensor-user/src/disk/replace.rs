//! The atomic and durable replacement of the object at a path, without a journal.
//!
//! In: the new object. Out: the path has the new object or the unchanged old one. A killed process may leave a temporary name, and
//! never half a file at the path. The next repair removes such names ([`super::leftovers`]).

use super::{error::DiskError, make::NewLink, metadata::NewMetadata, place::Place};
use crate::sys::{self, temporary};
use nix::{errno::Errno, sys::stat::fstat};
use std::{
    ffi::{OsStr, OsString},
    os::fd::{AsFd, OwnedFd},
};

/// A temporary name. Dropping it removes the name unless it was renamed.
#[derive(Debug)]
pub(crate) struct Temporary<'a> {
    directory: &'a OwnedFd,
    pub(crate) name: OsString,
    renamed: bool,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            // A name that cannot be removed now is removed by the next repair.
            let _ = sys::remove(self.directory, &self.name, false);
        }
    }
}

impl Place {
    /// Replaces the object of the path by a new file.
    pub(crate) fn replace_by_file(&self, bytes: &[u8], metadata: &NewMetadata<'_>) -> Result<(), DiskError> {
        let (file, temporary) = self.temporary("make a temporary file", |name| self.create(name))?;
        self.finish_file(&file, bytes, metadata, None)?;
        self.rename(&file, temporary)
    }

    /// Replaces the object of the path by a new symbolic link.
    pub(crate) fn replace_by_link(
        &self,
        target: &OsStr,
        (uid, gid): (Option<u32>, Option<u32>),
        label: Option<&str>,
    ) -> Result<(), DiskError> {
        let ((), temporary) =
            self.temporary("make the link", |name| sys::symlink(target, &self.directory, name))?;
        self.put_link(temporary, target, (uid, gid), label)
    }

    /// Replaces the object of the path by another name of a file.
    pub(crate) fn replace_by_hard_link(&self, from: &Self) -> Result<(), DiskError> {
        let linked = from.handle()?;
        let ((), temporary) = self.temporary("make the hard link", |name| self.link_from(from, name))?;
        self.rename(&linked, temporary)
    }

    /// Sets owner and label of a new link, and renames it to the path.
    pub(crate) fn put_link(
        &self,
        temporary: Temporary<'_>,
        target: &OsStr,
        (uid, gid): (Option<u32>, Option<u32>),
        label: Option<&str>,
    ) -> Result<(), DiskError> {
        let link = self.finish_link(&temporary.name, NewLink { target, uid, gid, label })?;
        self.rename(&link, temporary)
    }

    /// Renames a temporary name to the path, if the temporary name still has the object `made`. A user who owns the directory may
    /// have replaced it.
    pub(crate) fn rename(&self, made: impl AsFd, mut temporary: Temporary<'_>) -> Result<(), DiskError> {
        let made = fstat(made).map_err(self.failed("stat"))?;
        let found = self.stat_name(&temporary.name)?;
        if found.is_none_or(|found| (found.st_dev, found.st_ino) != (made.st_dev, made.st_ino)) {
            return Err(self.replaced());
        }
        if self.is_directory(&self.name)? == Some(true) {
            self.replace_directory(&temporary.name)?;
        } else {
            sys::rename_over(&self.directory, &temporary.name, &self.name)
                .map_err(self.failed("rename into place"))?;
        }
        // rename(2) does nothing if both names have the same inode. Dropping removes the temporary name then.
        temporary.renamed = !matches!(self.stat_name(&temporary.name), Ok(Some(_)));
        drop(temporary);
        self.sync()
    }

    /// Calls `make` with temporary names until one is free.
    pub(crate) fn temporary<T>(
        &self,
        operation: &'static str,
        make: impl Fn(&OsStr) -> Result<T, Errno>,
    ) -> Result<(T, Temporary<'_>), DiskError> {
        loop {
            let name = temporary::next_name();
            match make(&name) {
                Ok(object) => {
                    return Ok((object, Temporary { directory: &self.directory, name, renamed: false }));
                }
                Err(Errno::EEXIST) => {}
                Err(errno) => return Err(self.failed(operation)(errno)),
            }
        }
    }
}
