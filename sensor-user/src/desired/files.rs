//! Bytes of manifests and policies.
//!
//! In: paths of files and directories. Out: names and bytes, in the order of the paths and, in a directory, of the names.

use super::error::DesiredError;
use crate::bounded;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Files by name, and their bytes.
pub type Files = Vec<(String, Vec<u8>)>;

/// File name endings that are read in a directory.
const ENDINGS: [&str; 4] = ["yaml", "yml", "json", "ign"];

/// Reads files, and those in directories, by name.
///
/// # Errors
/// A file or a directory that cannot be read.
pub fn read(paths: &[PathBuf]) -> Result<Files, DesiredError> {
    let read = |path: PathBuf| {
        let bytes =
            bounded::read(&path, bounded::CONFIG).map_err(|error| DesiredError::read(&path, error))?;
        Ok((path.display().to_string(), bytes))
    };
    list(paths)?.into_iter().map(read).collect()
}

/// Files among `paths`, and in directories among them those with a known ending, by name.
fn list(paths: &[PathBuf]) -> Result<Vec<PathBuf>, DesiredError> {
    let mut found = Vec::new();
    for path in paths {
        let refused = |error| DesiredError::read(path, error);
        if !fs::metadata(path).map_err(refused)?.is_dir() {
            found.push(path.clone());
            continue;
        }
        let mut inside = Vec::new();
        for entry in fs::read_dir(path).map_err(refused)? {
            let entry = entry.map_err(refused)?.path();
            if entry.is_file() && has_known_ending(&entry) {
                inside.push(entry);
            }
        }
        inside.sort();
        found.extend(inside);
    }
    Ok(found)
}

/// Whether a directory's file of this name is read.
pub(super) fn has_known_ending(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known))
}
