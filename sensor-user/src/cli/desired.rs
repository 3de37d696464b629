//! `holdfast desired`: what the daemon asks of a process of its own; nothing for people.

use super::{IN_SYNC, USAGE, exit_code, output::Screen, told};
use crate::desired::{
    self,
    apart::{Refused, give},
};
use crate::observation::Observer;
use std::path::PathBuf;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Read {
    /// MachineConfig manifests or Ignition configs: files, or directories of them.
    #[arg(long, value_name = "PATH")]
    config: Vec<PathBuf>,
    /// Drift policies: files, or directories of them.
    #[arg(long, value_name = "PATH")]
    policy: Vec<PathBuf>,
    /// Root of the host's file system.
    #[arg(long, value_name = "DIRECTORY")]
    host_root: PathBuf,
    /// Where it is kept which kernel arguments wait for the next boot.
    #[arg(long, value_name = "DIRECTORY")]
    state: PathBuf,
    /// Warn of unknown fields in configs instead of refusing them.
    #[arg(long)]
    allow_unknown: bool,
    /// Where what was read is kept as the last that could be used.
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
    /// Keep it also where it declares nothing.
    #[arg(long)]
    keep_nothing: bool,
}

impl Read {
    /// Writes what is desired, or why that cannot be said.
    ///
    /// # Errors
    /// Nobody takes it.
    pub fn run(self, screen: &mut Screen) -> anyhow::Result<u8> {
        let read = || {
            let observer = Observer::guarded(&self.host_root)?;
            let inputs = desired::Inputs {
                configs: &self.config,
                policies: &self.policy,
                state: &self.state,
                unknown: desired::Unknown::allowed(self.allow_unknown),
                keep: self.keep.as_deref(),
                keep_nothing: self.keep_nothing,
            };
            desired::load(&inputs, &observer)
        };
        let refused =
            |error: &anyhow::Error| Refused { reason: told(error), is_input: exit_code(error) == USAGE };
        give(read().map_err(|error| refused(&error)), screen.writer())?;
        Ok(IN_SYNC)
    }
}
