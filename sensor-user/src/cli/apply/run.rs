//! Runs of an apply: a new one, an interrupted one, and one before services start.

use super::{
    configs::Wanted,
    options::{NO_DRAIN, Site},
    report::{Outcome, Report},
    show_plan::left_out,
};
use crate::{
    apply::{Applied, ApplyError, ApplyRequest, Differences, NoActs, Recovered, ResumeLimit},
    cli::{
        exit::{DRIFT, FAILURE, IN_SYNC, NOT_RECONCILABLE, runtime},
        output::{Screen, say},
    },
};
use anyhow::Context as _;
use sensor_model::{journal::machine::MachineEnd, merge::Rendered, plan::Plan};
use std::fs;

impl Site<'_> {
    pub(in crate::cli) fn apply(&self, screen: &mut Screen, wanted: Wanted) -> anyhow::Result<u8> {
        let Wanted { manifests, old, previous, new, rollback_to } = wanted;
        let force = self.forced();
        let plan = self.plan(&old, &new)?;
        if self.how.dry_run {
            let open = self.store()?.map(|store| store.open_journal()).transpose()?.flatten();
            if let Some(journal) = &open {
                let id = journal.begin.id;
                say(&format!(
                    "note: apply number {id} was interrupted; Holdfast finishes it or restores the old config first"
                ));
            }
            return self.print(screen, &plan, open.is_some());
        }
        if plan.is_empty() && !force && previous.is_some() {
            return self.unchanged(screen, &new, previous, plan);
        }
        // The engine refuses a plan that is not reconcilable, with all its reasons.
        if plan.reconcilable && !self.may_begin(screen, &plan)? {
            return Ok(DRIFT);
        }
        if plan.drain {
            say(&format!("note: the plan has a drain; {NO_DRAIN}"));
        }
        if self.how.no_acts
            && let Some(left) = left_out(&plan)
        {
            say(&left);
        }
        let act = !self.how.no_acts;
        let request =
            ApplyRequest { manifests, old, previous, new, plan: plan.clone(), force, act, rollback_to };
        let applied = runtime()?.block_on(async {
            let mut actor = self.actor().await;
            self.engine()?.apply(request, actor.as_mut(), &mut say).await
        });
        match applied {
            Ok(applied) => {
                let force_file = self.force_file();
                if force_file.exists() {
                    // The file asks for one rewrite.
                    fs::remove_file(&force_file)
                        .with_context(|| format!("remove {}", force_file.display()))?;
                }
                self.told(screen, &applied, Some(plan))
            }
            Err(error @ ApplyError::Unreconcilable(_)) => {
                say(&format!("error: {error}"));
                Ok(NOT_RECONCILABLE)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Both configs are equal; the host may still differ from them.
    fn unchanged(
        &self,
        screen: &mut Screen,
        new: &Rendered,
        previous: Option<u64>,
        plan: Plan,
    ) -> anyhow::Result<u8> {
        let engine = self.engine()?;
        let found = runtime()?.block_on(engine.confirm(new, previous, !self.how.no_acts))?;
        let result = if found.problems.is_empty() { Outcome::Unchanged } else { Outcome::Drifted };
        let Differences { problems, tolerated } = found;
        self.report(screen, Report { problems, tolerated, plan: Some(plan), ..Report::of(result) })
    }

    /// Finishes an interrupted apply or restores the old config, without a reboot. A dry run does nothing.
    pub(in crate::cli) fn recover(&self) -> anyhow::Result<()> {
        if self.how.dry_run {
            return Ok(());
        }
        let engine = self.engine()?;
        let recovered = runtime()?.block_on(async {
            let mut actor = self.actor().await;
            engine.recover(actor.as_mut(), ResumeLimit::NoReboot, &mut say).await
        })?;
        match recovered {
            Recovered::AtWork => Err(ApplyError::Locked(engine.store().path().join("lock")).into()),
            Recovered::Over(Applied {
                end: MachineEnd::Rebooting | MachineEnd::Halted(_),
                id,
                reason,
                ..
            }) => Err(ApplyError::Unfinished { id, reason }.into()),
            Recovered::Over(_) | Recovered::Nothing => match self.interrupts.reason() {
                Some(reason) => Err(anyhow::anyhow!("{reason}; no new apply was started")),
                None => Ok(()),
            },
        }
    }

    /// Writes again what an update of the OS replaced. It runs before the bus and the daemon start.
    pub(super) fn put_again(&self) -> anyhow::Result<u8> {
        if self.store()?.is_none() {
            return Ok(IN_SYNC);
        }
        let engine = self.engine()?;
        let recovered =
            runtime()?.block_on(engine.recover(&mut NoActs, ResumeLimit::BeforeServices, &mut say))?;
        match recovered {
            Recovered::Nothing => Ok(IN_SYNC),
            // The daemon or `--resume` reports the error, and restores the old config.
            Recovered::Over(applied) => Ok(if applied.rolls_back { FAILURE } else { IN_SYNC }),
            Recovered::AtWork => Err(ApplyError::Locked(engine.store().path().join("lock")).into()),
        }
    }

    pub(super) fn resume(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let engine = self.engine()?;
        let recovered = runtime()?.block_on(async {
            let mut actor = self.actor().await;
            engine.recover(actor.as_mut(), ResumeLimit::Unlimited, &mut say).await
        })?;
        match recovered {
            Recovered::Nothing => self.report(screen, Report::of(Outcome::Unchanged)),
            Recovered::Over(applied) => self.told(screen, &applied, None),
            Recovered::AtWork => Err(ApplyError::Locked(engine.store().path().join("lock")).into()),
        }
    }
}
