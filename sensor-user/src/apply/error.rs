//! Why a config was not applied.

use super::operator::OperatorDaemon;
use crate::{
    desired::DesiredError,
    disk::{DiskError, KEPT},
    repair::{RepairError, UnknownOwner},
    store::StoreError,
    sys::CallError,
};
use sensor_model::expectations::ExpectationError;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Why a config was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// An edit would destroy or guess something, or is impossible.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: ApplyRefusal,
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

/// Why an edit is refused. No text has content in it.
#[derive(Debug, thiserror::Error)]
pub enum ApplyRefusal {
    /// Not even the root can be opened.
    #[error("no directory above it can be opened")]
    NoOpenDirectory,
    /// The declared owner does not exist.
    #[error(transparent)]
    UnknownOwner(#[from] UnknownOwner),
    /// A person cannot check what a forced apply would remove.
    #[error(
        "more than {KEPT} names in it are not declared, too many to show before they are removed; remove them first"
    )]
    TooManyNames,
    /// Another writer of the shadow file does not end.
    #[error("another process has kept it locked for {} s; wait for its end, and apply again", .0.as_secs())]
    KeptLocked(Duration),
    /// The host has no shadow file.
    #[error("a config declares password hashes, and this file is missing")]
    NoShadow,
    /// The directory of a target disappeared after the plan was made.
    #[error("another process removed its directory")]
    DirectoryRemoved,
    /// Neither the old nor the new object can be kept.
    #[error("another process changed it, and the directory is not empty; move one of the two away first")]
    ChangedAndFull,
    /// The directory of ssh keys has no home.
    #[error("the user's home directory is missing")]
    NoHome,
    /// A directory of a new object is a link that leads nowhere.
    #[error("a link to a missing target is in its place; remove it first")]
    DanglingLink,
    /// A directory of a new object is another object.
    #[error("it or one of its parents is not a directory; move it away first")]
    NotADirectory,
    /// Only a file can have a hard link.
    #[error("the target of the hard link, {}, is not a file", .0.display())]
    HardLinkToOther(PathBuf),
    /// A unit that the config enables cannot be.
    #[error("it cannot be enabled: {0}")]
    NotEnabled(Box<RepairError>),
    /// A directory that another type replaces has an object that no config declares.
    #[error(
        "a directory that is not empty is in its place; move it away first, or this object in it: {}",
        .0.display()
    )]
    ObjectStays(PathBuf),
}

/// The number of the current config.
fn number(current: Option<u64>) -> String {
    current.map_or_else(|| "none".to_owned(), |id| format!("number {id}"))
}

impl ApplyError {
    pub(super) fn refused(path: &Path, reason: impl Into<ApplyRefusal>) -> Self {
        Self::Refused { path: path.to_owned(), reason: reason.into() }
    }
}
