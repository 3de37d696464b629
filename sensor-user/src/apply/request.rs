//! The request for an apply: the host, the configs, the plan.
//!
//! In: what [`super::host_apply`] read and planned. Out: the same, for the engine.

use sensor_model::{merge::Rendered, plan::Plan};
use std::path::PathBuf;

/// Receives a line for each request that people are to see.
pub(super) type Progress<'a> = &'a mut dyn FnMut(&str);

/// When Holdfast writes on a node that the Machine Config Operator's daemon manages, or managed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OperatorRule {
    /// Neither while that daemon runs, nor while it may start: its stored config exists.
    #[default]
    Never,
    /// Not while it runs. Holdfast takes the node over from it.
    TakeOver,
    /// Also beside it.
    Beside,
}

/// The host of an apply, and how it treats other daemons.
#[derive(Debug, Clone)]
pub struct ApplyOptions {
    /// The host's root directory.
    pub root: PathBuf,
    /// The state directory.
    pub state: PathBuf,
    /// When to write on a node of the Machine Config Operator's daemon.
    pub operator: OperatorRule,
    /// Whether to notify a running Holdfast daemon before anything is written, and to wait until it watches the paths.
    pub asks_daemon: bool,
}

/// A request for an apply.
#[derive(Debug)]
pub struct ApplyRequest {
    /// The manifests by file name, as they were read.
    pub manifests: Vec<(String, Vec<u8>)>,
    /// The present config of the host.
    pub old: Rendered,
    /// The generation from which `old` was read; `None` if none is current.
    pub previous: Option<u64>,
    /// The new config.
    pub new: Rendered,
    /// The plan from one to the other.
    pub plan: Plan,
    /// Write all declared paths, also drifted ones, and reboot.
    pub force: bool,
    /// Run the plan's acts and the reboot. Otherwise only files are written.
    pub act: bool,
    /// The generation that this apply rolls back to.
    pub rollback_to: Option<u64>,
}
