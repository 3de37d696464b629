//! Drift policies and disruption policies.
//!
//! In: paths. Out: policies, merged.

use super::{
    cluster_policies::cluster_policies, error::DesiredError, files::Files, files::read, source::POLICIES,
};
use sensor_model::{
    drift_policy::{DriftPolicy, DriftPolicyFile},
    node_disruption::{DisruptionPolicy, DisruptionPolicyFile, PolicyScope},
};
use std::path::{Path, PathBuf};

/// The drift policy that the repository ships.
const SHIPPED: &str = include_str!("../../../policies/drift/default.yaml");

/// The drift policy of files and directories.
///
/// # Errors
/// A file that cannot be read or used.
pub fn drift_policy(paths: &[PathBuf]) -> Result<DriftPolicy, DesiredError> {
    drift_policies(&read(paths)?)
}

/// The drift policy of files that were read already.
///
/// # Errors
/// A file that cannot be used.
pub fn drift_policies(files: &Files) -> Result<DriftPolicy, DesiredError> {
    let parsed: Result<Vec<_>, _> =
        files.iter().map(|(name, bytes)| DriftPolicyFile::parse_all(name, bytes)).collect();
    Ok(DriftPolicy::merge(&parsed?.concat())?)
}

/// The drift policy of a host's service, or the default if it has none.
///
/// # Errors
/// A file that cannot be read or used.
pub fn service_policy(root: &Path) -> Result<DriftPolicy, DesiredError> {
    let of_service = root.join(POLICIES);
    if of_service.is_dir() { drift_policy(&[of_service]) } else { Ok(DriftPolicy::default()) }
}

/// The policies of a node: those of the host's service, and those of the cluster, as far as they exist.
pub fn node_policies(root: &Path, state: &Path) -> Vec<PathBuf> {
    let of_service = Some(root.join(POLICIES)).filter(|path| path.is_dir());
    let of_cluster = Some(cluster_policies(state)).filter(|path| path.exists());
    of_service.into_iter().chain(of_cluster).collect()
}

/// The drift policy that decides which contents may be shown: the shipped one if none is named.
///
/// # Errors
/// A file that cannot be read or used.
pub fn shown_policy(paths: &[PathBuf]) -> Result<DriftPolicy, DesiredError> {
    if paths.is_empty() {
        let shipped = DriftPolicyFile::parse("shipped default", SHIPPED.as_bytes())?;
        return Ok(DriftPolicy::merge(&[shipped])?);
    }
    drift_policy(paths)
}

/// The disruption policies of files and directories.
///
/// # Errors
/// A file that cannot be read or used.
pub fn disruption_policies(paths: &[PathBuf]) -> Result<Vec<DisruptionPolicyFile>, DesiredError> {
    let mut files = Vec::new();
    for (name, bytes) in read(paths)? {
        files.extend(DisruptionPolicyFile::parse(&name, &bytes)?);
    }
    Ok(files)
}

/// The disruption policy for the nodes of a pool.
///
/// # Errors
/// Files that contradict each other, and a policy for certain pools if the pool is not known.
pub fn disruption_policy(
    files: &[DisruptionPolicyFile],
    pool: Option<&str>,
) -> Result<DisruptionPolicy, DesiredError> {
    let of_pools = files.iter().find(|file| matches!(file.scope, PolicyScope::Pools(_)));
    if let (None, Some(file)) = (pool, of_pools) {
        return Err(DesiredError::UnknownPool { policy: file.origin.clone() });
    }
    Ok(DisruptionPolicy::merge(files, pool)?)
}
