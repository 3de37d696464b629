//! The status of a drift policy, from the reports of the nodes.

use crate::api::{DriftPolicyStatus, PolicyState, RefusingNode, ReportedPolicy};
use crate::text::fit;
use std::collections::BTreeMap;

/// Most names of nodes in a status.
const NODES: usize = 100;
/// Most nodes with a problem in a status.
const PROBLEMS: usize = 20;
/// Most bytes of a message. A reporter that was taken over writes longer ones into its report.
const MESSAGE_BYTES: usize = 512;

/// The policies in the report of each node, by the name of the node.
pub(super) type Reported = BTreeMap<String, Vec<ReportedPolicy>>;

/// The status of the policy of this name and generation.
pub(super) fn status(name: &str, generation: Option<i64>, reported: &Reported) -> DriftPolicyStatus {
    let mut status = DriftPolicyStatus { observed_generation: generation, ..DriftPolicyStatus::default() };
    for (node, policies) in reported {
        let Some(policy) = policies.iter().find(|policy| policy.name == name) else { continue };
        status.selected += 1;
        // The node has not seen this generation yet.
        if policy.generation != generation {
            continue;
        }
        match policy.state {
            PolicyState::InForce | PolicyState::Limited => {
                status.in_force += 1;
                if status.nodes.len() < NODES {
                    status.nodes.push(node.clone());
                }
            }
            PolicyState::Conflict | PolicyState::Refused => status.refused += 1,
            PolicyState::Waiting => {}
        }
        if policy.message.is_some() && status.problems.len() < PROBLEMS {
            status.problems.push(RefusingNode {
                node: node.clone(),
                state: policy.state,
                message: policy.message.as_deref().map(|message| fit(message, MESSAGE_BYTES)),
            });
        }
    }
    status
}
