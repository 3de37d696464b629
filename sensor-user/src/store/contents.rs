//! Contents that an apply needs, and originals: what was at a path before Holdfast wrote it first.
//!
//! In: bytes, or the image of a path. Out: the same, each content checked against the digest that is its name.

use super::{error::StoreError, files::Store};
use crate::{bounded, sys};
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
            read(&path).map_err(|error| StoreError::io(&path, "read", &error))
        })?;
        if hex::encode(Sha256::digest(&bytes)) != sha256 {
            return Err(StoreError::invalid(&path("contents"), "the content that was kept has changed"));
        }
        Ok(bytes)
    }

    /// Removes the contents that only an apply in progress needs.
    pub(crate) fn forget_contents(&self) -> Result<(), StoreError> {
        let directory = self.path.join("contents");
        let handle = sys::directory(&directory).map_err(|e| StoreError::failed(&directory, "open", e))?;
        let list = handle.try_clone().map_err(|error| StoreError::io(&directory, "open", &error))?;
        for name in sys::names(list).map_err(|errno| StoreError::failed(&directory, "read", errno))? {
            sys::remove(&handle, &name, false)
                .map_err(|errno| StoreError::failed(&directory.join(&name), "remove", errno))?;
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
            Err(error) => return Err(StoreError::io(&directory, "read", &error)),
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| StoreError::io(&directory, "read", &error))?.path();
            // The contents of originals are in the same directory, without an ending.
            if path.extension().is_some_and(|ending| ending == "json") {
                paths.extend(self.json::<Original>(&path)?.map(|original| original.path));
            }
        }
        paths.sort();
        Ok(paths)
    }

    /// Keeps the original of a path. An original that is kept already stays: the first one is the host's own.
    pub(crate) fn keep_original(&self, original: &Original) -> Result<(), StoreError> {
        let (directory, name) = (self.path.join("originals"), original_name(&original.path));
        if directory.join(&name).exists() {
            return Ok(());
        }
        if let Some(sha256) = original.image.content() {
            let bytes = self.content(sha256)?;
            self.replace(&directory, sha256, &bytes)?;
        }
        self.write_json(&directory, &name, original)
    }

    /// Removes the original of a path that no config declares any more.
    pub(crate) fn forget_original(&self, path: &Path) -> Result<(), StoreError> {
        let directory = self.path.join("originals");
        let failed = |operation| move |errno| StoreError::failed(path, operation, errno);
        let handle = sys::directory(&directory).map_err(failed("open the originals"))?;
        match sys::remove(&handle, OsStr::new(&original_name(path)), false) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(failed("forget the original")(errno)),
        }
    }
}

fn original_name(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    format!("{}.json", hex::encode(Sha256::digest(path.as_os_str().as_bytes())))
}
