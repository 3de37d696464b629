//! Doing what the journal's machine asks for.
//!
//! In: a machine and the records on which it rests. Out: how it ended. Each request is one step; what the machine decides is in
//! `sensor_model::journal` and is checked there.

use super::state::{DaemonNotice, NO_OS, NOT_BY_SOFT, Progress, ResumeLimit, Run, RunNotes, WRITTEN, failed};
use crate::{
    apply::{
        act_runner::{ActResult, ActRunner, UndoResult, UnitAfterBoot},
        error::ApplyError,
        tie::{self, Hello, Tie},
        verify::{Differences, Verifier},
    },
    store::AppendError,
};
use sensor_model::{
    journal::{
        Record,
        machine::{Outcome, Request, Rest},
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
    ) -> Rest {
        while let Some(request) = self.machine.next() {
            if let Some(rest) = self.leaves(&request, ending) {
                return rest;
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
                _ if let Some(reason) = interrupted => Outcome::Failed(reason),
                Request::Begin => {
                    let begun = self.begin();
                    if begun == Outcome::Done {
                        ending.happened(NodeEvent::Begun, "", WRITTEN);
                        self.waits = Some((Wait::Files, WRITTEN.to_owned()));
                    }
                    begun
                }
                Request::Append(record) => {
                    if matches!(record, Record::Written | Record::RolledBack { .. }) {
                        // Acts may create users, which takes the same lock.
                        self.shadow = None;
                    }
                    match self.make_durable(&record) {
                        Ok(()) => self.append(&record),
                        Err(error) => failed(error),
                    }
                }
                Request::Look(target) => self.look(target).map_or_else(failed, Outcome::Sight),
                Request::Step(number, step) => match self.before_step(number, step, ending).await {
                    Ok(()) => self.step(number, step),
                    Err(error) => failed(error),
                },
                // Units of another boot started with the new files already. A job now would only conflict with the boot's
                // own jobs.
                Request::Act(act) | Request::Await(act) if self.awaits(&request) => {
                    self.unit_after_boot(actor, act).await
                }
                Request::Act(act) | Request::Await(act) => {
                    match actor.act(&self.begin.acts[act], self.begin).await {
                        Ok(ActResult::Done) => Outcome::Done,
                        Ok(ActResult::Skipped(reason)) => Outcome::Skipped(reason),
                        Err(reason) => Outcome::Failed(reason),
                    }
                }
                Request::Undo(act) if self.reach == ResumeLimit::NoOsChange && self.is_of_os(act) => {
                    self.refused_os_change = true;
                    Outcome::Failed(NO_OS.to_owned())
                }
                Request::Undo(act) => match actor.undo(&self.begin.acts[act], self.begin).await {
                    Ok(UndoResult::Done) => Outcome::Done,
                    Ok(UndoResult::NeedsReboot) => Outcome::NeedsReboot,
                    Err(reason) => Outcome::Failed(reason),
                },
                Request::Reboot => {
                    let why = match self.machine.failure() {
                        _ if was_going_back => {
                            format!("the old OS comes back with a reboot: {}", self.machine.reason())
                        }
                        Some(failure) => failure.to_owned(),
                        None => "the new config needs a reboot".to_owned(),
                    };
                    ending.happened(NodeEvent::RebootRequested, &why, "the reboot");
                    match actor.reboot().await {
                        Ok(()) => Outcome::Done,
                        Err(reason) => Outcome::Failed(reason),
                    }
                }
                Request::Verify => match &mut verifier {
                    Ok(verifier) => {
                        let Differences { problems, tolerated } = verifier.verify().await;
                        self.tolerated = tolerated;
                        if problems.is_empty() { Outcome::Done } else { Outcome::Failed(problems.join("; ")) }
                    }
                    Err(reason) => Outcome::Failed(format!("the new config cannot be read: {reason}")),
                },
                Request::VerifyBack => match self.begin.os.as_ref().map(|change| actor.is_back(change)) {
                    None | Some(Ok(())) => Outcome::Done,
                    Some(Err(reason)) => Outcome::Failed(reason),
                },
                Request::Commit(ended) => {
                    ending.commit(ended, &self.machine).map_or_else(failed, |()| Outcome::Done)
                }
                Request::Close => self.close().map_or_else(failed, |()| Outcome::Done),
            };
            match &outcome {
                Outcome::Failed(reason) | Outcome::Broken(reason) => progress(&format!("failed: {reason}")),
                Outcome::Skipped(reason) => progress(reason),
                _ => {}
            }
            self.machine.answer(outcome);
            if self.machine.is_going_back() && !was_going_back {
                progress(&format!("going back: {}", self.machine.reason()));
            }
        }
        let rest = self.machine.rest().cloned().unwrap_or(Rest::Halted("no next step".to_owned()));
        self.note_halt(&rest, ending);
        rest
    }

    /// The end of the apply where it may not go on; `None` where it may.
    fn leaves(&mut self, request: &Request, ending: &mut dyn RunNotes) -> Option<Rest> {
        if self.reach == ResumeLimit::BeforeServices && !self.machine.puts_again() {
            return Some(
                self.machine.halted("the rest is left to the daemon or to `holdfast apply --resume`"),
            );
        }
        match request {
            Request::Reboot if self.reach != ResumeLimit::None => {
                let not_by = if self.booted_since() { NOT_BY_SOFT } else { "" };
                ending.waits(
                    Wait::Reboot,
                    &format!("a reboot, which `holdfast apply --resume` asks for{not_by}"),
                );
                let needed = format!("a reboot is needed; `holdfast apply --resume` asks for it{not_by}");
                Some(self.machine.halted(&needed))
            }
            Request::Act(act) if self.reach == ResumeLimit::NoOsChange && self.is_of_os(*act) => {
                let rest = self.machine.halted(NO_OS);
                self.refused_os_change = true;
                self.note_halt(&rest, ending);
                Some(rest)
            }
            _ => None,
        }
    }

    /// Notifies the daemon before anything is written, so that it watches the paths.
    async fn notify_daemon(&mut self, ending: &mut dyn RunNotes, progress: Progress<'_>) {
        let (Some(_), DaemonNotice::Due(state)) = (&self.journal, &self.daemon) else { return };
        if tie::socket(state).exists() {
            ending.waits(
                Wait::Daemon,
                &format!("the daemon to watch it, {} s at most", tie::PATIENCE.as_secs()),
            );
            self.waits = None;
        }
        let hello = Hello { apply: Some(self.begin.id), ..Hello::default() };
        let tie = Tie::make(state, &hello, &mut *progress).await;
        self.daemon = DaemonNotice::Sent { _tie: tie };
    }

    /// Reads the state of an act's unit after a boot. Where it cannot be read, the apply neither goes on nor rolls back: the next
    /// start reads it again.
    async fn unit_after_boot(&self, actor: &mut dyn ActRunner, act: usize) -> Outcome {
        match actor.unit_after_boot(&self.begin.acts[act], self.begin).await {
            Ok(UnitAfterBoot::Settled) => Outcome::Done,
            Ok(UnitAfterBoot::Failed(reason)) => Outcome::Failed(format!("after the reboot: {reason}")),
            Err(reason) => Outcome::Broken(format!("nobody can tell what the reboot made of {reason}")),
        }
    }

    fn begin(&mut self) -> Outcome {
        // The preflight took a while, and the operator's daemon may have started since.
        if let Some(reason) = self.mco.refuses() {
            return Outcome::Failed(reason);
        }
        match self.store.begin(&Record::Begin(Box::new(self.begin.clone()))) {
            Ok(journal) => {
                self.journal = Some(journal);
                Outcome::Done
            }
            Err(error) => failed(error),
        }
    }

    fn append(&mut self, record: &Record) -> Outcome {
        let Some(journal) = &mut self.journal else { return Outcome::Broken("no journal".to_owned()) };
        match journal.append(record) {
            Ok(()) => Outcome::Done,
            Err(AppendError::Clean(error)) => failed(error),
            Err(AppendError::Broken(error)) => Outcome::Broken(error.to_string()),
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
