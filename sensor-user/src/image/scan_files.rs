//! The files of the scan of what the image has.
//!
//! In: the state directory. Out: the progress of the scan, and the paths that it found to differ. Both are replaced as a whole. A file that
//! Holdfast did not write counts as missing, since a scan finds everything again.

use crate::{
    bounded,
    sys::{self, CallError, FileVersion},
};
use nix::sys::stat::stat;
use sensor_model::image::ScanProgress;
use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

const PROGRESS: &str = "progress.json";
const FINDINGS: &str = "findings.json";

/// The directory `scan` of the state directory.
#[derive(Debug)]
pub(crate) struct ScanFiles {
    path: PathBuf,
}

impl ScanFiles {
    /// The files in a state directory. Nothing is made.
    pub(crate) fn of(state: &Path) -> Self {
        Self { path: state.join("scan") }
    }

    /// The progress of the scan.
    pub(crate) fn progress(&self) -> ScanProgress {
        self.read(PROGRESS)
    }

    /// Keeps the progress of the scan.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn keep_progress(&self, progress: &ScanProgress) -> Result<(), CallError> {
        self.write(PROGRESS, progress)
    }

    /// The paths that differed when they were scanned last.
    pub(crate) fn findings(&self) -> BTreeSet<String> {
        self.read(FINDINGS)
    }

    /// Keeps the paths that differ.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn keep_findings(&self, paths: &BTreeSet<String>) -> Result<(), CallError> {
        self.write(FINDINGS, paths)
    }

    /// The state of the file of findings: another state means other findings; `None` if it is missing.
    pub(crate) fn findings_version(&self) -> Option<FileVersion> {
        stat(&self.path(FINDINGS)).ok().map(|stat| sys::version_of(&stat))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn read<T: serde::de::DeserializeOwned + Default>(&self, name: &str) -> T {
        let path = self.path(name);
        let read = bounded::read(&path, bounded::OWN)
            .and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::from));
        match read {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => T::default(),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "Cannot read a file of the scan of the image; the scan begins anew.");
                T::default()
            }
        }
    }

    fn write(&self, name: &str, value: &impl serde::Serialize) -> Result<(), CallError> {
        let failed = |error: io::Error| CallError::new(&self.path(name), "write", error);
        let bytes = serde_json::to_vec(value).map_err(|error| failed(error.into()))?;
        sys::make_directory(&self.path).map_err(|errno| failed(errno.into()))?;
        sys::replace(&self.path, name, &bytes)
    }
}
