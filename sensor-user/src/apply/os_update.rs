//! Declared paths that an update of the OS replaces.
//!
//! In: the declared paths, the host, and the image's `/etc` where an update merges it. Out: the declared paths whose objects equal
//! those of the image, and after the update the objects that replaced them. The merge of `/etc` replaces an unchanged object by
//! that of the new image. Unchanged means: the object has the image's own type, mode, owner and content. It ignores extended
//! attributes.

use super::{error::ApplyError, password, target_finder::TargetFinder, targets::Writes};
use crate::{
    disk::Place,
    observation::{Observer, Pristine},
};
use sensor_model::{
    expectation::{Expectation, Expected, Owner},
    journal::{FileState, Metadata, OsChange, OverwrittenPath, PathState, Target},
    xattr,
};
use std::path::{Path, PathBuf};

impl TargetFinder<'_> {
    /// The declared paths that a change of the OS would replace, with their states after the apply. A change of kernel arguments
    /// alone merges the same image and replaces no path.
    pub(super) fn overwritten(
        &self,
        writes: &Writes,
        os: Option<&OsChange>,
    ) -> Result<Vec<OverwrittenPath>, ApplyError> {
        let mut again = Vec::new();
        if os.is_none_or(OsChange::is_of_arguments) {
            return Ok(again);
        }
        for path in &writes.declared {
            let Some(shipped) = shipped(self.observer, path) else { continue };
            let target = writes.targets.iter().find(|target| target.path == **path);
            let mut state = match target {
                Some(target) => target.after.clone(),
                None => self.state(path)?,
            };
            // Each merge separates the names of a file, so none of them is unchanged.
            let is_one_of_many = matches!(&state, PathState::File(FileState { hard: Some(_), .. }));
            if let PathState::File(file) = &mut state {
                file.names = 0;
            }
            if !is_one_of_many && is_unchanged(&state, &shipped) && **path != *Path::new(password::SHADOW) {
                again.push(OverwrittenPath { path: path.to_path_buf(), state });
            }
        }
        Ok(again)
    }
}

/// The paths to be written again in this boot, as targets. Their states before are those of the booted OS image.
pub(super) fn targets(observer: &Observer, again: &[OverwrittenPath]) -> Vec<Target> {
    let target = |again: &OverwrittenPath| {
        let is_etc = again.path.starts_with("/etc") && merged(observer).is_some();
        let shipped = shipped(observer, &again.path).or_else(|| is_etc.then_some(PathState::Absent));
        again.target(shipped.map(plain))
    };
    again.iter().map(target).collect()
}

/// The declared paths of a config that an update of the OS would replace.
pub fn foreseen(observer: &Observer, expectations: &[Expectation]) -> Vec<PathBuf> {
    let is_foreseen = |expectation: &&Expectation| {
        let path = expectation.thing.path();
        shipped(observer, &path).is_some_and(|shipped| declares(observer, &expectation.expected, &shipped))
    };
    let paths = expectations.iter().filter(is_foreseen).map(|found| found.thing.path().to_path_buf());
    paths.collect()
}

/// The `/etc` of the booted image, if an update of the OS merges it with that of the host.
fn merged(observer: &Observer) -> Option<Pristine<'_>> {
    observer.pristine().filter(|pristine| pristine.kind().is_merged())
}

/// The object that the booted image ships for a path; `None` if there is none, or it cannot be read.
fn shipped(observer: &Observer, path: &Path) -> Option<PathState> {
    let place = Place::shipped(merged(observer)?, path).ok()??;
    place.see().ok()?.state.filter(|state| *state != PathState::Absent)
}

/// Whether the merge treats an object as unchanged.
fn is_unchanged(state: &PathState, shipped: &PathState) -> bool {
    let plain = |metadata: &Metadata| (metadata.mode, metadata.uid, metadata.gid);
    match (state, shipped) {
        (PathState::File(state), PathState::File(shipped)) => {
            state.sha256 == shipped.sha256 && plain(&state.metadata) == plain(&shipped.metadata)
        }
        (PathState::Directory(state), PathState::Directory(shipped)) => plain(state) == plain(shipped),
        (PathState::Link(state), PathState::Link(shipped)) => {
            (&state.target, state.uid, state.gid) == (&shipped.target, shipped.uid, shipped.gid)
        }
        _ => false,
    }
}

/// Whether a declaration equals an object of the image. Undeclared fields do not count.
fn declares(observer: &Observer, expected: &Expected, shipped: &PathState) -> bool {
    let is = |owner: &Owner, id: u32, number: &dyn Fn(&str) -> Option<u32>| match owner {
        Owner::Id(declared) => *declared == id,
        Owner::Name(name) => number(name) == Some(id),
        Owner::Undeclared => true,
    };
    let owned = |user: &Owner, group: &Owner, (uid, gid): (u32, u32)| {
        is(user, uid, &|name| observer.uid(name)) && is(group, gid, &|name| observer.gid(name))
    };
    let of = |metadata: &Metadata| (metadata.uid, metadata.gid);
    match (expected, shipped) {
        (Expected::File(file), PathState::File(shipped)) => {
            file.content.is_none_or(|content| hex::encode(content.sha256) == shipped.sha256)
                && file.mode == shipped.metadata.mode
                && owned(&file.user, &file.group, of(&shipped.metadata))
        }
        (Expected::Directory(directory), PathState::Directory(shipped)) => {
            directory.mode == shipped.mode && owned(&directory.user, &directory.group, of(shipped))
        }
        (Expected::Link(link), PathState::Link(shipped)) => {
            !link.hard
                && link.target == shipped.target
                && owned(&link.user, &link.group, (shipped.uid, shipped.gid))
        }
        _ => false,
    }
}

/// A state without the attributes that the host sets itself, because objects below `/usr/etc` have those of `/usr`.
fn plain(mut state: PathState) -> PathState {
    match &mut state {
        PathState::File(FileState { metadata, .. }) | PathState::Directory(metadata) => {
            metadata.xattrs.retain(|name, _| !xattr::is_ignored(name, ""));
        }
        PathState::Link(link) => link.label = None,
        PathState::Absent => {}
    }
    state
}
