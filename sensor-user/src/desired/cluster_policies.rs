//! The drift policies of the cluster, which the node's reporter handed in.
//!
//! In: the state directory. Out: the path of the file that keeps them. `apply::orders` checks and writes it. It is one more policy
//! file: where a path has a rule in it and in a file of the node, the higher precedence applies.

use std::path::{Path, PathBuf};

/// The file in the state directory.
const FILE: &str = "cluster-policies.json";

/// The file with the policies of the cluster. It does not exist while there are none.
pub fn cluster_policies(state: &Path) -> PathBuf {
    state.join(FILE)
}
