//! Originals: the objects to which paths are restored when no config declares them.
//!
//! In: a path, the host and the store. Out: the state of a path; and which originals to keep and to restore. A package's
//! file can be restored only if rpm or dpkg left it on the disk, because their databases have no contents.

use super::{
    error::ApplyError,
    target_finder::{TargetFinder, WantedState},
};
use crate::disk::Place;
use sensor_model::{
    escape::name_text,
    expectation::{Expectation, Expected},
    journal::PathState,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

/// The endings of files that rpm and dpkg leave beside a path whose own file was changed.
const PUT_ASIDE: [&str; 2] = [".rpmnew", ".dpkg-dist"];

impl TargetFinder<'_> {
    /// The object to which a path is restored: that of the OS image, else the kept original, else one that a package installed
    /// since.
    pub(super) fn original(&self, path: &Path) -> Result<PathState, ApplyError> {
        let kept = self.store.original(path)?;
        let pristine = self.observer.pristine();
        let shipped = match pristine {
            Some(pristine) => self.state_at(Place::shipped(pristine, path)?)?,
            None => PathState::Absent,
        };
        if shipped != PathState::Absent {
            // The host's own file, which no config has changed.
            if let Some(kept) = kept.filter(|kept| !kept.shipped && kept.state != PathState::Absent) {
                let present = self.state(path)?;
                if kept.state.is(&present) {
                    return Ok(present);
                }
            }
            return Ok(shipped);
        }
        if let Some(kept) = kept.filter(|kept| kept.state != PathState::Absent) {
            // An object of an older image that the present one does not ship is not the host's own.
            if !kept.shipped || pristine.is_none() {
                return Ok(kept.state);
            }
        }
        // A package that was installed or upgraded since left its file beside the path.
        for ending in PUT_ASIDE {
            let mut aside = path.as_os_str().to_owned();
            aside.push(ending);
            if let state @ PathState::File(_) = self.state(Path::new(&aside))? {
                return Ok(state);
            }
        }
        Ok(PathState::Absent)
    }

    /// Whether the booted OS image ships exactly this for a path. Attributes do not count, as in ostree's merge.
    pub(super) fn is_shipped(&self, path: &Path, state: &PathState) -> Result<bool, ApplyError> {
        let Some(pristine) = self.observer.pristine() else { return Ok(false) };
        let Some(place) = Place::shipped(pristine, path)? else { return Ok(false) };
        Ok(match (state, place.see()?.state) {
            (PathState::File(one), Some(PathState::File(other))) => {
                let [a, b] = [&one.metadata, &other.metadata];
                one.sha256 == other.sha256 && (a.mode, a.uid, a.gid) == (b.mode, b.uid, b.gid)
            }
            (PathState::Directory(a), Some(PathState::Directory(b))) => {
                (a.mode, a.uid, a.gid) == (b.mode, b.uid, b.gid)
            }
            (PathState::Link(a), Some(PathState::Link(b))) => {
                (&a.target, a.uid, a.gid) == (&b.target, b.uid, b.gid)
            }
            _ => false,
        })
    }

    /// Adds the originals in closed directories. They are not restored while a config closes the directory, and are restored
    /// afterwards. Returns the paths that only a forced apply removes or rewrites. No config declared those, so they get no
    /// original.
    pub(super) fn add_originals_of_closed(
        &self,
        old: &[Expectation],
        new: &[Expectation],
        kept: &BTreeSet<Arc<Path>>,
        wanted: &mut BTreeMap<PathBuf, WantedState>,
    ) -> Result<BTreeSet<PathBuf>, ApplyError> {
        let is_forced = |path: &Path, want: &WantedState| {
            matches!(want, WantedState::Gone | WantedState::File { .. }) && !kept.contains(path)
        };
        let forced = wanted.iter().filter(|(path, want)| is_forced(path, want));
        let forced = forced.map(|(path, _)| path.clone()).collect();
        let closed = |of: &[Expectation]| -> BTreeMap<Arc<Path>, _> {
            let directories = of.iter().filter_map(|expectation| match &expectation.expected {
                Expected::ClosedDirectory(closed) => Some((expectation.thing.path(), closed.clone())),
                _ => None,
            });
            directories.collect()
        };
        let (before, after) = (closed(old), closed(new));
        if before.keys().any(|directory| !after.contains_key(directory)) {
            for path in self.store.originals()? {
                let opens = |directory| before.contains_key(directory) && !after.contains_key(directory);
                if path.parent().is_some_and(opens) && !kept.contains(path.as_path()) {
                    wanted.entry(path).or_insert(WantedState::Original);
                }
            }
        }
        for (path, want) in wanted.iter_mut().filter(|(_, want)| **want == WantedState::Original) {
            let closed = path.parent().and_then(|directory| after.get(directory));
            let name = name_text(path.file_name().unwrap_or_default());
            if closed.is_some_and(|closed| closed.is_unexpected(&name)) {
                *want = WantedState::Gone;
            }
        }
        Ok(forced)
    }
}
