//! Doing what the journal's machine asks for.
//!
//! In: a machine and the records on which it rests. Out: how it ended. Each request is one step; what the machine decides is in
//! `sensor_model::journal` and is checked there.

use super::state::{DaemonNotice, NO_OS, NOT_BY_SOFT, Progress, ResumeLimit, Run, RunNotes, WRITTEN, failed};
use crate::{
    apply::{
        act_runner::{ActResult, ActRunner, UndoResult, UnitAfterBoot},
        error::ApplyError,
        verify::{Differences, Verifier},
        writer_protocol::{self, WriterAnnouncement, WriterConnection},
    },
    store::AppendError,
};
use sensor_model::{
    journal::{
        JournalRecord,
        machine::{MachineAnswer, MachineEnd, MachineRequest},
    },
    node_state::{NodeEvent, Wait},
};

impl Run<'_> {
    /// Works until the machine has ended. Without a verifier the comparison fails, with this reason.
    pub(in crate::apply) async fn drive(
        &mut self,
        actor: &mut dyn ActRunner,
        mut verifier: Result<Verifier<'_>, String>,
        ending: &mut dyn RunNotes,
        progress: Progress<'_>,
    ) -> MachineEnd {
        while let Some(request) = self.machine.next() {
            if let Some(end) = self.leaves(&request, ending) {
                return end;
            }
            self.notify_daemon(ending, &mut *progress).await;
            self.tell_wait(&request, ending);
            if let Some(line) = self.line(&request) {
                progress(&line);
            }
            let was_going_back = self.machine.is_going_back();
            let no_look = was_going_back || self.machine.puts_again();
            let interrupted = self.interrupts.and_then(|asked| asked.before(&request, no_look));
            let outcome = match request {
                _ if let Some(reason) = interrupted => MachineAnswer::Failed(reason),
                MachineRequest::Begin => {
                    let begun = self.begin();
                    if begun == MachineAnswer::Done {
                        ending.happened(NodeEvent::Begun, "", WRITTEN);
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
                    self.look(target).map_or_else(failed, MachineAnswer::Observed)
                }
                MachineRequest::Step(number, step) => match self.before_step(number, step, ending).await {
                    Ok(()) => self.step(number, step),
                    Err(error) => failed(error),
                },
                // Units of another boot started with the new files already. A job now would only conflict with the boot's
                // own jobs.
                MachineRequest::Act(act) | MachineRequest::Await(act) if self.awaits(&request) => {
                    self.unit_after_boot(actor, act).await
                }
                MachineRequest::Act(act) | MachineRequest::Await(act) => {
                    match actor.act(&self.begin.acts[act], self.begin).await {
                        Ok(ActResult::Done) => MachineAnswer::Done,
                        Ok(ActResult::Skipped(reason)) => MachineAnswer::Skipped(reason),
                        Err(reason) => MachineAnswer::Failed(reason),
                    }
                }
                MachineRequest::Undo(act) if self.reach == ResumeLimit::NoOsChange && self.is_of_os(act) => {
                    self.refused_os_change = true;
                    MachineAnswer::Failed(NO_OS.to_owned())
                }
                MachineRequest::Undo(act) => match actor.undo(&self.begin.acts[act], self.begin).await {
                    Ok(UndoResult::Done) => MachineAnswer::Done,
                    Ok(UndoResult::NeedsReboot) => MachineAnswer::NeedsReboot,
                    Err(reason) => MachineAnswer::Failed(reason),
                },
                MachineRequest::Reboot => {
                    let why = match self.machine.failure() {
                        _ if was_going_back => {
                            format!("the old OS comes back with a reboot: {}", self.machine.reason())
                        }
                        Some(failure) => failure.to_owned(),
                        None => "the new config needs a reboot".to_owned(),
                    };
                    ending.happened(NodeEvent::RebootRequested, &why, "the reboot");
                    match actor.reboot().await {
                        Ok(()) => MachineAnswer::Done,
                        Err(reason) => MachineAnswer::Failed(reason),
                    }
                }
                MachineRequest::Verify => match &mut verifier {
                    Ok(verifier) => {
                        let Differences { problems, tolerated } = verifier.verify().await;
                        self.tolerated = tolerated;
                        if problems.is_empty() {
                            MachineAnswer::Done
                        } else {
                            MachineAnswer::Failed(problems.join("; "))
                        }
                    }
                    Err(reason) => MachineAnswer::Failed(format!("the new config cannot be read: {reason}")),
                },
                MachineRequest::VerifyBack => {
                    match self.begin.os.as_ref().map(|change| actor.is_back(change)) {
                        None | Some(Ok(())) => MachineAnswer::Done,
                        Some(Err(reason)) => MachineAnswer::Failed(reason),
                    }
                }
                MachineRequest::Commit(ended) => {
                    ending.commit(ended, &self.machine).map_or_else(failed, |()| MachineAnswer::Done)
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
                progress(&format!("going back: {}", self.machine.reason()));
            }
        }
        let end = self.machine.end().cloned().unwrap_or(MachineEnd::Halted("no next step".to_owned()));
        self.note_halt(&end, ending);
        end
    }

    /// The end of the apply where it may not go on; `None` where it may.
    fn leaves(&mut self, request: &MachineRequest, ending: &mut dyn RunNotes) -> Option<MachineEnd> {
        if self.reach == ResumeLimit::BeforeServices && !self.machine.puts_again() {
            return Some(
                self.machine.halted("the rest is left to the daemon or to `holdfast apply --resume`"),
            );
        }
        match request {
            MachineRequest::Reboot if self.reach != ResumeLimit::None => {
                let not_by = if self.booted_since() { NOT_BY_SOFT } else { "" };
                ending.waits(
                    Wait::Reboot,
                    &format!("a reboot, which `holdfast apply --resume` asks for{not_by}"),
                );
                let needed = format!("a reboot is needed; `holdfast apply --resume` asks for it{not_by}");
                Some(self.machine.halted(&needed))
            }
            MachineRequest::Act(act) if self.reach == ResumeLimit::NoOsChange && self.is_of_os(*act) => {
                let end = self.machine.halted(NO_OS);
                self.refused_os_change = true;
                self.note_halt(&end, ending);
                Some(end)
            }
            _ => None,
        }
    }

    /// Notifies the daemon before anything is written, so that it watches the paths.
    async fn notify_daemon(&mut self, ending: &mut dyn RunNotes, progress: Progress<'_>) {
        let (Some(_), DaemonNotice::Due(state)) = (&self.journal, &self.daemon) else { return };
        if writer_protocol::socket(state).exists() {
            ending.waits(
                Wait::Daemon,
                &format!("the daemon to watch it, {} s at most", writer_protocol::PATIENCE.as_secs()),
            );
            self.waits = None;
        }
        let announcement = WriterAnnouncement { apply: Some(self.begin.id), ..WriterAnnouncement::default() };
        let connection = WriterConnection::announce(state, &announcement, &mut *progress).await;
        self.daemon = DaemonNotice::Sent { _connection: connection };
    }

    /// Reads the state of an act's unit after a boot. Where it cannot be read, the apply neither goes on nor rolls back: the next
    /// start reads it again.
    async fn unit_after_boot(&self, actor: &mut dyn ActRunner, act: usize) -> MachineAnswer {
        match actor.unit_after_boot(&self.begin.acts[act], self.begin).await {
            Ok(UnitAfterBoot::Settled) => MachineAnswer::Done,
            Ok(UnitAfterBoot::Failed(reason)) => MachineAnswer::Failed(format!("after the reboot: {reason}")),
            Err(reason) => MachineAnswer::Broken(format!("nobody can tell what the reboot made of {reason}")),
        }
    }

    fn begin(&mut self) -> MachineAnswer {
        // The preflight took a while, and the operator's daemon may have started since.
        if let Some(reason) = self.mco.refuses() {
            return MachineAnswer::Failed(reason);
        }
        match self.store.begin(&JournalRecord::Begin(Box::new(self.begin.clone()))) {
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
            // Nothing but the journal could restore the current link, the history and the originals.
            self.store.sync()?;
        }
        self.store.close()?;
        self.journal = None;
        // The next apply removes contents that stay, and only root can read them.
        if let Err(error) = self.store.forget_contents() {
            tracing::warn!(%error, "Contents of an apply that is over stay in the store.");
        }
        Ok(())
    }
}
