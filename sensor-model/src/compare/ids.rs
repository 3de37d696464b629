//! What a node's databases say of the names that expectations declare.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What the node itself says of what expectations name: the ids of users and groups, as its databases resolve them, and the
/// types of labels that anybody may choose.
///
/// A name that is not in here is compared with the name that the observation carries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// User name to uid.
    pub users: BTreeMap<String, u32>,
    /// Group name to gid.
    pub groups: BTreeMap<String, u32>,
    /// Types that the SELinux policy calls customizable: whoever gives an object one of them means it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub customizable: BTreeSet<String>,
}
