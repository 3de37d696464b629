//! Facts of a host about the directories that a drift policy closes.
//!
//! In: the policy. Out: the directories that its globs name, and the paths of packages below all closed directories. A database that
//! cannot be read is logged, and its packages then declare nothing.

mod dpkg;
mod globs;

#[cfg(test)]
mod tests;

use crate::observation::Observer;
use sensor_model::{closed::HostDirectories, drift_policy::DriftPolicy};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The directories that a policy closes, and what packages put below them.
pub(crate) fn directories(observer: &Observer, policy: &DriftPolicy) -> HostDirectories {
    let mut found = HostDirectories::default();
    let mut roots: BTreeSet<PathBuf> = BTreeSet::new();
    for (rule, _) in policy.closed() {
        if let Some(path) = rule.directory() {
            roots.insert(path.to_owned());
        } else {
            let matching = globs::directories(observer, &rule.path);
            roots.extend(matching.iter().cloned());
            found.matching.insert(rule.path.clone(), matching);
        }
    }
    if !roots.is_empty() {
        found.packaged = dpkg::packaged(observer, &roots);
    }
    found
}
