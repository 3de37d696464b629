//! The daemon's options.
//!
//! In: values from the command line. Out: the same, for the whole daemon. No state.

use crate::desired::Inputs;
use std::path::PathBuf;
use std::time::Duration;

/// The values from the command line.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// The sources of the expected state, and how the daemon reads them. Its state directory also holds the canary file.
    pub inputs: Inputs,
    /// Directory of the canary file if it cannot be in the state directory.
    pub run: PathBuf,
    /// The directory in which links and maps are pinned. `None`: nothing outlives the process.
    pub pins: Option<PathBuf>,
    /// Pause between full verifications.
    pub verify_every: Duration,
    /// Pause between canaries.
    pub canary_every: Duration,
    /// Whether the daemon itself writes managed paths. If not, an interrupted apply stays. Drift under a `revert` rule stays too, unless
    /// another process writes back ([`super::ordered_reverts::RevertOrders`]).
    pub writes_managed_paths: bool,
}
