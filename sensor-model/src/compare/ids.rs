//! The node's own data for a comparison.
//!
//! In: nothing. Out: a place for the ids of users and groups, and for the label types that administrators may choose.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The ids of declared users and groups by the node's databases, and the label types that anybody may choose.
///
/// A name without an id here is compared with the name in the observation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// User name to uid.
    pub users: BTreeMap<String, u32>,
    /// Group name to gid.
    pub groups: BTreeMap<String, u32>,
    /// Types that the SELinux policy calls customizable: an administrator may give them to an object.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub customizable: BTreeSet<String>,
}
