//! The continuation of an interrupted apply.
//!
//! In: the journal. Out: the apply is finished or rolled back. If the journal was changed, nothing is written.

use super::{
    notes::StoreNotes,
    present_boot::rebooted,
    rollback::OldAndNew,
    state::{Engine, Recovered},
};
use crate::{
    apply::{
        act_runner::ActRunner,
        driver::{ApplyNotes as _, Driver, ResumeLimit},
        error::ApplyError,
        interrupts::Interrupts,
        operator::Mco,
        os_update,
        request::Progress,
    },
    desired::{self, StateSource, Unknown},
    store,
};
use sensor_model::{
    journal::{ApplyEnd, machine::Machine},
    merge::Rendered,
    node_state::Milestone,
};

impl Engine {
    /// Finishes an interrupted apply or rolls it back.
    ///
    /// # Errors
    /// The journal was changed; nothing is written then.
    pub async fn recover(
        &self,
        runner: &mut dyn ActRunner,
        limit: ResumeLimit,
        progress: Progress<'_>,
    ) -> Result<Recovered, ApplyError> {
        let _under_way = self.interrupts.as_ref().map(Interrupts::begin);
        let Some(_lock) = self.store.lock()? else { return Ok(Recovered::AtWork) };
        self.recover_locked(runner, limit, progress).await
    }

    pub(super) async fn recover_locked(
        &self,
        runner: &mut dyn ActRunner,
        limit: ResumeLimit,
        progress: Progress<'_>,
    ) -> Result<Recovered, ApplyError> {
        let Some(parsed) = self.store.open_journal()? else {
            if limit != ResumeLimit::BeforeServices {
                self.tidy()?;
            }
            return Ok(Recovered::Nothing);
        };
        let begin = parsed.begin.clone();
        let mco = Mco::of(&self.options).or_allowed(begin.beside_mco);
        mco.check()?;
        progress(&format!("an earlier apply (number {}) was interrupted", begin.id));
        let journal = self.store.continue_journal(&parsed)?;
        let mut notes = StoreNotes::new(self, &begin);
        let boot = self.boot(runner).await;
        if limit != ResumeLimit::BeforeServices && rebooted(&parsed, &boot) {
            notes.reached(Milestone::Booted, "", "the comparison after the reboot");
        }
        let again = os_update::targets(&self.observer, &begin.overwritten);
        let machine = Machine::resume(&begin, &parsed.records, &boot).with_shipped(&again);
        // Before services start, only paths that an OS update replaced are written, and nothing is noted.
        if limit == ResumeLimit::BeforeServices && !machine.writes_overwritten() {
            return Ok(Recovered::Nothing);
        }
        let driver =
            Driver { journal: Some(journal), limit, mco, ..self.start(&begin, &again, &boot, machine) };
        // A rollback needs only the journal. An apply whose config cannot be read is rolled back.
        let stored;
        let new = match self.rendered_of(begin.id) {
            Ok(rendered) => {
                stored = rendered;
                Ok(&stored)
            }
            Err(error) => Err(error),
        };
        let configs = OldAndNew { old: begin.previous.map(|id| self.rendered_of(id)).transpose(), new };
        // The future is large, and boxing keeps the daemon's futures small.
        let applied = Box::pin(self.drive_to_end(driver, configs, runner, &mut notes, progress)).await;
        Ok(Recovered::Over(applied))
    }

    /// Removes what a killed process left in the store before it began a journal or after it closed one. Without a journal no
    /// apply is in progress.
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
            .map_err(|error| ApplyError::Config { path, error: Box::new(error) })
    }
}
