//! Paths that turn from a file or a link into a directory with something in it, or back.
//!
//! In: what is wanted, and the host. Out: the directories that something declared needs in the place of what is declared no
//! more, what comes back with a directory, and a refusal where a directory holds what does not go with it.

use super::{
    error::ApplyError,
    planner::{PARENT_MODE, PlannedState, Planner},
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
    /// A file or a link that is declared no more becomes a directory where something below it is declared, and so does
    /// everything between the two: no look below it may go through the link.
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

    /// What was below a directory comes back with it, where the config that took its place said nothing of it.
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

/// Whether something is at a path that is no directory; a link is none.
fn is_other(planner: &Planner<'_>, path: &Path) -> Result<bool, ApplyError> {
    let Some(place) = Place::find(planner.observer.root(), path)? else { return Ok(false) };
    Ok(matches!(place.is_directory(&place.name), Ok(Some(false))))
}
