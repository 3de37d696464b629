//! Contents that an apply needs, and originals: the objects that paths had before Holdfast first wrote them.
//!
//! In: bytes, or the state of a path. Out: the same bytes or state. The name of a content is its digest, and each read checks it.

use super::{
    error::{StoreError, StoreFault},
    files::Store,
};
use crate::{
    bounded,
    sys::{self, CallError},
};
use nix::errno::Errno;
use sensor_model::journal::Original;
use sha2::{Digest as _, Sha256};
use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

impl Store {
    /// Keeps a content and returns its digest.
    pub(crate) fn keep(&self, bytes: &[u8]) -> Result<String, StoreError> {
        let name = hex::encode(Sha256::digest(bytes));
        let directory = self.path.join("contents");
        if !directory.join(&name).exists() {
            self.replace(&directory, &name, bytes)?;
        }
        Ok(name)
    }

    /// Reads a content and checks it against its name.
    pub(crate) fn content(&self, sha256: &str) -> Result<Vec<u8>, StoreError> {
        let path = |directory| self.path.join(directory).join(sha256);
        let read = |path: &Path| bounded::read(path, bounded::CONTENT);
        let bytes = read(&path("contents")).or_else(|_| {
            let path = path("originals");
            read(&path).map_err(|error| CallError::new(&path, "read", error))
        })?;
        if hex::encode(Sha256::digest(&bytes)) != sha256 {
            return Err(StoreError::invalid(&path("contents"), StoreFault::Digest));
        }
        Ok(bytes)
    }

    /// Removes the contents that only an apply in progress needs.
    pub(crate) fn forget_contents(&self) -> Result<(), StoreError> {
        let directory = self.path.join("contents");
        let path = directory.as_path();
        let failed = |operation| move |errno: Errno| CallError::new(path, operation, errno);
        let handle = sys::directory(&directory).map_err(failed("open"))?;
        let list = handle.try_clone().map_err(|error| CallError::new(&directory, "open", error))?;
        for name in sys::names(list).map_err(failed("read"))? {
            sys::remove(&handle, &name, false)
                .map_err(|errno| CallError::new(&directory.join(&name), "remove", errno))?;
        }
        Ok(())
    }

    /// The original of a path.
    pub(crate) fn original(&self, path: &Path) -> Result<Option<Original>, StoreError> {
        self.json(&self.path.join("originals").join(original_name(path)))
    }

    /// The paths with an original, sorted.
    pub(crate) fn originals(&self) -> Result<Vec<PathBuf>, StoreError> {
        let directory = self.path.join("originals");
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(CallError::new(&directory, "read", error).into()),
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| CallError::new(&directory, "read", error))?.path();
            // The contents of originals are in the same directory, without an ending.
            if path.extension().is_some_and(|ending| ending == "json") {
                paths.extend(self.json::<Original>(&path)?.map(|original| original.path));
            }
        }
        paths.sort();
        Ok(paths)
    }

    /// Keeps the original of a path. An earlier original stays, because it is the host's own.
    pub(crate) fn keep_original(&self, original: &Original) -> Result<(), StoreError> {
        let (directory, name) = (self.path.join("originals"), original_name(&original.path));
        if directory.join(&name).exists() {
            return Ok(());
        }
        if let Some(sha256) = original.state.content() {
            let bytes = self.content(sha256)?;
            self.replace(&directory, sha256, &bytes)?;
        }
        self.write_json(&directory, &name, original)
    }

    /// Removes the original of a path that no config declares any more.
    pub(crate) fn forget_original(&self, path: &Path) -> Result<(), StoreError> {
        let directory = self.path.join("originals");
        let failed = |operation| move |errno| CallError::new(path, operation, errno);
        let handle = sys::directory(&directory).map_err(failed("open the originals"))?;
        match sys::remove(&handle, OsStr::new(&original_name(path)), false) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(failed("forget the original")(errno).into()),
        }
    }
}

fn original_name(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    format!("{}.json", hex::encode(Sha256::digest(path.as_os_str().as_bytes())))
}
