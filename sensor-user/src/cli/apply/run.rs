//! The runs of `apply` and `rollback`: a new apply, an interrupted one, and one before services start.

use super::{
    host::{ApplyRun, NO_DRAIN, failed},
    show_plan::left_out,
};
use crate::{
    apply::{Applied, ApplyConfigs, ApplyError, ApplyReport, HostApplyError, NewConfig},
    cli::{
        exit::{DRIFT, FAILURE, IN_SYNC, NOT_RECONCILABLE},
        output::{Screen, say},
    },
};

impl ApplyRun<'_> {
    pub(super) fn configs(&self, wanted: NewConfig<'_>) -> anyhow::Result<ApplyConfigs> {
        self.runtime.block_on(self.host.configs(wanted, self.options.dry_run, &mut say)).map_err(failed)
    }

    pub(in crate::cli) fn rollback_configs(&self, to: Option<u64>) -> anyhow::Result<ApplyConfigs> {
        self.runtime.block_on(self.host.rollback_configs(to, self.options.dry_run, &mut say)).map_err(failed)
    }

    /// Applies a config, or prints its plan for a dry run.
    pub(in crate::cli) fn apply(&self, screen: &mut Screen, configs: ApplyConfigs) -> anyhow::Result<u8> {
        let plan = self.host.plan(&configs).map_err(failed)?;
        if self.options.dry_run {
            let interrupted = self.host.interrupted().map_err(failed)?;
            if let Some(id) = interrupted {
                say(&format!(
                    "note: apply number {id} was interrupted; Holdfast finishes it or restores the old config first"
                ));
            }
            return self.print(screen, &plan, configs.forced, interrupted.is_some());
        }
        if self.host.is_unchanged(&configs, &plan) {
            let found = self.runtime.block_on(self.host.confirm(&configs)).map_err(failed)?;
            return self.report(screen, &ApplyReport::unchanged(found, plan, self.host.state()));
        }
        // The engine refuses a plan that is not reconcilable, with all its reasons.
        if plan.reconcilable && !self.may_begin(screen, &plan, configs.forced)? {
            return Ok(DRIFT);
        }
        if plan.drain {
            say(&format!("note: the plan has a drain; {NO_DRAIN}"));
        }
        if self.options.no_acts
            && let Some(left) = left_out(&plan)
        {
            say(&left);
        }
        match self.runtime.block_on(self.host.apply(configs, plan.clone(), &mut say)) {
            Ok(applied) => self.report(screen, &ApplyReport::of(applied, Some(plan), self.host.state())),
            Err(error @ HostApplyError::Apply(ApplyError::Unreconcilable(_))) => {
                say(&format!("error: {error}"));
                Ok(NOT_RECONCILABLE)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Writes again what an update of the OS replaced. It runs before the bus and the daemon start.
    pub(super) fn rewrite_overwritten(&self) -> anyhow::Result<u8> {
        // The daemon or `--resume` reports the error, and restores the old config.
        Ok(match self.runtime.block_on(self.host.rewrite_overwritten(&mut say)).map_err(failed)? {
            Some(Applied { rolls_back: true, .. }) => FAILURE,
            _ => IN_SYNC,
        })
    }

    /// Finishes an interrupted apply or restores the old config, with a reboot if that needs one.
    pub(super) fn resume(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let applied = self.runtime.block_on(self.host.resume(&mut say)).map_err(failed)?;
        let report = match applied {
            None => ApplyReport::nothing_to_resume(self.host.state()),
            Some(applied) => ApplyReport::of(applied, None, self.host.state()),
        };
        self.report(screen, &report)
    }
}
