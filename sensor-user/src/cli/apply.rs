//! `holdfast apply`: applies a config to this host.

pub(super) mod configs;
mod consent;
pub mod options;
pub(super) mod report;
mod run;
mod show_plan;

use super::output::Screen;
use configs::Configs;
use options::{How, Place, Site};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Apply {
    #[command(flatten)]
    configs: Configs,
    /// Finish an interrupted apply or restore the old config, with a reboot where that needs one; start nothing new.
    #[arg(long, conflicts_with_all = ["dry_run", "force", "current"])]
    resume: bool,
    /// With `--resume`: only write again the files that an update of the OS replaced. For the unit that runs before services.
    #[arg(long, requires = "resume")]
    early: bool,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    place: Place,
}

impl Apply {
    /// Plans, asks, applies and reports.
    ///
    /// # Errors
    /// Bad input, and why the apply did not start. The report has what happened later.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let site = Site::open(&self.place, &self.how, screen)?;
        if self.early {
            return site.put_again();
        }
        if self.resume {
            return site.resume(screen);
        }
        let wanted = self.configs.wanted(&site)?;
        site.apply(screen, wanted)
    }
}
