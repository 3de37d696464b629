//! The parts from which targets are worked out, and the state that a path is to have.
//!
//! In: the two configs, the host, the store. Out: states of present objects, whose contents go to the store, and numeric owners.

use super::error::ApplyError;
use crate::{disk::Place, observation::Observer, repair::UnknownOwner, store::Store};
use sensor_model::{
    drift_policy::DriftPolicy,
    expectation::{Expectation, Expected, Owner},
    journal::PathState,
    merge::Rendered,
};
use std::path::{Path, PathBuf};

/// Mode of a parent that no config declares.
pub(super) const PARENT_MODE: u32 = 0o755;

/// The state that a path is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WantedState {
    /// A file. Without a content it keeps its present one.
    File {
        content: Option<Vec<u8>>,
        mode: u32,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Directory {
        mode: u32,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Link {
        target: PathBuf,
        uid: u32,
        gid: u32,
    },
    /// Another name of a file.
    Hard {
        target: PathBuf,
    },
    /// Removed.
    Gone,
    /// The object that Holdfast first replaced, or the one that the OS ships, or none.
    Original,
}

impl WantedState {
    /// Whether no config declares the path.
    pub(super) fn goes(&self) -> bool {
        matches!(self, Self::Gone | Self::Original)
    }
}

/// Works out the targets of an apply.
#[derive(Debug)]
pub(super) struct TargetFinder<'a> {
    pub(super) observer: &'a Observer,
    pub(super) store: &'a Store,
    pub(super) old: &'a Rendered,
    pub(super) new: &'a Rendered,
    /// Whether to write all declared paths, and not only those in which the configs differ.
    pub(super) everything: bool,
    /// The drift policy: where it ignores labels, the apply keeps them.
    pub(super) drift: &'a DriftPolicy,
    /// Days since 1970, for the day on which a password changed.
    pub(super) today: i64,
}

impl TargetFinder<'_> {
    /// The state of a path's object; its content goes to the store.
    pub(super) fn state(&self, path: &Path) -> Result<PathState, ApplyError> {
        self.state_at(Place::find(self.observer.root(), path)?)
    }

    /// The same of the object at a place.
    pub(super) fn state_at(&self, place: Option<Place>) -> Result<PathState, ApplyError> {
        let Some(place) = place else { return Ok(PathState::Absent) };
        let mut bytes = Vec::new();
        let seen = place.see_name(&place.name, &mut |chunk| bytes.extend_from_slice(chunk))?;
        let state = seen.kept(&place.path)?;
        if matches!(state, PathState::File(_)) {
            self.store.keep(&bytes)?;
        }
        Ok(state)
    }

    /// The numbers of declared owners.
    pub(super) fn owners(
        &self,
        path: &Path,
        user: &Owner,
        group: &Owner,
    ) -> Result<(Option<u32>, Option<u32>), ApplyError> {
        let unknown = |owner: UnknownOwner| ApplyError::refused(path, owner);
        let uid = match user {
            Owner::Id(id) => Some(*id),
            Owner::Name(name) => {
                Some(self.observer.uid(name).ok_or_else(|| unknown(UnknownOwner::User(name.clone())))?)
            }
            Owner::Undeclared => None,
        };
        let gid = match group {
            Owner::Id(id) => Some(*id),
            Owner::Name(name) => {
                Some(self.observer.gid(name).ok_or_else(|| unknown(UnknownOwner::Group(name.clone())))?)
            }
            Owner::Undeclared => None,
        };
        Ok((uid, gid))
    }
}

/// Things that are one object at their own path.
pub(super) fn is_object(expectation: &Expectation) -> bool {
    matches!(expectation.expected, Expected::File(_) | Expected::Directory(_) | Expected::Link(_))
}
