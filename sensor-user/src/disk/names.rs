//! Names of managed paths: giving one, exchanging two, removing one.
//!
//! In: a place and a temporary name in its directory. Out: the change of names, or an error that tells whether another process
//! was faster. Each change is one call and atomic.

use super::{
    error::DiskError,
    metadata::clear_flags,
    place::{Place, kind},
};
use crate::{observation::Observer, sys};
use nix::{errno::Errno, sys::stat::SFlag};
use std::ffi::OsStr;

/// Whether a name could be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removed {
    /// It is gone.
    Yes,
    /// It is a directory with something in it, and stays.
    NotEmpty,
}

impl Place {
    /// Exchanges the object of the path with that of a temporary name.
    pub(crate) fn swap(&self, name: &OsStr) -> Result<(), DiskError> {
        sys::exchange(&self.directory, name, &self.name).map_err(self.name_failed("swap"))
    }

    /// Gives the object of a temporary name the path, where the path is free.
    pub(crate) fn put_in(&self, name: &OsStr) -> Result<(), DiskError> {
        sys::rename_free(&self.directory, name, &self.name).map_err(self.name_failed("put in"))
    }

    /// Gives the object of the path a free temporary name.
    pub(crate) fn take_away(&self, name: &OsStr) -> Result<(), DiskError> {
        sys::rename_free(&self.directory, &self.name, name).map_err(self.name_failed("take away"))
    }

    /// Removes the directory of the path if it is empty.
    pub(crate) fn take_away_directory(&self) -> Result<Removed, DiskError> {
        self.remove_or_keep(&self.name, true, "take away")
    }

    /// Removes a temporary name; a directory only if it is empty.
    pub(crate) fn discard(&self, name: &OsStr, is_directory: bool) -> Result<Removed, DiskError> {
        self.remove_or_keep(name, is_directory, "discard")
    }

    /// The error where a directory that should be removed has something in it.
    pub(crate) fn not_empty(&self) -> DiskError {
        self.name_failed("discard")(Errno::ENOTEMPTY)
    }

    fn remove_or_keep(
        &self,
        name: &OsStr,
        is_directory: bool,
        operation: &'static str,
    ) -> Result<Removed, DiskError> {
        match sys::remove(&self.directory, name, is_directory) {
            Ok(()) => Ok(Removed::Yes),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) if is_directory => Ok(Removed::NotEmpty),
            Err(errno) => Err(self.name_failed(operation)(errno)),
        }
    }

    /// Removes what a process that died did not finish under a name.
    pub(crate) fn remove_unfinished(&self, name: &OsStr) -> Result<(), DiskError> {
        match self.is_directory(name)? {
            Some(is_directory) => sys::remove(&self.directory, name, is_directory)
                .map_err(self.failed("remove what was never finished")),
            None => Ok(()),
        }
    }

    /// Prepares a rename over the path: removes an empty directory there, and clears the flags of a file that would refuse it.
    pub(crate) fn clear_way(&self, observer: &Observer) -> Result<(), DiskError> {
        let Some(stat) = self.stat()? else { return Ok(()) };
        if kind(&stat) == SFlag::S_IFREG {
            clear_flags(&self.open(observer)?, &self.path)?;
        }
        if kind(&stat) != SFlag::S_IFDIR {
            return Ok(());
        }
        match sys::remove(&self.directory, &self.name, true) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => Err(DiskError::refused(
                &self.path,
                "a directory that is not empty is in its place; move it away first",
            )),
            Err(errno) => Err(self.failed("remove the directory in its place")(errno)),
        }
    }

    /// Removes the path; a directory only if it is empty. `false` when it was gone already.
    pub(crate) fn remove(&self, observer: &Observer) -> Result<bool, DiskError> {
        let Some(stat) = self.stat()? else { return Ok(false) };
        self.clear_way(observer)?;
        if kind(&stat) == SFlag::S_IFDIR {
            return Ok(true);
        }
        match sys::remove(&self.directory, &self.name, false) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(self.failed("remove")(errno)),
        }
    }

    fn name_failed(&self, operation: &'static str) -> impl Fn(Errno) -> DiskError {
        move |errno| DiskError::Name { path: self.path.clone(), operation, errno }
    }
}
