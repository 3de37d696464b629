//! What is asked of an apply: the host, the configs, the plan.

use sensor_model::{merge::Rendered, plan::Plan};
use std::path::PathBuf;

/// The host of an apply, and what it may do beside others.
#[derive(Debug, Clone)]
pub struct Options {
    /// The host's root directory.
    pub root: PathBuf,
    /// The state directory.
    pub state: PathBuf,
    /// Whether to write although the Machine Config Operator's daemon manages the node.
    pub beside_mco: bool,
    /// Whether to notify a running Holdfast daemon before anything is written, and to wait until it watches the paths.
    pub asks_daemon: bool,
}

/// What is to be applied.
#[derive(Debug)]
pub struct Request {
    /// The manifests by file name, as they were read.
    pub manifests: Vec<(String, Vec<u8>)>,
    /// The config that the host has.
    pub old: Rendered,
    /// The generation from which `old` was read; `None` where none is current.
    pub previous: Option<u64>,
    /// The config that it is to have.
    pub new: Rendered,
    /// The plan from one to the other.
    pub plan: Plan,
    /// Bring everything that is declared to its declared state, drift or not, and reboot.
    pub force: bool,
    /// Run the plan's acts, the reboot included; without them only files are written.
    pub act: bool,
    /// The generation that this apply rolls back to.
    pub rollback_to: Option<u64>,
}
