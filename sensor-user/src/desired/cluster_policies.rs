//! The drift policies of the cluster, which the node's reporter handed in.
//!
//! In: the state directory. Out: the path of the file that keeps them. `apply::orders` checks and writes it. It is one more policy
//! file: where a path has a rule in it and in a file of the node, the higher precedence applies.

use super::last_usable;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The file in the state directory.
const FILE: &str = "cluster-policies.json";
/// Its name after the node was detached.
const ASIDE: &str = "cluster-policies.detached.json";

/// The file with the policies of the cluster. It does not exist while there are none.
pub fn cluster_policies(state: &Path) -> PathBuf {
    state.join(FILE)
}

/// The copies among the last usable policies, which are in force after a start with unusable configs or policies.
pub fn kept_cluster_policies(state: &Path) -> Vec<PathBuf> {
    let mut kept = last_usable::policies(&last_usable::directory(state));
    kept.retain(|path| path.file_name().is_some_and(|name| name == FILE));
    kept
}

/// Puts the policies of the cluster aside, so that no command of the host uses them. The file stays as evidence under another name, in the
/// place of one that was put aside before. Gives the new path; `None` if there are no policies.
///
/// # Errors
/// The file cannot be renamed.
pub fn put_aside(state: &Path) -> io::Result<Option<PathBuf>> {
    let aside = state.join(ASIDE);
    match fs::rename(cluster_policies(state), &aside) {
        Ok(()) => Ok(Some(aside)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
