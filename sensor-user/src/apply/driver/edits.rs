//! Observations and edits of targets.
//!
//! In: a target's number. Out: the objects of its path and its temporary name, or the result of one edit. No edit waits.

use super::{
    replaced_directories,
    state::{Driver, failed},
};
use crate::{
    apply::{
        error::{ApplyError, ApplyRefusal},
        hard_link_finder::{self, state},
    },
    disk::{self, NameRemoval, ObjectIdentity, Place},
};
use sensor_model::journal::{
    FileState, PathState, Target,
    machine::MachineAnswer,
    target_edit::{Side, TargetEdit, TargetState},
};
use std::ffi::OsStr;

impl Driver<'_> {
    /// Observes a target and its temporary name.
    pub(super) fn observe(&self, number: usize) -> Result<TargetState, ApplyError> {
        let target = self.target(number);
        let absent = |state: &PathState| *state == PathState::Absent;
        let Some(place) = self.place(target)? else {
            let side = match (absent(&target.before), absent(&target.after)) {
                (true, _) => Some(Side::Before),
                (_, true) => Some(Side::After),
                _ => None,
            };
            return Ok(TargetState { path: side, between: false, temporary: None });
        };
        let name = self.temporary(number);
        place.remove_unfinished(&disk::part(&name))?;
        let path = place.see()?;
        let side = self.side(target, path.state.as_ref(), path.identity)?;
        let between = path.state.as_ref().is_some_and(|seen| target.is_between(seen));
        let beside = place.see_name(&name, &mut |_| {})?;
        let temporary = match &beside.state {
            Some(PathState::Absent) => None,
            state => Some(self.side(target, state.as_ref(), beside.identity)?),
        };
        Ok(TargetState { path: side, between, temporary })
    }

    /// The side of the apply to which an observed state belongs.
    fn side(
        &self,
        target: &Target,
        seen: Option<&PathState>,
        identity: Option<ObjectIdentity>,
    ) -> Result<Option<Side>, ApplyError> {
        let Some(seen) = seen else { return Ok(None) };
        // A new name for a file that another edit has restored already is still on this side.
        let before = target.before.is(seen);
        if target.after.is(seen) && (!before || self.is_linked(&target.after, identity)?) {
            return Ok(Some(Side::After));
        }
        Ok(before.then_some(Side::Before))
    }

    /// Whether an object is in fact the other name of a file that its state describes.
    fn is_linked(&self, state: &PathState, identity: Option<ObjectIdentity>) -> Result<bool, ApplyError> {
        let PathState::File(FileState { hard: Some(of), .. }) = state else { return Ok(true) };
        let Some(place) = Place::find(self.observer.root(), of)? else { return Ok(false) };
        Ok(place.see()?.identity == identity)
    }

    /// Carries out an edit of a target.
    pub(super) fn edit(&mut self, number: usize, edit: TargetEdit) -> MachineAnswer {
        self.unsynced = true;
        match self.try_edit(number, edit) {
            Ok(outcome) => outcome,
            // The next observation shows the object of the other process.
            Err(ApplyError::Disk(error)) if error.is_race() => MachineAnswer::Done,
            Err(error) => failed(error),
        }
    }

    fn try_edit(&self, number: usize, edit: TargetEdit) -> Result<MachineAnswer, ApplyError> {
        let target = self.target(number);
        let place = self
            .place(target)?
            .ok_or_else(|| ApplyError::refused(&target.path, ApplyRefusal::DirectoryRemoved))?;
        let name = self.temporary(number);
        match edit {
            TargetEdit::Make(side) => {
                self.make(&place, &name, number, side)?;
                return Ok(MachineAnswer::Done);
            }
            TargetEdit::Swap if target.turns() && replaced_directories::must_stay(target, &place, &name)? => {
                return Ok(MachineAnswer::Kept);
            }
            TargetEdit::Swap => place.swap(&name)?,
            TargetEdit::PutIn => place.put_in(&name)?,
            TargetEdit::TakeAway if place.is_directory(&place.name)? == Some(true) => {
                if place.take_away_directory()? == NameRemoval::NotEmpty {
                    return Ok(MachineAnswer::Kept);
                }
            }
            TargetEdit::TakeAway => place.take_away(&name)?,
            TargetEdit::Set(side) => {
                let file = place.open_directory()?;
                // No call sets attributes only if they are unchanged, so they are read again right before.
                let present = place.read_metadata(&file)?;
                if !target.is_between(&PathState::Directory(present)) {
                    return Ok(MachineAnswer::Done);
                }
                if let PathState::Directory(metadata) = state(target, side) {
                    place.set_metadata(&file, metadata)?;
                }
            }
            TargetEdit::Discard => {
                let is_directory = place.is_directory(&name)? == Some(true);
                match place.discard(&name, is_directory)? {
                    NameRemoval::Yes => {}
                    NameRemoval::NotEmpty if target.turns() => {
                        replaced_directories::swap_back(target, &place, &name)?;
                        return Ok(MachineAnswer::Kept);
                    }
                    NameRemoval::NotEmpty => return Err(place.not_empty().into()),
                }
            }
            TargetEdit::Finished | TargetEdit::Foreign => {}
        }
        place.sync_names()?;
        Ok(MachineAnswer::Done)
    }

    fn make(&self, place: &Place, name: &OsStr, number: usize, side: Side) -> Result<(), ApplyError> {
        let state = state(self.target(number), side);
        let hard = self.same_file(number, side)?;
        if hard.is_some() {
            match place.make(name, state, None, hard.as_ref()) {
                // If the names cannot be linked, the path gets a file of its own with the same content. The end of the apply
                // reports this.
                Err(error) if error.is_no_hard_link() && hard_link_finder::had(state) => {}
                made => return Ok(made?),
            }
        }
        let content = state.content().map(|sha256| self.store.content(sha256)).transpose()?;
        Ok(place.make(name, state, content.as_deref(), None)?)
    }
}
