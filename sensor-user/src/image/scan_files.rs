//! The files of the scan of what the image has.
//!
//! In: the state directory. Out: the progress of the scan, the paths that it found to differ, and the contents of sealed files that it read.
//! The first two are replaced as a whole; the contents are added, and replaced after a round. A file that Holdfast did not write counts as
//! missing, since a scan finds everything again.

use crate::{
    bounded,
    observation::sealed::{SealedContent, SealedContents},
    sys::{self, CallError, FileVersion},
};
use nix::sys::stat::stat;
use sensor_model::image::ScanProgress;
use std::{
    collections::BTreeSet,
    fs::OpenOptions,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

const PROGRESS: &str = "progress.json";
const FINDINGS: &str = "findings.json";
const SEALED: &str = "sealed";
/// Most bytes of the file of sealed contents. The scan keeps fewer.
const SEALED_BYTES: u64 = 32 << 20;

/// The list of sealed contents in sealed trees.
const TREES: &str = "sealed-trees";

/// The list of the contents of sealed files that the process knows which reads configs. The scan drops contents of its own list that it does not
/// compare.
#[derive(Debug)]
pub(crate) struct TreeFiles(ScanFiles);

impl TreeFiles {
    /// The list in a state directory. Nothing is made.
    pub(crate) fn of(state: &Path) -> Self {
        Self(ScanFiles::of(state))
    }

    /// The contents of sealed files that were read.
    pub(crate) fn sealed(&self) -> SealedContents {
        SealedContents::new(self.0.contents(TREES))
    }

    /// Keeps these contents of sealed files, and no others.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn keep(&self, contents: &[SealedContent]) -> Result<(), CallError> {
        self.0.replace(TREES, contents.as_flattened())
    }
}

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

    /// The contents of sealed files that were read.
    pub(crate) fn sealed(&self) -> SealedContents {
        SealedContents::new(self.contents(SEALED))
    }

    /// The same, and those in sealed trees that the process knows which reads configs.
    pub(crate) fn sealed_with_trees(&self) -> SealedContents {
        SealedContents::new([self.contents(SEALED), self.contents(TREES)].concat())
    }

    fn contents(&self, name: &str) -> Vec<SealedContent> {
        let path = self.path(name);
        match bounded::read(&path, SEALED_BYTES) {
            Ok(bytes) => bytes.as_chunks().0.to_vec(),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(%error, path = %path.display(), "Cannot read the list of sealed contents; each file is read again.");
                }
                Vec::new()
            }
        }
    }

    /// Adds contents of sealed files that were read.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn add_sealed(&self, contents: &[SealedContent]) -> Result<(), CallError> {
        if contents.is_empty() {
            return Ok(());
        }
        let path = self.path(SEALED);
        let failed = |error: io::Error| CallError::new(&path, "write", error);
        self.make().map_err(failed)?;
        let mut file =
            OpenOptions::new().append(true).create(true).mode(0o600).open(&path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        // A process that was killed may have written a part of a record.
        let part = length % (size_of::<SealedContent>() as u64);
        if part > 0 {
            file.set_len(length - part).map_err(failed)?;
        }
        file.write_all(contents.as_flattened()).map_err(failed)
    }

    /// Keeps these contents of sealed files, and no others.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn keep_sealed(&self, contents: &[SealedContent]) -> Result<(), CallError> {
        if contents.is_empty() && !self.path(SEALED).exists() {
            return Ok(());
        }
        self.replace(SEALED, contents.as_flattened())
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
        let bytes = serde_json::to_vec(value)
            .map_err(|error| CallError::new(&self.path(name), "write", io::Error::from(error)))?;
        self.replace(name, &bytes)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), CallError> {
        self.make().map_err(|error| CallError::new(&self.path(name), "write", error))?;
        sys::replace(&self.path, name, bytes)
    }

    fn make(&self) -> io::Result<()> {
        Ok(sys::make_directory(&self.path)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_which_a_part_was_written_costs_no_other_record() {
        let state = tempfile::tempdir().unwrap();
        let files = ScanFiles::of(state.path());
        files.add_sealed(&[[1; 32], [2; 32]]).unwrap();
        let path = files.path(SEALED);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&[3; 7]).unwrap();
        files.add_sealed(&[[4; 32]]).unwrap();
        let bytes = bounded::read(&path, SEALED_BYTES).unwrap();
        assert_eq!(bytes.as_chunks().0, [[1; 32], [2; 32], [4; 32]]);
        files.keep_sealed(&[[2; 32]]).unwrap();
        assert_eq!(bounded::read(&path, SEALED_BYTES).unwrap(), [2; 32]);
    }
}
