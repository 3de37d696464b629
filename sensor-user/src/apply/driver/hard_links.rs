//! Hard links of targets.
//!
//! In: a target. Out: a name of the file to which the target is to be linked; and a report of files whose names were separated.

use super::state::Driver;
use crate::{
    apply::{
        error::ApplyError,
        hard_link_finder::{names, state},
    },
    disk::Place,
};
use sensor_model::journal::{ApplyEnd, FileState, PathState, target_edit::Side};
use std::path::Path;

impl Driver<'_> {
    /// A name of the file to which a target is to be linked, if the file has that state. In a rollback the file may still have its
    /// temporary name.
    pub(super) fn same_file(&self, number: usize, side: Side) -> Result<Option<Place>, ApplyError> {
        let targets = &self.begin.targets;
        let wanted = state(self.target(number), side);
        let PathState::File(FileState { hard: Some(of), .. }) = wanted else { return Ok(None) };
        let mut places = vec![Place::find(self.observer.root(), of)?];
        for (other, target) in targets.iter().enumerate().filter(|(other, _)| *other != number) {
            let PathState::File(FileState { hard, .. }) = state(target, side) else { continue };
            let shares = |path: &Path| hard.as_deref() == Some(path);
            if target.path == *of || shares(of) || shares(&self.target(number).path) {
                let place = self.place(target)?;
                if side == Side::Before {
                    let beside = self.place(target)?;
                    places.push(beside.map(|place| Place { name: self.temporary(other), ..place }));
                }
                places.push(place);
            }
        }
        for place in places.into_iter().flatten() {
            if place.see()?.state.is_some_and(|seen| wanted.is(&seen)) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Files that had more names before Holdfast wrote them than they have now.
    pub(in crate::apply) fn separated(&self, ended: ApplyEnd) -> Vec<String> {
        let side = if ended == ApplyEnd::Done { Side::After } else { Side::Before };
        let mut problems = Vec::new();
        for target in &self.begin.targets {
            let PathState::File(FileState { names: had @ 2.., .. }) = state(target, side) else { continue };
            let path = target.path.display();
            // The comparison reports a path that cannot be read.
            let Ok(Some(place)) = self.place(target) else { continue };
            let Ok(Some((_, has))) = names(&place) else { continue };
            if has < *had {
                problems.push(format!(
                    "{path}: its hard links were separated: it was one of {had} names of a file, and that file has {has} now"
                ));
            }
        }
        problems
    }
}
