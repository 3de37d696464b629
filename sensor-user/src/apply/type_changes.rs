//! Paths that change between a directory and a file or a link.
//!
//! In: the planned states, and the host. Out: directories that declared paths need where an undeclared file or link is; what is
//! restored with a directory; a refusal where a directory holds what the plan does not remove.

use super::{
    error::ApplyError,
    target_finder::{PARENT_MODE, PlannedState, Planner},
};
use crate::disk::{Place, each_name};
use sensor_model::journal::{Image, Target};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

impl Planner<'_> {
    /// Makes a directory of an undeclared file or link that is above a declared path, and of everything between the two. No look
    /// below it may follow the link.
    pub(super) fn turned(&self, wanted: &mut BTreeMap<PathBuf, PlannedState>) -> Result<(), ApplyError> {
        let mut turned = BTreeMap::new();
        let made = || PlannedState::Directory { mode: PARENT_MODE, uid: Some(0), gid: Some(0) };
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
                    Some(PlannedState::Original) => matches!(self.original(parent)?, Image::Directory(_)),
                    _ => false,
                };
                if is_new && !comes_back && wanted.is_none_or(PlannedState::goes) {
                    turned.insert(parent.to_owned(), made());
                }
            }
        }
        wanted.extend(turned);
        Ok(())
    }

    /// Restores what was below a directory with it, if the config that replaced the directory did not declare it.
    pub(super) fn comes_along(
        &self,
        kept: &BTreeSet<Arc<Path>>,
        wanted: &mut BTreeMap<PathBuf, PlannedState>,
    ) -> Result<(), ApplyError> {
        let mut back = Vec::new();
        for path in
            wanted.iter().filter(|(_, wanted)| **wanted == PlannedState::Original).map(|(path, _)| path)
        {
            if is_other(self, path)? && matches!(self.original(path)?, Image::Directory(_)) {
                back.push(path.clone());
            }
        }
        if back.is_empty() {
            return Ok(());
        }
        for path in self.store.originals()? {
            if !kept.contains(path.as_path()) && back.iter().any(|directory| path.starts_with(directory)) {
                wanted.entry(path).or_insert(PlannedState::Original);
            }
        }
        Ok(())
    }

    /// A directory turns into something else only where everything in it goes, too.
    pub(super) fn leave(&self, targets: &[Target]) -> Result<(), ApplyError> {
        let goes: BTreeSet<&Path> = targets
            .iter()
            .filter(|target| target.after == Image::Absent)
            .map(|target| target.path.as_path())
            .collect();
        for target in targets.iter().filter(|target| target.turns()) {
            let mut directories = vec![target.path.clone()];
            while let Some(directory) = directories.pop() {
                each_name(self.observer, &directory, |name| {
                    let path = directory.join(name);
                    if !goes.contains(path.as_path()) {
                        let reason = format!(
                            "a directory that is not empty is in its place; move it away first, or what is in it: {}",
                            path.display()
                        );
                        return Err(ApplyError::refused(&target.path, reason));
                    }
                    directories.push(path);
                    Ok(ControlFlow::Continue(()))
                })?;
            }
        }
        Ok(())
    }
}

/// Whether something other than a directory is at a path. A link is no directory.
fn is_other(planner: &Planner<'_>, path: &Path) -> Result<bool, ApplyError> {
    let Some(place) = Place::find(planner.observer.root(), path)? else { return Ok(false) };
    Ok(matches!(place.is_directory(&place.name), Ok(Some(false))))
}
