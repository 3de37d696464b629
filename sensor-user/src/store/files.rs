//! The state directory, and files in it that are replaced durably.
//!
//! In: a name and bytes. Out: the old file or the new one, whole and synced, also if the process is killed.

use super::error::{StoreError, StoreFault};
use crate::{
    bounded,
    sys::{self, CallError},
};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// The directory `apply` of the state directory.
#[derive(Debug)]
pub struct Store {
    pub(super) path: PathBuf,
}

impl Store {
    /// Opens the store, and makes its missing directories.
    ///
    /// # Errors
    /// A directory cannot be made.
    pub fn open(state: &Path) -> Result<Self, StoreError> {
        let store = Self { path: state.join("apply") };
        for directory in ["", "contents", "originals", "generations"] {
            let path = store.path.join(directory);
            sys::make_directory(&path).map_err(|errno| CallError::new(&path, "make the directory", errno))?;
        }
        Ok(store)
    }

    /// Opens the store without making it; `None` if no config was ever applied.
    ///
    /// # Errors
    /// The kernel refuses to show whether there is a store.
    pub fn open_existing(state: &Path) -> Result<Option<Self>, StoreError> {
        let store = Self { path: state.join("apply") };
        match fs::metadata(store.path.join("generations")) {
            Ok(metadata) => Ok(metadata.is_dir().then_some(store)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(CallError::new(&store.path, "look for what was applied", error).into()),
        }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the lock of all writers; `None` if another process has it. Dropping the lock releases it.
    ///
    /// # Errors
    /// The lock file cannot be opened.
    pub fn lock(&self) -> Result<Option<Flock<File>>, StoreError> {
        let path = self.path.join("lock");
        let file = sys::directory(&self.path)
            .and_then(|directory| sys::lock_file(&directory, OsStr::new("lock")))
            .map_err(|errno| CallError::new(&path, "open", errno))?;
        match Flock::lock(File::from(file), FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(lock)),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(CallError::new(&path, "lock", errno).into()),
        }
    }

    /// Makes every file of the store durable.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        let synced = sys::directory(&self.path).and_then(sys::sync_all);
        Ok(synced.map_err(|errno| CallError::new(&self.path, "sync the file system", errno))?)
    }

    #[expect(clippy::unused_self, reason = "files of the store are read through the store")]
    pub(super) fn json<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, StoreError> {
        match bounded::read(path, bounded::OWN) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| StoreError::invalid(path, StoreFault::Read(error))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(CallError::new(path, "read", error).into()),
        }
    }

    pub(super) fn write_json(
        &self,
        directory: &Path,
        name: &str,
        value: &impl Serialize,
    ) -> Result<(), StoreError> {
        let mut bytes = serde_json::to_vec_pretty(value)
            .map_err(|error| StoreError::invalid(&directory.join(name), StoreFault::Written(error)))?;
        bytes.push(b'\n');
        self.replace(directory, name, &bytes)
    }

    /// Replaces a file of the store, durably.
    #[expect(clippy::unused_self, reason = "files of the store are replaced through the store")]
    pub(super) fn replace(&self, directory: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        Ok(sys::replace(directory, name, bytes)?)
    }
}
