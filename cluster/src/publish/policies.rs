//! What the report and the taint need of the policies.

use crate::api::ReportedPolicy;

/// The drift policies of the cluster, as far as they are about this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyStanding {
    /// The policies that select the node.
    pub policies: Vec<ReportedPolicy>,
    /// One that is in force asks for the taint while drift degrades the node.
    pub taints: bool,
}
