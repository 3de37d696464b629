//! Going on with an apply that was interrupted.
//!
//! In: the journal. Out: the apply finished or rolled back, or left as it is where the journal cannot be relied on.

use super::{
    boot::rebooted,
    host::{Engine, Recovered},
    notes::StoreNotes,
    rollback::Configs,
};
use crate::{
    apply::{
        act_runner::ActRunner,
        error::ApplyError,
        interrupts::Interrupts,
        os_update,
        preflight::Mco,
        run::{DaemonNotice, Progress, ResumeLimit, Run, RunNotes as _, changing},
    },
    desired::{self, StateSource, Unknown},
    store,
};
use sensor_model::{
    journal::{ApplyEnd, machine::Machine},
    merge::Rendered,
    node_state::NodeEvent,
};

impl Engine {
    /// Finishes an interrupted apply or rolls it back.
    ///
    /// # Errors
    /// The journal was changed; nothing is written then.
    pub async fn recover(
        &self,
        actor: &mut dyn ActRunner,
        reach: ResumeLimit,
        progress: Progress<'_>,
    ) -> Result<Recovered, ApplyError> {
        let _under_way = self.interrupts.as_ref().map(Interrupts::begin);
        let Some(_lock) = self.store.lock()? else { return Ok(Recovered::AtWork) };
        self.recover_locked(actor, reach, progress).await
    }

    pub(super) async fn recover_locked(
        &self,
        actor: &mut dyn ActRunner,
        reach: ResumeLimit,
        progress: Progress<'_>,
    ) -> Result<Recovered, ApplyError> {
        let Some(parsed) = self.store.open_journal()? else {
            if reach != ResumeLimit::BeforeServices {
                self.tidy()?;
            }
            return Ok(Recovered::Nothing);
        };
        let begin = parsed.begin.clone();
        let mco = Mco::of(&self.options).or_allowed(begin.beside_mco);
        if let Some(reason) = mco.refuses() {
            return Err(ApplyError::Unfinished(reason));
        }
        progress(&format!("an earlier apply (number {}) was interrupted", begin.id));
        let journal = self.store.go_on(&parsed)?;
        let mut ending = StoreNotes::new(self, &begin);
        let boot = self.boot(actor).await;
        if reach != ResumeLimit::BeforeServices && rebooted(&parsed, &boot) {
            ending.happened(NodeEvent::Booted, "", "the comparison after the reboot");
        }
        let again = os_update::targets(&self.observer, &begin.put_again);
        let machine = Machine::resume(&begin, &parsed.records, &boot).with_image(&again);
        // Before services start nothing else is written or noted.
        if reach == ResumeLimit::BeforeServices && !machine.puts_again() {
            return Ok(Recovered::Nothing);
        }
        let run = Run {
            observer: &self.observer,
            store: &self.store,
            begin: &begin,
            again: &again,
            machine,
            journal: Some(journal),
            shadow: None,
            reach,
            boot: &boot,
            daemon: DaemonNotice::of(&self.options),
            mco,
            waits: None,
            unsynced: true,
            refused_os_change: false,
            changing: changing(&begin),
            interrupts: self.interrupts.as_ref(),
            tolerated: Vec::new(),
        };
        // A rollback needs only the journal. An apply whose config cannot be read is rolled back.
        let rendered = self.rendered_of(begin.id).map_err(|error| error.to_string());
        let old = begin.previous.map(|id| self.rendered_of(id)).transpose();
        let old = old.map_err(|error| error.to_string());
        let configs = Configs { old, new: rendered.as_ref().map_err(Clone::clone) };
        // The future is large, and boxing keeps the daemon's futures small.
        let applied = Box::pin(self.drive(run, configs, actor, &mut ending, progress)).await;
        Ok(Recovered::Over(applied))
    }

    /// Without a journal no apply is in progress. Removes what a process left that died before it began a journal or after it
    /// closed one.
    fn tidy(&self) -> Result<(), ApplyError> {
        self.store.forget_new_journal()?;
        self.store.forget_contents()?;
        if self.store.standing()?.is_some_and(|standing| standing.wait.is_some()) {
            store::note_wait(&self.store, None)?;
        }
        for id in self.store.generations()? {
            if let Some(mut entry) = self.store.history(id)?
                && entry.result.is_none()
            {
                entry.result = Some(ApplyEnd::Abandoned);
                self.store.set_history(id, &entry)?;
            }
        }
        Ok(())
    }

    /// The merged manifests of a generation.
    fn rendered_of(&self, id: u64) -> Result<Rendered, ApplyError> {
        let path = self.store.config(id);
        let source = StateSource::applied((id, path.clone()).into());
        desired::rendered(&source, Unknown::Ignore)
            .map_err(|error| ApplyError::refused(&path, error.to_string()))
    }
}
