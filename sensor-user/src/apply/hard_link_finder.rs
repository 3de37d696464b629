//! Hard links: the other names of a file that an apply changes.
//!
//! In: the wanted states, and the host. Out: states that name another name of the same file. Names are searched among the paths
//! that the configs declare and in the file's own directory. A file with a name in another directory cannot be linked again; the
//! end of the apply reports this.

use super::{
    error::ApplyError,
    target_finder::{TargetFinder, WantedState},
};
use crate::disk::{ObjectIdentity, Place, each_name};
use sensor_model::{
    expectation::Expectation,
    journal::{FileState, PathState, TEMPORARY, Target, target_edit::Side},
};
use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

/// Names of files, searched when they are needed.
pub(super) struct Names<'a> {
    finder: &'a TargetFinder<'a>,
    wanted: &'a BTreeMap<PathBuf, WantedState>,
    declared: Vec<&'a Expectation>,
    known: OnceCell<BTreeMap<ObjectIdentity, BTreeSet<PathBuf>>>,
}

impl<'a> Names<'a> {
    pub(super) fn new(
        finder: &'a TargetFinder<'a>,
        wanted: &'a BTreeMap<PathBuf, WantedState>,
        declared: Vec<&'a Expectation>,
    ) -> Self {
        Self { finder, wanted, declared, known: OnceCell::new() }
    }

    /// Adds to a file's state how many names the file has, and one of the others.
    pub(super) fn noted(&self, path: &Path, state: PathState) -> Result<PathState, ApplyError> {
        let PathState::File(file) = state else { return Ok(state) };
        let Some((identity, names)) = self.identity(path)?.filter(|(_, names)| *names > 1) else {
            return Ok(PathState::File(file));
        };
        let mut others = self.known()?.get(&identity).cloned().unwrap_or_default();
        let directory = path.parent().unwrap_or(Path::new("/"));
        each_name(self.finder.observer, directory, |name| {
            // The journal holds only names in UTF-8.
            if let Some(name) = name.to_str().filter(|name| !name.starts_with(TEMPORARY)) {
                let sibling = directory.join(name);
                if self.identity(&sibling)?.is_some_and(|(it, _)| it == identity) {
                    others.insert(sibling);
                }
            }
            Ok::<_, ApplyError>(ControlFlow::Continue(()))
        })?;
        // All states hold the first name, and the first holds the second. A name that stays keeps the inode.
        let mut others: Vec<PathBuf> = others.into_iter().collect();
        others.sort_by_key(|other| self.wanted.contains_key(other));
        let hard = others.into_iter().find(|other| other != path);
        Ok(PathState::File(FileState { hard, names, ..file }))
    }

    /// The original of a path. It is another name of a file only if that file exists or is restored as well.
    pub(super) fn restored(
        &self,
        path: &Path,
        before: &PathState,
        original: PathState,
    ) -> Result<PathState, ApplyError> {
        let PathState::File(FileState { hard: Some(of), .. }) = &original else { return Ok(original) };
        let exists = match Place::find(self.finder.observer.root(), of) {
            Ok(Some(place)) => place.see()?.state.is_some_and(|found| original.is(&found)),
            _ => false,
        };
        let is_linked = match self.wanted.get(of) {
            // The path has the content already. Of two such names only the later one becomes a link to the other.
            None | Some(WantedState::Original) if original.is(before) => exists && **of < *path,
            Some(WantedState::Original) => exists || self.finder.original(of)?.is(&original),
            None => exists,
            Some(_) => false,
        };
        match original {
            PathState::File(file) if !is_linked => Ok(PathState::File(FileState { hard: None, ..file })),
            original => Ok(original),
        }
    }

    fn known(&self) -> Result<&BTreeMap<ObjectIdentity, BTreeSet<PathBuf>>, ApplyError> {
        if self.known.get().is_none() {
            let mut known: BTreeMap<ObjectIdentity, BTreeSet<PathBuf>> = BTreeMap::new();
            let declared = self.declared.iter().map(|expectation| expectation.thing.path().to_path_buf());
            for path in declared.chain(self.wanted.keys().cloned()) {
                if let Some((identity, 2..)) = self.identity(&path)? {
                    known.entry(identity).or_default().insert(path);
                }
            }
            let _ = self.known.set(known);
        }
        Ok(self.known.get_or_init(BTreeMap::new))
    }

    /// The inode of a regular file, and how many names it has.
    fn identity(&self, path: &Path) -> Result<Option<(ObjectIdentity, u64)>, ApplyError> {
        let Ok(Some(place)) = Place::find(self.finder.observer.root(), path) else { return Ok(None) };
        names(&place)
    }
}

/// The inode of a regular file, and how many names it has.
pub(super) fn names(place: &Place) -> Result<Option<(ObjectIdentity, u64)>, ApplyError> {
    let file = place.stat()?.filter(|stat| stat.st_mode & nix::libc::S_IFMT == nix::libc::S_IFREG);
    Ok(file.map(|stat| ((stat.st_dev, stat.st_ino), stat.st_nlink)))
}

/// The state of a target on a side.
pub(super) fn state(target: &Target, side: Side) -> &PathState {
    match side {
        Side::Before => &target.before,
        Side::After => &target.after,
    }
}

/// Whether a file had other names before Holdfast wrote it.
pub(super) fn had(state: &PathState) -> bool {
    matches!(state, PathState::File(FileState { names: 2.., .. }))
}
