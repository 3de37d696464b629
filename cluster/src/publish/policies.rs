//! What the report and the taint need of the policies.

use crate::api::ReportedPolicy;

/// The drift policies of the cluster, as far as they are about this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyStanding {
    /// The policies that select the node.
    pub policies: Vec<ReportedPolicy>,
    /// Whether one that is in force asks for the taint while drift degrades the node. `None`: one asks for it, and the sensor has not taken the
    /// policies as they are now, so the node keeps the taint that it has.
    pub taints: Option<bool>,
}
