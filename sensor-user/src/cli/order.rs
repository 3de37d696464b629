//! `holdfast order`: plans and applies a config that the node's reporter handed in, for the daemon.

use super::exit::{FAILURE, IN_SYNC, runtime};
use super::output::{Screen, say};
use crate::apply::{Interrupts, plan_order, run_order};
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
}

/// What to do with an order.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum What {
    /// Print the plan of the config that was handed in last.
    Plan,
    /// Apply the config that was ordered last.
    Run,
}

impl Order {
    /// Plans or applies.
    ///
    /// # Errors
    /// There is no order.
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
        }
    }
}
