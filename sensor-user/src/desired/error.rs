//! Why the expected state cannot be read.
//!
//! Every text names the object, the field, the reason, and the next step if that is not obvious. Each text is complete: no cause
//! has to be printed after it.

use sensor_model::{
    drift_policy::DriftPolicyError,
    expectations::ExpectationError,
    machine_config::ManifestError,
    merge::MergeError,
    node_disruption::DisruptionPolicyError,
    pool::{PoolError, RenderError},
};
use serde::{Deserialize, Serialize};
use std::{
    io,
    path::{Path, PathBuf},
    process::ExitStatus,
};

/// Why the expected state cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DesiredError {
    /// A file or a directory cannot be read.
    #[error("read {}: {error}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A MachineConfig or an Ignition config has a mistake.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A disruption policy has a mistake.
    #[error(transparent)]
    DisruptionPolicy(#[from] DisruptionPolicyError),
    /// A MachineConfigPool has a mistake.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// MachineConfigs contradict each other.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// The content of something declared cannot be decoded.
    #[error(transparent)]
    Expectation(#[from] ExpectationError),
    /// A drift policy has a mistake.
    #[error(transparent)]
    DriftPolicy(#[from] DriftPolicyError),
    /// The files hold no config.
    #[error("no MachineConfig or Ignition config in {}{}", files.join(", "), found(others))]
    NoConfig {
        /// The files and directories.
        files: Vec<String>,
        /// The kinds and versions of the objects in them.
        others: Vec<String>,
    },
    /// No config is named, none was applied, and the service has none.
    #[error(
        "no configuration found: no config was applied yet, {} does not exist, and the Machine Config Operator's daemon stored none; name a config with --config PATH",
        .0.display()
    )]
    NoneOfService(PathBuf),
    /// A config that Holdfast chose by itself cannot be used.
    #[error("without --config, {chosen}: {error}")]
    Chosen {
        /// Which config Holdfast chose.
        chosen: String,
        /// What is wrong with it.
        error: Box<Self>,
    },
    /// A config that the store of applies keeps cannot be used.
    #[error("the config that is kept in {} cannot be used: {error}", path.display())]
    Generation {
        /// Its directory.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<Self>,
    },
    /// A policy applies to certain pools only, and the pool is not known.
    #[error(
        "{policy}: spec.pools: the policy applies to certain pools only, and neither the name nor the role of the new config \
         tells the node's pool; name it with --pool"
    )]
    UnknownPool {
        /// The file of the policy.
        policy: String,
    },
    /// Nothing declares a path.
    #[error("{}: no MachineConfig declares it, and no index of an image has it in full", .0.display())]
    NotDeclared(PathBuf),
    /// Only the closed directory of a path is declared.
    #[error(
        "{}: no MachineConfig declares it; `repair {}` removes everything in that directory that is not declared",
        path.display(),
        directory.display()
    )]
    OnlyItsDirectory {
        /// The path.
        path: PathBuf,
        /// Its directory.
        directory: PathBuf,
    },
    /// A pool cannot be rendered.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// There is no pool to render.
    #[error("no MachineConfigPool among the objects")]
    NoPool,
    /// There are several pools, and none is named.
    #[error("there are several pools; name one with --pool: {}", .0.join(", "))]
    SeveralPools(Vec<String>),
    /// The pool that is named does not exist.
    #[error("--pool: there is no pool {name:?}; the objects have: {}", pools.join(", "))]
    OtherPools {
        /// The name.
        name: String,
        /// The pools that exist.
        pools: Vec<String>,
    },
    /// Configs declare nothing after others that declared something.
    #[error(
        "the configs declare nothing, and the configs before them declared something; add `--allow-empty` if that is intended"
    )]
    DeclaresNothing,
    /// The process that reads the configs cannot use them.
    #[error(transparent)]
    Refused(#[from] RefusedConfigs),
    /// The process that reads the configs did not do its work.
    #[error("the process that reads the configs {0}")]
    Reader(ReaderError),
    /// The configs cannot be kept for a start that finds unusable ones.
    #[error("{operation} {}: {error}", path.display())]
    Keep {
        /// What was tried.
        operation: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// Why it failed.
        error: io::Error,
    },
}

/// Why the process that reads the configs cannot use them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
pub struct RefusedConfigs {
    /// File, field and reason.
    pub reason: String,
    /// The mistake is in the input, and not on the host.
    pub is_input: bool,
}

/// How the process that reads the configs failed.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// It has no output.
    #[error("has no output")]
    NoOutput,
    /// Its output ends too early.
    #[error("wrote less than it announced{}", after(.0.as_ref()))]
    Short(Option<ExitStatus>),
    /// Its output cannot be read.
    #[error("cannot be read: {error}{}", after(status.as_ref()))]
    Output {
        /// Why not.
        error: io::Error,
        /// How it ended, where it failed.
        status: Option<ExitStatus>,
    },
    /// It ended with an error.
    #[error("failed: {0}")]
    Failed(ExitStatus),
    /// It cannot be waited for.
    #[error("cannot be waited for: {0}")]
    Wait(io::Error),
}

fn found(others: &[String]) -> String {
    if others.is_empty() { String::new() } else { format!("; found {}", others.join(", ")) }
}

fn after(status: Option<&ExitStatus>) -> String {
    status.map(|status| format!(", and failed: {status}")).unwrap_or_default()
}

impl DesiredError {
    pub(super) fn read(path: &Path, error: io::Error) -> Self {
        Self::Read { path: path.to_owned(), error }
    }

    /// Whether the mistake is in a config, a policy or an argument, and not on the host.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Manifest(_)
            | Self::DisruptionPolicy(_)
            | Self::Pool(_)
            | Self::Merge(_)
            | Self::Expectation(_)
            | Self::DriftPolicy(_)
            | Self::NotDeclared(_)
            | Self::OnlyItsDirectory { .. }
            | Self::Render(_)
            | Self::NoPool
            | Self::SeveralPools(_)
            | Self::OtherPools { .. }
            | Self::UnknownPool { .. } => true,
            Self::Refused(refused) => refused.is_input,
            Self::Chosen { error, .. } => error.is_input(),
            Self::Read { .. }
            | Self::NoConfig { .. }
            | Self::NoneOfService(_)
            | Self::Generation { .. }
            | Self::DeclaresNothing
            | Self::Reader(_)
            | Self::Keep { .. } => false,
        }
    }
}

impl From<&DesiredError> for RefusedConfigs {
    fn from(error: &DesiredError) -> Self {
        Self { reason: error.to_string(), is_input: error.is_input() }
    }
}
