//! Paths that change between a directory and a file or a link.
//!
//! In: the wanted states, and the host. Out: directories that replace undeclared files and links above declared paths; objects that
//! are restored with a directory. A directory with other objects in it is an error.

use super::{
    error::{ApplyError, ApplyRefusal},
    target_finder::{PARENT_MODE, TargetFinder, WantedState},
};
use crate::disk::{Place, each_name};
use sensor_model::journal::{PathState, Target};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

impl TargetFinder<'_> {
    /// Adds a directory for each undeclared file or link above a declared path, and for all paths between the two. No observation
    /// below it follows the link.
    pub(super) fn add_type_changes(
        &self,
        wanted: &mut BTreeMap<PathBuf, WantedState>,
    ) -> Result<(), ApplyError> {
        let mut turned = BTreeMap::new();
        let made = || WantedState::Directory { mode: PARENT_MODE, uid: Some(0), gid: Some(0) };
        for path in wanted.iter().filter(|(_, wanted)| !wanted.goes()).map(|(path, _)| path) {
            let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
            parents.reverse();
            let mut is_new = false;
            for parent in parents {
                let wanted = wanted.get(parent);
                if !is_new && wanted.is_some() && !turned.contains_key(parent) {
                    is_new = is_other(self, parent)?;
                }
                is_new |= turned.contains_key(parent);
                let comes_back = match wanted {
                    Some(WantedState::Original) => matches!(self.original(parent)?, PathState::Directory(_)),
                    _ => false,
                };
                if is_new && !comes_back && wanted.is_none_or(WantedState::goes) {
                    turned.insert(parent.to_owned(), made());
                }
            }
        }
        wanted.extend(turned);
        Ok(())
    }

    /// Adds the objects that were below a restored directory, if the config that replaced the directory did not declare them.
    pub(super) fn add_displaced_contents(
        &self,
        kept: &BTreeSet<Arc<Path>>,
        wanted: &mut BTreeMap<PathBuf, WantedState>,
    ) -> Result<(), ApplyError> {
        let mut back = Vec::new();
        for path in
            wanted.iter().filter(|(_, wanted)| **wanted == WantedState::Original).map(|(path, _)| path)
        {
            if is_other(self, path)? && matches!(self.original(path)?, PathState::Directory(_)) {
                back.push(path.clone());
            }
        }
        if back.is_empty() {
            return Ok(());
        }
        for path in self.store.originals()? {
            if !kept.contains(path.as_path()) && back.iter().any(|directory| path.starts_with(directory)) {
                wanted.entry(path).or_insert(WantedState::Original);
            }
        }
        Ok(())
    }

    /// Checks that a directory that is replaced by another type has no objects that stay.
    pub(super) fn check_left(&self, targets: &[Target]) -> Result<(), ApplyError> {
        let goes: BTreeSet<&Path> = targets
            .iter()
            .filter(|target| target.after == PathState::Absent)
            .map(|target| target.path.as_path())
            .collect();
        for target in targets.iter().filter(|target| target.turns()) {
            let mut directories = vec![target.path.clone()];
            while let Some(directory) = directories.pop() {
                each_name(self.observer, &directory, |name| {
                    let path = directory.join(name);
                    if !goes.contains(path.as_path()) {
                        return Err(ApplyError::refused(&target.path, ApplyRefusal::ObjectStays(path)));
                    }
                    directories.push(path);
                    Ok(ControlFlow::Continue(()))
                })?;
            }
        }
        Ok(())
    }
}

/// Whether a path has an object that is not a directory. A link is not a directory.
fn is_other(finder: &TargetFinder<'_>, path: &Path) -> Result<bool, ApplyError> {
    let Some(place) = Place::find(finder.observer.root(), path)? else { return Ok(false) };
    Ok(matches!(place.is_directory(&place.name), Ok(Some(false))))
}
