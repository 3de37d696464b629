//! `holdfast rollback`: applies an earlier config again.

use super::{
    apply::{
        host::ApplyRun,
        options::{ApplyFlags, HostOptions},
    },
    output::Screen,
};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Rollback {
    /// Number of the apply whose config is applied again; see `holdfast history`. [default: the one before the current one]
    #[arg(long, value_name = "NUMBER")]
    to: Option<u64>,
    #[command(flatten)]
    options: ApplyFlags,
    #[command(flatten)]
    host_options: HostOptions,
}

impl Rollback {
    /// Plans, asks, applies and reports, as for any other config.
    ///
    /// # Errors
    /// There is no such config, and why the apply did not start.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let run = ApplyRun::open(&self.host_options, &self.options, screen)?;
        let configs = run.rollback_configs(self.to)?;
        run.apply(screen, configs)
    }
}
