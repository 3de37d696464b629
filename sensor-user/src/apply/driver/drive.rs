//! The loop that carries out the requests of the journal's machine.
//!
//! In: a machine. Out: how it ended. `sensor_model::journal` decides the order of the requests, and its model checker checks it.

use super::state::{ApplyNotes, Driver, NO_OS, NOT_BY_SOFT, ResumeLimit, WRITTEN, failed};
use crate::{
    apply::{
        act_runner::{ActResult, ActRunner, UndoResult, UnitAfterBoot},
        error::ApplyError,
        request::Progress,
        verify::{Differences, HostComparer},
    },
    store::AppendError,
};
use sensor_model::{
    journal::{
        JournalRecord,
        machine::{MachineAnswer, MachineEnd, MachineRequest},
    },
    node_state::{Milestone, Wait},
};

impl Driver<'_> {
    /// Works until the machine has ended. If there is no comparer, the comparison fails with its error.
    pub(in crate::apply) async fn drive(
        &mut self,
        runner: &mut dyn ActRunner,
        mut comparer: Result<HostComparer<'_>, ApplyError>,
        notes: &mut dyn ApplyNotes,
        progress: Progress<'_>,
    ) -> MachineEnd {
        while let Some(request) = self.machine.next() {
            if let Some(end) = self.stops(&request, notes) {
                return end;
            }
            if self.journal.is_some() && self.daemon.is_due(&request) {
                self.notify_daemon(notes, &mut *progress).await;
            }
            self.note_wait(&request, notes);
            if let Some(line) = self.line(&request) {
                progress(&line);
            }
            let was_going_back = self.machine.is_going_back();
            let must_observe = was_going_back || self.machine.writes_overwritten();
            let interrupted = self.interrupts.and_then(|asked| asked.before(&request, must_observe));
            let outcome = match request {
                _ if let Some(reason) = interrupted => MachineAnswer::Failed(reason),
                MachineRequest::Begin => {
                    let begun = self.begin();
                    if begun == MachineAnswer::Done {
                        notes.reached(Milestone::Begun, "", WRITTEN);
                        self.waits = Some((Wait::Files, WRITTEN.to_owned()));
                    }
                    begun
                }
                MachineRequest::Append(record) => {
                    if matches!(record, JournalRecord::Written | JournalRecord::RolledBack { .. }) {
                        // Acts may create users, which takes the same lock.
                        self.shadow = None;
                    }
                    match self.make_durable(&record) {
                        Ok(()) => self.append(&record),
                        Err(error) => failed(error),
                    }
                }
                MachineRequest::Observe(target) => {
                    self.observe(target).map_or_else(failed, MachineAnswer::Observed)
                }
                MachineRequest::Edit(number, edit) => match self.before_edit(number, edit, notes).await {
                    Ok(()) => match self.edit(number, edit) {
                        // A daemon that started during the edit refused it. The next observation shows how far it came.
                        MachineAnswer::Failed(_)
                            if self.daemon.is_due(&request)
                                && self.notify_daemon(notes, &mut *progress).await =>
                        {
                            MachineAnswer::Done
                        }
                        answer => answer,
                    },
                    Err(error) => failed(error),
                },
                // After another boot the unit has started with the new files. A job would conflict with the boot's own jobs.
                MachineRequest::Act(act) | MachineRequest::Await(act) if self.awaits(&request) => {
                    self.unit_after_boot(runner, act).await
                }
                MachineRequest::Act(act) | MachineRequest::Await(act) => {
                    match runner.act(&self.begin.acts[act], self.begin).await {
                        Ok(ActResult::Done) => MachineAnswer::Done,
                        Ok(ActResult::Skipped(reason)) => MachineAnswer::Skipped(reason),
                        Err(error) => failed(error),
                    }
                }
                MachineRequest::Undo(act) if self.limit == ResumeLimit::NoOsChange && self.is_of_os(act) => {
                    self.refused_os_change = true;
                    MachineAnswer::Failed(NO_OS.to_owned())
                }
                MachineRequest::Undo(act) => match runner.undo(&self.begin.acts[act], self.begin).await {
                    Ok(UndoResult::Done) => MachineAnswer::Done,
                    Ok(UndoResult::NeedsReboot) => MachineAnswer::NeedsReboot,
                    Err(error) => failed(error),
                },
                MachineRequest::Reboot => {
                    let why = match self.machine.failure() {
                        _ if was_going_back => {
                            format!("a reboot restores the old OS: {}", self.machine.reason())
                        }
                        Some(failure) => failure.to_owned(),
                        None => "the new config needs a reboot".to_owned(),
                    };
                    notes.reached(Milestone::RebootRequested, &why, "the reboot");
                    runner.reboot().await.map_or_else(failed, |()| MachineAnswer::Done)
                }
                MachineRequest::Verify => match &mut comparer {
                    Ok(comparer) => {
                        let Differences { problems, tolerated } = comparer.compare().await;
                        self.tolerated = tolerated;
                        if problems.is_empty() {
                            MachineAnswer::Done
                        } else {
                            MachineAnswer::Failed(problems.join("; "))
                        }
                    }
                    Err(error) => MachineAnswer::Failed(format!("the new config cannot be read: {error}")),
                },
                MachineRequest::VerifyBack => {
                    let checked = self.begin.os.as_ref().map_or(Ok(()), |change| runner.is_back(change));
                    checked.map_or_else(failed, |()| MachineAnswer::Done)
                }
                MachineRequest::Commit(ended) => {
                    notes.commit(ended, &self.machine).map_or_else(failed, |()| MachineAnswer::Done)
                }
                MachineRequest::Close => self.close().map_or_else(failed, |()| MachineAnswer::Done),
            };
            match &outcome {
                MachineAnswer::Failed(reason) | MachineAnswer::Broken(reason) => {
                    progress(&format!("failed: {reason}"));
                }
                MachineAnswer::Skipped(reason) => progress(reason),
                _ => {}
            }
            self.machine.answer(outcome);
            if self.machine.is_going_back() && !was_going_back {
                progress(&format!("rolling back: {}", self.machine.reason()));
            }
        }
        let end = self.machine.end().cloned().unwrap_or(MachineEnd::Halted("no next step".to_owned()));
        self.note_halt(&end, notes);
        end
    }

    /// The end of the apply, if its limit does not allow the request.
    fn stops(&mut self, request: &MachineRequest, notes: &mut dyn ApplyNotes) -> Option<MachineEnd> {
        if self.limit == ResumeLimit::BeforeServices && !self.machine.writes_overwritten() {
            return Some(self.machine.halted("the daemon or `holdfast apply --resume` continues the apply"));
        }
        match request {
            MachineRequest::Reboot if self.limit != ResumeLimit::Unlimited => {
                let not_by = if self.booted_since() { NOT_BY_SOFT } else { "" };
                notes.waits(
                    Wait::Reboot,
                    &format!("a reboot, which `holdfast apply --resume` asks for{not_by}"),
                );
                let needed = format!("a reboot is needed; `holdfast apply --resume` asks for it{not_by}");
                Some(self.machine.halted(&needed))
            }
            MachineRequest::Act(act) if self.limit == ResumeLimit::NoOsChange && self.is_of_os(*act) => {
                let end = self.machine.halted(NO_OS);
                self.refused_os_change = true;
                self.note_halt(&end, notes);
                Some(end)
            }
            _ => None,
        }
    }

    /// Notifies the daemon before anything is written. Gives whether a daemon answered.
    async fn notify_daemon(&mut self, notes: &mut dyn ApplyNotes, progress: Progress<'_>) -> bool {
        let waits = &mut self.waits;
        let mut note = |what: &str| {
            notes.waits(Wait::Daemon, what);
            *waits = None;
        };
        self.daemon.notify(self.begin.id, &mut note, progress).await
    }

    /// Reads the state of an act's unit after a boot. If it cannot be read, the apply stops here, and the next start reads it
    /// again.
    async fn unit_after_boot(&self, runner: &mut dyn ActRunner, act: usize) -> MachineAnswer {
        let unit = self.begin.acts[act].unit.as_deref().unwrap_or_default();
        match runner.unit_after_boot(&self.begin.acts[act], self.begin).await {
            Ok(UnitAfterBoot::Settled) => MachineAnswer::Done,
            Ok(UnitAfterBoot::Failed(failure)) => {
                MachineAnswer::Failed(format!("after the reboot: {unit}: {failure}"))
            }
            Err(error) => MachineAnswer::Broken(format!("the state after the reboot is not known: {error}")),
        }
    }

    fn begin(&mut self) -> MachineAnswer {
        // The Machine Config Operator's daemon may have started since the preflight.
        if let Err(error) = self.mco.check() {
            return failed(error);
        }
        match self.store.begin_journal(&JournalRecord::Begin(Box::new(self.begin.clone()))) {
            Ok(journal) => {
                self.journal = Some(journal);
                MachineAnswer::Done
            }
            Err(error) => failed(error),
        }
    }

    fn append(&mut self, record: &JournalRecord) -> MachineAnswer {
        let Some(journal) = &mut self.journal else { return MachineAnswer::Broken("no journal".to_owned()) };
        match journal.append(record) {
            Ok(()) => MachineAnswer::Done,
            Err(AppendError::Clean(error)) => failed(error),
            Err(AppendError::Broken(error)) => MachineAnswer::Broken(error.to_string()),
        }
    }

    fn close(&mut self) -> Result<(), ApplyError> {
        if self.journal.is_some() {
            // Without the journal nothing restores the current link, the history and the originals.
            self.store.sync()?;
        }
        self.store.remove_journal()?;
        self.journal = None;
        // The next apply removes contents that stay, and only root can read them.
        if let Err(error) = self.store.forget_contents() {
            tracing::warn!(%error, "The contents of an apply that has ended cannot be removed from the store.");
        }
        Ok(())
    }
}
