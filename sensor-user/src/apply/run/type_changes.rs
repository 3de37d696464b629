//! Targets below a path that turns from a directory into something else, or back; and that directory when it is not empty.
//!
//! In: a target. Out: its place, where it has one now; whether a directory has to stay for what somebody else put in it.

use super::state::Run;
use crate::{apply::error::ApplyError, disk::Place};
use sensor_model::journal::{Begin, Target};
use std::{collections::BTreeSet, ffi::OsStr, path::PathBuf};

/// Paths that are a directory on one side only.
pub(in crate::apply) fn changing(begin: &Begin) -> BTreeSet<PathBuf> {
    begin.targets.iter().filter(|target| target.turns()).map(|target| target.path.clone()).collect()
}

impl Run<'_> {
    /// The place of a target; `None` where its directory is not there. A link that is there in the directory's place may
    /// lead to a directory with the same names in it, and none of those is ours.
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

/// Whether the directory at a path has to stay, since somebody else put something in it; what was made to take its
/// place is removed then.
pub(super) fn must_stay(target: &Target, place: &Place, name: &OsStr) -> Result<bool, ApplyError> {
    if place.is_directory(&place.name)? != Some(true) || place.is_directory(name)? == Some(true) {
        return Ok(false);
    }
    if place.is_empty_directory()? {
        return Ok(false);
    }
    keep(target, place, name).map(|()| true)
}

/// Gives a directory its name back that turned out not to be empty when it was to be removed.
pub(super) fn stays_after_all(target: &Target, place: &Place, name: &OsStr) -> Result<(), ApplyError> {
    place.swap(name)?;
    keep(target, place, name)
}

/// Removes the object that was to take a directory's place.
fn keep(target: &Target, place: &Place, name: &OsStr) -> Result<(), ApplyError> {
    let seen = place.see_name(name, &mut |_| {})?.image;
    if !seen.is_some_and(|seen| [&target.before, &target.after].into_iter().any(|image| image.is(&seen))) {
        let reason = "somebody else changed it, and what is in it; move one of the two away first";
        return Err(ApplyError::refused(&place.path, reason));
    }
    match place.discard(name, false) {
        Ok(_) => {}
        Err(error) if error.is_missing() => {}
        Err(error) => return Err(error.into()),
    }
    Ok(place.sync_names()?)
}
