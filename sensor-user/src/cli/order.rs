//! `holdfast order`: plans and applies a config that the node's reporter handed in, and writes back, for the daemon.

use super::exit::{FAILURE, IN_SYNC, runtime};
use super::output::{Screen, say};
use crate::apply::{Interrupts, RevertHost, plan_order, run_order, run_reverts};
use crate::desired::NamedSources;
use anyhow::Context as _;
use std::path::PathBuf;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Order {
    /// What to do with it.
    #[arg(value_enum)]
    what: What,
    /// Root of the host's file system.
    #[arg(long, value_name = "DIRECTORY")]
    host_root: PathBuf,
    /// State directory.
    #[arg(long, value_name = "DIRECTORY")]
    state: PathBuf,
    /// The daemon's configs, for `revert`.
    #[arg(long, value_name = "PATH")]
    config: Vec<PathBuf>,
    /// The daemon's drift policies, for `revert`.
    #[arg(long, value_name = "PATH")]
    policy: Vec<PathBuf>,
    /// A path with files of Holdfast itself, for `revert`.
    #[arg(long, value_name = "PATH")]
    own: Vec<PathBuf>,
}

/// What to do with an order.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum What {
    /// Print the plan of the config that was handed in last.
    Plan,
    /// Apply the config that was ordered last.
    Run,
    /// Write back what drifted under a `revert` rule.
    Revert,
}

impl Order {
    /// Plans, applies or writes back.
    ///
    /// # Errors
    /// There is no order, or its result cannot be kept.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        match self.what {
            What::Plan => {
                let answer = runtime()?.block_on(plan_order(&self.host_root, &self.state));
                screen.json(&answer)?;
                Ok(IN_SYNC)
            }
            What::Run => {
                // It has a runtime of its own, so it comes first.
                let interrupts = Interrupts::heed(say).context("take signals")?;
                let run = run_order(&self.host_root, &self.state, interrupts, say);
                let is_done = runtime()?.block_on(run)?;
                Ok(if is_done { IN_SYNC } else { FAILURE })
            }
            What::Revert => {
                let sources = NamedSources {
                    root: self.host_root.clone(),
                    state: Some(self.state.clone()),
                    configs: self.config.clone(),
                    policies: self.policy.clone(),
                    // The daemon refused such configs, or accepted them by an option of its own.
                    allow_unknown: true,
                };
                let host = RevertHost { sources, own: self.own.clone() };
                let is_done = runtime()?.block_on(run_reverts(&host))?;
                Ok(if is_done { IN_SYNC } else { FAILURE })
            }
        }
    }
}
