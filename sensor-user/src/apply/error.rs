//! Why a config was not applied.

use super::operator::OperatorDaemon;
use crate::{desired::DesiredError, disk::DiskError, store::StoreError, sys::CallError};
use sensor_model::expectations::ExpectationError;
use std::path::{Path, PathBuf};

/// Why a config was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A step would destroy or guess something, or is impossible.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// What stands in the way.
        reason: String,
    },
    /// The kernel refused an operation.
    #[error(transparent)]
    Failed(#[from] CallError),
    /// A managed path could not be read or written.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The store could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A config in the store cannot be read.
    #[error("{}: {error}", path.display())]
    Config {
        /// The directory of its manifests.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<DesiredError>,
    },
    /// A config whose contents cannot be decoded.
    #[error("{0}")]
    Expectation(ExpectationError),
    /// The config cannot be reconciled with a running node.
    #[error("the config is not reconcilable: {}", .0.join("; "))]
    Unreconcilable(Vec<String>),
    /// The node has drifted from its current config, or another condition for an apply is missing.
    #[error("preflight: {}", .0.join("; "))]
    Preflight(Vec<String>),
    /// Another process applies a config.
    #[error("another apply is at work; its lock is {}", .0.display())]
    Locked(PathBuf),
    /// Another apply ended after the plan was made.
    #[error("another config became current meanwhile ({}); apply again, from that one", number(*.0))]
    Overtaken(Option<u64>),
    /// An earlier apply was neither finished nor rolled back.
    #[error("an earlier apply is not over: number {id}: {reason}")]
    Unfinished {
        /// Its number.
        id: u64,
        /// Why it did not end.
        reason: String,
    },
    /// An earlier apply was interrupted, and a repair does not finish it.
    #[error(
        "an earlier apply is not over: number {0}; `holdfast apply --resume` finishes it or restores the old config"
    )]
    Interrupted(u64),
    /// An earlier apply was interrupted, and the Machine Config Operator's daemon manages the host.
    #[error("an earlier apply is not over: {0}")]
    Operator(#[from] OperatorDaemon),
}

/// The number of the current config.
fn number(current: Option<u64>) -> String {
    current.map_or_else(|| "none".to_owned(), |id| format!("number {id}"))
}

impl ApplyError {
    pub(super) fn refused(path: &Path, reason: impl Into<String>) -> Self {
        Self::Refused { path: path.to_owned(), reason: reason.into() }
    }
}
