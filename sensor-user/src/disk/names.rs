//! Changes of names: renaming, exchanging and removing, in the edits of [`sensor_model::journal::target_edit::TargetEdit`].
//!
//! In: a place and a temporary name in its directory. Out: the change, or an error. The error shows whether another process changed
//! the name first. Each change is one atomic call.

use super::{
    error::{DiskError, DiskRefusal},
    metadata::clear_flags,
    place::{Place, kind},
};
use crate::{
    observation::Observer,
    sys::{self, CallError},
};
use nix::{errno::Errno, sys::stat::SFlag};
use std::ffi::OsStr;

/// Whether a name could be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameRemoval {
    /// It was removed.
    Yes,
    /// It is a directory that is not empty, and stays.
    NotEmpty,
}

impl Place {
    /// Exchanges the object of the path with that of a temporary name.
    pub(crate) fn swap(&self, name: &OsStr) -> Result<(), DiskError> {
        sys::exchange(&self.directory, name, &self.name).map_err(self.name_failed("swap"))
    }

    /// Renames the object of a temporary name to the path, if the path is free.
    pub(crate) fn put_in(&self, name: &OsStr) -> Result<(), DiskError> {
        sys::rename_free(&self.directory, name, &self.name).map_err(self.name_failed("put in"))
    }

    /// Renames the object of the path to a free temporary name.
    pub(crate) fn take_away(&self, name: &OsStr) -> Result<(), DiskError> {
        sys::rename_free(&self.directory, &self.name, name).map_err(self.name_failed("take away"))
    }

    /// Removes the directory of the path if it is empty.
    pub(crate) fn take_away_directory(&self) -> Result<NameRemoval, DiskError> {
        self.remove_or_keep(&self.name, true, "take away")
    }

    /// Removes a temporary name; a directory only if it is empty.
    pub(crate) fn discard(&self, name: &OsStr, is_directory: bool) -> Result<NameRemoval, DiskError> {
        self.remove_or_keep(name, is_directory, "discard")
    }

    /// The error for a directory that should be removed and is not empty.
    pub(crate) fn not_empty(&self) -> DiskError {
        self.name_failed("discard")(Errno::ENOTEMPTY)
    }

    fn remove_or_keep(
        &self,
        name: &OsStr,
        is_directory: bool,
        operation: &'static str,
    ) -> Result<NameRemoval, DiskError> {
        match sys::remove(&self.directory, name, is_directory) {
            Ok(()) => Ok(NameRemoval::Yes),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) if is_directory => Ok(NameRemoval::NotEmpty),
            Err(errno) => Err(self.name_failed(operation)(errno)),
        }
    }

    /// Removes the unfinished object of a killed process.
    pub(crate) fn remove_unfinished(&self, name: &OsStr) -> Result<(), DiskError> {
        match self.is_directory(name)? {
            Some(is_directory) => sys::remove(&self.directory, name, is_directory)
                .map_err(self.failed("remove an unfinished object")),
            None => Ok(()),
        }
    }

    /// Checks that the object of the path can be replaced, and clears the flags of a file that refuse it. Only an empty directory
    /// can be replaced.
    pub(crate) fn prepare_replacement(&self, observer: &Observer) -> Result<(), DiskError> {
        let Some(stat) = self.stat()? else { return Ok(()) };
        if kind(&stat) == SFlag::S_IFREG {
            clear_flags(&self.open(observer)?, &self.path)?;
        } else if kind(&stat) == SFlag::S_IFDIR && !self.is_empty_directory()? {
            return Err(self.full_directory());
        }
        Ok(())
    }

    /// Removes the path; a directory only if it is empty. Returns `false` if the path was missing.
    pub(crate) fn remove(&self, observer: &Observer) -> Result<bool, DiskError> {
        let Some(stat) = self.stat()? else { return Ok(false) };
        let is_directory = kind(&stat) == SFlag::S_IFDIR;
        self.prepare_replacement(observer)?;
        match sys::remove(&self.directory, &self.name, is_directory) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(is_directory),
            Err(errno) => Err(self.no_directory_removed(is_directory, "remove", errno)),
        }
    }

    /// Replaces the empty directory of the path by the object of a temporary name. If the file system can exchange them, the path
    /// is never missing.
    pub(super) fn replace_directory(&self, name: &OsStr) -> Result<(), DiskError> {
        let removing = "remove the directory in its place";
        match sys::exchange(&self.directory, name, &self.name) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => {
                sys::remove(&self.directory, &self.name, true)
                    .map_err(|errno| self.no_directory_removed(true, removing, errno))?;
                return sys::rename_over(&self.directory, name, &self.name)
                    .map_err(self.failed("rename into place"));
            }
            Err(errno) => return Err(self.failed("rename into place")(errno)),
        }
        sys::remove(&self.directory, name, true).map_err(|errno| {
            // Exchanged back: the path has its directory, and the temporary name the new object.
            let _ = sys::exchange(&self.directory, name, &self.name);
            self.no_directory_removed(true, removing, errno)
        })
    }

    fn no_directory_removed(&self, is_directory: bool, operation: &'static str, errno: Errno) -> DiskError {
        match errno {
            Errno::ENOTEMPTY | Errno::EEXIST if is_directory => self.full_directory(),
            errno => self.failed(operation)(errno),
        }
    }

    fn full_directory(&self) -> DiskError {
        DiskError::refused(&self.path, DiskRefusal::FullDirectory)
    }

    fn name_failed(&self, operation: &'static str) -> impl Fn(Errno) -> DiskError {
        move |errno| DiskError::Name(CallError::new(&self.path, operation, errno))
    }
}
