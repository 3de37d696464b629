//! The node's state and the history, kept up to date with the journal.
//!
//! In: the milestones of an apply. Out: the node's state, the current config, originals, the history. An apply continues if the node's
//! state cannot be written; the log has the error.

use super::state::Engine;
use crate::{
    apply::{driver::ApplyNotes, error::ApplyError},
    clock::rfc3339,
    store::{self, OverwrittenEntry},
};
use jiff::Timestamp;
use sensor_model::{
    journal::{ApplyEnd, Begin, Original, Target, machine::Machine},
    node_state::{Milestone, Wait},
};
use std::{collections::BTreeSet, path::PathBuf};

/// Writes the notes of one apply to the store.
pub(super) struct StoreNotes<'a> {
    engine: &'a Engine,
    begin: &'a Begin,
}

impl<'a> StoreNotes<'a> {
    pub(super) fn new(engine: &'a Engine, begin: &'a Begin) -> Self {
        Self { engine, begin }
    }

    /// Adds the differences that were found after the end to the history.
    pub(super) fn found(&self, problems: &[String]) {
        if problems.is_empty() {
            return;
        }
        let store = &self.engine.store;
        let noted = store.history(self.begin.id).and_then(|entry| {
            let Some(mut entry) = entry else { return Ok(()) };
            entry.problems.extend(problems.iter().cloned());
            store.set_history(self.begin.id, &entry)?;
            if entry.result == Some(ApplyEnd::RolledBack) {
                let reason = [&[entry.reason.clone()][..], &entry.problems].concat().join("; ");
                let id = Some(self.begin.id);
                store::note_milestone(store, Milestone::RolledBack, id, &reason, "", Timestamp::now())?;
            }
            Ok(())
        });
        if let Err(error) = noted {
            tracing::error!(%error, "Cannot write the differences after an apply to the history.");
        }
    }
}

impl ApplyNotes for StoreNotes<'_> {
    fn reached(&mut self, milestone: Milestone, reason: &str, waiting_for: &str) {
        let (store, id) = (&self.engine.store, Some(self.begin.id));
        if let Err(error) = store::note_milestone(store, milestone, id, reason, waiting_for, Timestamp::now())
        {
            tracing::error!(%error, "Cannot write the node's state.");
        }
    }

    fn waits(&mut self, wait: Wait, what: &str) {
        self.engine.waits(Some((wait, what)));
    }

    fn note_overwritten(&mut self, target: &Target) -> Result<(), ApplyError> {
        let store = &self.engine.store;
        let Some(mut entry) = store.history(self.begin.id)? else { return Ok(()) };
        if entry.overwritten.iter().all(|known| known.path != target.path) {
            let (time, found) = (rfc3339(Timestamp::now()), target.before.noun().to_owned());
            entry.overwritten.push(OverwrittenEntry {
                path: target.path.clone(),
                time,
                found,
                is_recorded: false,
            });
            store.set_history(self.begin.id, &entry)?;
        }
        Ok(())
    }

    fn commit(&mut self, ended: ApplyEnd, machine: &Machine) -> Result<(), ApplyError> {
        let store = &self.engine.store;
        if ended == ApplyEnd::Done {
            let [unmanaged, shipped]: [BTreeSet<&PathBuf>; 2] =
                [&self.begin.unmanaged, &self.begin.shipped].map(|paths| paths.iter().collect());
            for target in &self.begin.targets {
                if unmanaged.contains(&target.path) {
                    store.keep_original(&Original {
                        path: target.path.clone(),
                        state: target.before.clone(),
                        shipped: shipped.contains(&target.path),
                    })?;
                }
            }
            for original in &self.begin.matching {
                store.keep_original(original)?;
            }
            for path in &self.begin.released {
                store.forget_original(path)?;
            }
            store.set_current(self.begin.id)?;
        }
        if let Some(mut entry) = store.history(self.begin.id)? {
            entry.ended = Some(rfc3339(Timestamp::now()));
            entry.result = Some(ended);
            machine.reason().clone_into(&mut entry.reason);
            entry.problems = machine.problems().to_vec();
            store.set_history(self.begin.id, &entry)?;
        }
        match ended {
            ApplyEnd::Done => self.reached(Milestone::Verified, "", ""),
            ApplyEnd::RolledBack => {
                let mut reason = machine.reason().to_owned();
                for problem in machine.problems() {
                    reason = format!("{reason}; {problem}");
                }
                self.reached(Milestone::RolledBack, &reason, "");
            }
            ApplyEnd::Abandoned => {}
        }
        Ok(())
    }
}
