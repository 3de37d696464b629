//! `holdfast apply`: applies a config to this host.

mod consent;
pub(super) mod host;
pub mod options;
mod run;
mod show_plan;
mod show_report;

use super::output::Screen;
use host::ApplyRun;
use options::{ApplyFlags, ConfigOptions, HostOptions};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Apply {
    #[command(flatten)]
    configs: ConfigOptions,
    /// Finish an interrupted apply or restore the old config, with a reboot where that needs one; start nothing new.
    #[arg(long, conflicts_with_all = ["dry_run", "force", "current"])]
    resume: bool,
    /// With `--resume`: only write again the files that an update of the OS replaced. For the unit that runs before services.
    #[arg(long, requires = "resume")]
    early: bool,
    #[command(flatten)]
    options: ApplyFlags,
    #[command(flatten)]
    host_options: HostOptions,
}

impl Apply {
    /// Plans, asks, applies and reports.
    ///
    /// # Errors
    /// Bad input, and why the apply did not start. Later failures are in the report.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let run = ApplyRun::open(&self.host_options, &self.options, screen)?;
        if self.early {
            return run.rewrite_overwritten();
        }
        if self.resume {
            return run.resume(screen);
        }
        let configs = run.configs(self.configs.wanted())?;
        run.apply(screen, configs)
    }
}
