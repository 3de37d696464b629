//! Removals that only a forced apply makes: undeclared names in closed directories, and undeclared lines of ssh keys.
//!
//! In: the host and the configs. Out: the removals, for the engine and for the question before it.

use super::{
    error::{ApplyError, ApplyRefusal},
    target_finder::is_object,
};
use crate::{
    disk::{FirstNames, Place, listed},
    observation::Observer,
    repair::declared_lines,
};
use sensor_model::{
    expectation::{ClosedDirectoryExpectation, Expectation, Expected},
    journal::PathState,
    plan::RemovedByForce,
};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The undeclared names in a closed directory. More names than the question can show are an error.
pub(super) fn names(
    observer: &Observer,
    path: &Path,
    closed: &ClosedDirectoryExpectation,
) -> Result<BTreeSet<String>, ApplyError> {
    let FirstNames { names, more } = listed(observer, path, |name| closed.is_unexpected(name))?;
    if more > 0 {
        return Err(ApplyError::refused(path, ApplyRefusal::TooManyNames));
    }
    Ok(names)
}

/// The paths and lines that a forced apply of the new config removes although the old one did not declare them, sorted by path.
///
/// # Errors
/// A path cannot be read, or a closed directory has too many names.
pub fn removed_by_force(
    observer: &Observer,
    old: &[Expectation],
    new: &[Expectation],
) -> Result<Vec<RemovedByForce>, ApplyError> {
    // The plan's changes already contain the paths that only the old config declares.
    let known: BTreeSet<Arc<Path>> = old.iter().filter(|e| is_object(e)).map(|e| e.thing.path()).collect();
    let mut removed = Vec::new();
    for expectation in new {
        let path = expectation.thing.path();
        match &expectation.expected {
            Expected::ClosedDirectory(closed) => {
                let paths = names(observer, &path, closed)?.into_iter().map(|name| path.join(name));
                let unknown = paths.filter(|path| !known.contains(path.as_path()));
                removed.extend(unknown.map(|path| RemovedByForce { path, lines: None }));
            }
            Expected::AuthorizedKeys(keys) => {
                let (_, lines) = declared_lines(&content(observer, &path)?, &keys.keys);
                let path: PathBuf = path.to_path_buf();
                removed.extend((lines > 0).then_some(RemovedByForce { path, lines: Some(lines) }));
            }
            _ => {}
        }
    }
    removed.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(removed)
}

/// The bytes of a file; none if it is missing or not a file.
fn content(observer: &Observer, path: &Path) -> Result<Vec<u8>, ApplyError> {
    let mut bytes = Vec::new();
    let Some(place) = Place::find(observer.root(), path)? else { return Ok(bytes) };
    let seen = place.see_name(&place.name, &mut |chunk| bytes.extend_from_slice(chunk))?;
    Ok(if matches!(seen.kept(path)?, PathState::File(_)) { bytes } else { Vec::new() })
}
