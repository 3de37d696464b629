//! The runs of `apply` and `rollback`: a new apply, an interrupted one, and one before services start.

use super::host::{ApplyRun, failed};
use crate::{
    apply::{
        Applied, ApplyConfigs, ApplyError, HostApplyError, HostRunEnd, NewConfig, ProposedApply, ResumeLimit,
    },
    cli::{
        exit::{DRIFT, FAILURE, IN_SYNC, NOT_RECONCILABLE},
        output::{Screen, say},
    },
};

impl ApplyRun<'_> {
    pub(super) fn configs(&self, mut wanted: NewConfig<'_>) -> anyhow::Result<ApplyConfigs> {
        let dry_run = self.options.dry_run;
        // Printing what an empty config would remove is allowed.
        let is_allowed = wanted.allow_empty;
        wanted.allow_empty |= dry_run;
        let configs = self.runtime.block_on(self.host.configs(wanted, dry_run, &mut say)).map_err(failed)?;
        if configs.removes_everything() && !is_allowed {
            say(&format!("hint: {}", HostApplyError::Empty));
        }
        Ok(configs)
    }

    pub(in crate::cli) fn rollback_configs(&self, to: Option<u64>) -> anyhow::Result<ApplyConfigs> {
        self.runtime.block_on(self.host.rollback_configs(to, self.options.dry_run, &mut say)).map_err(failed)
    }

    /// Applies a config, or prints its plan for a dry run.
    pub(in crate::cli) fn apply(&self, screen: &mut Screen, configs: ApplyConfigs) -> anyhow::Result<u8> {
        let ended = if self.options.dry_run {
            self.host.dry_run(&configs, &mut say)
        } else {
            let consent = |proposed: &ProposedApply<'_>| self.consent(screen, proposed);
            self.runtime.block_on(self.host.run(configs, self.options.consent(), consent, &mut say))
        };
        match ended {
            Ok(HostRunEnd::Planned { plan, forced, is_open }) => {
                Ok(self.print(screen, &plan, forced, is_open)?)
            }
            Ok(HostRunEnd::Refused) => Ok(DRIFT),
            Ok(HostRunEnd::Reported(report)) => self.report(screen, &report),
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
        let resumed = async { self.host.resume(ResumeLimit::Unlimited, &mut say).await };
        let report = self.runtime.block_on(resumed).map_err(failed)?;
        self.report(screen, &report)
    }
}
