//! From looks to verdicts, and to what follows from them.
//!
//! In: things that are due, answers of other processes, the mount table. Out: verdicts, declared state written back.

use super::backend::Changes;
use super::diff::Sources;
use super::error::AgentError;
use super::reports::AgentEvent;
use super::revert::{RevertError, still_declared};
use super::state::Agent;
use super::verdicts::Verdicts;
use super::verifier::{LookResult, Looked};
use super::workers::WorkerEvent;
use super::write_back::{Wanted, WrittenBack};
use sensor_model::drift_policy::DriftAction;
use sensor_model::protocol::{Finding, Scope};
use sensor_model::record::RecordKind;
use std::time::Duration;

/// Things looked at before the loop turns to new records again.
const LOOKS_A_TURN: usize = 64;

impl Agent {
    /// Looks at what is due, and reports the results as one group.
    pub(super) async fn turn(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        self.follow_mounts(changes)?;
        self.blindness.follow_devices(&mut self.verdicts);
        self.looks.follow_workers(&mut self.verdicts);
        let due = self.verdicts.detector.due(self.verdicts.now(), LOOKS_A_TURN);
        for id in due {
            let began = self.verdicts.now();
            let seen = match self.looks.looker.look(id, &self.verdicts.desired).await? {
                Looked::Seen(seen) => *seen,
                Looked::Served(served) => {
                    self.looks.ask_worker(id, served, &mut self.verdicts);
                    continue;
                }
            };
            let took = Duration::from_nanos(self.verdicts.now().saturating_sub(began));
            self.verdicts.reports.report(AgentEvent::ThingVerified(took));
            self.looked(id, seen, changes)?;
        }
        // The diffs come first, since writing back removes what they show.
        self.add_diffs();
        self.revert().await;
        self.finish_verification();
        let has_writers = self.verdicts.detector.needs_rw_hook();
        self.hooks.follow_writers(has_writers, self.verdicts.now(), &mut *self.verdicts.reports);
        self.write();
        // Other tasks run between two turns of a long verification.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Reaches a verdict on what a look saw.
    pub(super) fn looked(
        &mut self,
        id: u32,
        mut seen: LookResult,
        changes: &mut Changes,
    ) -> Result<(), AgentError> {
        if !seen.differences.is_empty() && !self.excuse(id, &mut seen) {
            // Another config is current by now: this one's differences are no news.
            return Ok(());
        }
        let now = self.verdicts.now();
        self.read_before_verdict(changes)?;
        if seen.differences.is_empty() || self.mounts.announced.are_shown() {
            self.follow_mounts(changes)?;
        } else {
            // The look may have seen a mount whose record arrived before it took effect.
            self.compare_mounts(changes)?;
        }
        self.looks.answered(id, &mut self.verdicts);
        self.verdicts.conclude(id, &seen, now, &mut self.looks.looker);
        Ok(())
    }

    /// Accepts a step of an apply for what it is. `false` when another config is current: by that one the thing may have
    /// drifted, have recovered or be a step, so this run reaches no verdict.
    fn excuse(&mut self, id: u32, seen: &mut LookResult) -> bool {
        let expectation = &self.verdicts.desired.expectations[id as usize];
        let is_step = self.follow.excuses(expectation, &seen.observation);
        if self.follow.has_moved() {
            self.begin_again();
            return false;
        }
        // A thing that had drifted before the apply began stays drifted until the apply has written it.
        let is_earlier =
            self.verdicts.open_drift(id).is_some_and(|open| open.differences == seen.differences);
        if is_step && !is_earlier {
            seen.differences.clear();
            seen.outcome.finding = Finding::Compliant { untouched: false };
        }
        true
    }

    /// A process that looks answered, or cannot any more.
    pub(super) async fn worker_answered(
        &mut self,
        event: WorkerEvent,
        changes: &mut Changes,
    ) -> Result<(), AgentError> {
        match event {
            WorkerEvent::Answer(id, answer, was_there) => {
                let observer = &self.looks.looker.observer;
                let path = self.verdicts.desired.expectations[id as usize].thing.path();
                if was_there && observer.is_served(&path) {
                    // The look itself may have mounted something there (autofs).
                    observer.mounts_changed();
                }
                if was_there && !observer.is_served(&path) {
                    // The path lies on no such file system now, so this process looks at it.
                    let now = self.verdicts.now();
                    self.verdicts.unanswered(id, now);
                    return Ok(());
                }
                let seen = self.looks.looker.answered(id, &self.verdicts.desired, *answer).await?;
                self.looked(id, seen, changes)
            }
            WorkerEvent::Failed(things) => {
                for id in things {
                    self.looks.not_answered(id, &mut self.verdicts);
                }
                Ok(())
            }
        }
    }

    /// Compares the mount table with the last one, and has everything looked at that a difference touches. Not only after a
    /// record: some system calls that change mounts fire no hook.
    pub(super) fn compare_mounts(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        let Some(table) = self.mounts.read(&mut self.verdicts) else { return Ok(()) };
        if table.has_btrfs() {
            self.looks.learn_volumes()?;
        }
        let points = self.mounts.differences(&table);
        if !points.is_empty() {
            self.looks.looker.observer.mounts_changed();
            // The records that name who mounted there arrived before the mounts took effect.
            self.read_before_verdict(changes)?;
        }
        let looker = &mut self.looks.looker;
        self.mounts.compared(table, &points, &self.options.inputs.root, looker, &mut self.verdicts);
        Ok(())
    }

    /// Compares the mount table when that is due.
    fn follow_mounts(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        if self.mounts.is_due(self.verdicts.now()) { self.compare_mounts(changes) } else { Ok(()) }
    }

    fn add_diffs(&mut self) {
        let Verdicts { clock, desired, records, diffs, .. } = &mut self.verdicts;
        let sources =
            Sources { source: &self.options.inputs.source, desired, observer: &self.looks.looker.observer };
        diffs.add(records, &sources, &**clock);
    }

    /// Writes back everything that is due.
    async fn revert(&mut self) {
        for id in self.verdicts.reverts.due(self.verdicts.now()) {
            if self.verdicts.open_drift(id).is_none_or(|open| open.action != Some(DriftAction::Revert)) {
                self.verdicts.reverts.done(id);
                continue;
            }
            if self.follow.concerns(&self.verdicts.desired.expectations[id as usize].thing) {
                // The apply writes it; two writers would undo each other's work.
                continue;
            }
            let result = self.restore(id).await;
            let name = self.verdicts.name(id);
            let path = name.path.clone();
            let mut record = self.verdicts.new_record(RecordKind::Reverted);
            record.before = self.verdicts.open_drift(id).and_then(|open| open.found.clone());
            record.set_name(name);
            record.operation = Some("revert".to_owned());
            record.source = Some(self.verdicts.source(id));
            match &result {
                Ok(written) => {
                    record.differences.clone_from(&written.before);
                    record.detail.insert("actions".into(), written.actions.clone().into());
                    self.verdicts.reports.report(AgentEvent::Reverted(&path, Ok(())));
                }
                Err(error) => {
                    record.detail.insert("error".into(), error.to_string().into());
                    self.verdicts.reports.report(AgentEvent::Reverted(&path, Err(error)));
                }
            }
            self.verdicts.records.push(record);
            // The open of the daemon's own look cleared the dirty bit. The next look finds what was written meanwhile.
            let now = self.verdicts.now();
            self.verdicts.detector.recheck(Scope::Thing(id), now);
        }
    }

    async fn restore(&mut self, id: u32) -> Result<WrittenBack, RevertError> {
        let expectation = &self.verdicts.desired.expectations[id as usize];
        // Contents are not kept in memory: they are read again, and have to be the same.
        let config = still_declared(expectation, &self.options.inputs.source)?;
        let (observer, ids) = (&self.looks.looker.observer, &self.verdicts.desired.ids);
        let wanted = Wanted { observer, config: &config, expectation, ids };
        Ok(self.write_back.write_back(wanted).await?)
    }
}
