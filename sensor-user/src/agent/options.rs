//! The daemon's options.

use crate::desired::Inputs;
use std::path::PathBuf;
use std::time::Duration;

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Options {
    /// What declares the expected state, and how it is read. Its state directory also holds the canary file.
    pub inputs: Inputs,
    /// Directory of the canary file if it cannot be in the state directory.
    pub run: PathBuf,
    /// Where links and maps are pinned; `None` keeps nothing beyond the process.
    pub pins: Option<PathBuf>,
    /// Pause between full verifications.
    pub verify_every: Duration,
    /// Pause between canaries.
    pub canary_every: Duration,
}
