//! Targets below a path that changes between a directory and another type.
//!
//! In: a target. Out: its place, if its directory exists; whether a directory stays because another process made a file in it.

use super::state::Driver;
use crate::{
    apply::error::{ApplyError, ApplyRefusal},
    disk::Place,
};
use sensor_model::journal::{Begin, Target};
use std::{collections::BTreeSet, ffi::OsStr, path::PathBuf};

/// The paths that are a directory either before or after the apply.
pub(in crate::apply) fn changing(begin: &Begin) -> BTreeSet<PathBuf> {
    begin.targets.iter().filter(|target| target.turns()).map(|target| target.path.clone()).collect()
}

impl Driver<'_> {
    /// The place of a target; `None` if its directory is missing. If a link replaced the directory, it may lead to other files with
    /// the same names, which are no targets.
    pub(in crate::apply) fn place(&self, target: &Target) -> Result<Option<Place>, ApplyError> {
        let root = self.observer.root();
        for path in target.path.ancestors().skip(1).filter(|path| self.changing.contains(*path)) {
            let place = Place::find(root, path)?;
            let found = place.map_or(Ok(None), |place| place.is_directory(&place.name))?;
            if found != Some(true) {
                return Ok(None);
            }
        }
        Ok(Place::find(root, &target.path)?)
    }
}

/// Whether the directory at a path stays because another process made a file in it. If so, the object that was to replace the
/// directory is removed.
pub(super) fn must_stay(target: &Target, place: &Place, name: &OsStr) -> Result<bool, ApplyError> {
    if place.is_directory(&place.name)? != Some(true) || place.is_directory(name)? == Some(true) {
        return Ok(false);
    }
    if place.is_empty_directory()? {
        return Ok(false);
    }
    keep(target, place, name).map(|()| true)
}

/// Renames a directory back that cannot be removed because it is not empty.
pub(super) fn swap_back(target: &Target, place: &Place, name: &OsStr) -> Result<(), ApplyError> {
    place.swap(name)?;
    keep(target, place, name)
}

/// Removes the object that was made to replace a directory.
fn keep(target: &Target, place: &Place, name: &OsStr) -> Result<(), ApplyError> {
    let seen = place.see_name(name, &mut |_| {})?.state;
    if !seen.is_some_and(|seen| [&target.before, &target.after].into_iter().any(|state| state.is(&seen))) {
        return Err(ApplyError::refused(&place.path, ApplyRefusal::ChangedAndFull));
    }
    match place.discard(name, false) {
        Ok(_) => {}
        Err(error) if error.is_missing() => {}
        Err(error) => return Err(error.into()),
    }
    Ok(place.sync_names()?)
}
