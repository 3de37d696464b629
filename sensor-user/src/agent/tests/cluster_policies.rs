//! The policies of the cluster.

use super::*;
use crate::desired::cluster_policies;
use sensor_model::drift_policy::DriftAction;
use std::path::Path;

/// Stores one rule for the file as the reporter's socket does.
fn store(node: &Node, action: &str) {
    let list = json!({
        "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicyList",
        "items": [{
            "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": { "name": "one" },
            "spec": { "precedence": 10, "rules": [{ "path": FILE, "action": action }] },
        }],
    });
    let new = node.path("state/policies.new");
    fs::write(&new, list.to_string()).unwrap();
    fs::rename(new, cluster_policies(&node.path("state"))).unwrap();
}

#[tokio::test]
async fn policies_of_the_cluster_are_in_force_within_one_tick_and_without_them_those_of_the_node() {
    let node = Node::new(&json!({ "path": FILE, "action": "degrade" }));
    let mut daemon = node.begin(None).await;
    daemon.agent.options.inputs.with_cluster_policies = true;
    let next = |daemon: &mut Daemon| {
        daemon.agent.canary_tick(&mut daemon.changes).unwrap();
        match daemon.agent.run_end.take() {
            Some(RunEnd::Reloaded(desired)) => {
                let action = desired.policy.decide(Path::new(FILE), None).action;
                daemon.agent.verdicts.desired = *desired;
                Some(action)
            }
            None => None,
            Some(other) => panic!("{other:?}"),
        }
    };
    store(&node, "observe");
    assert_eq!(next(&mut daemon), Some(DriftAction::Observe));
    assert_eq!(next(&mut daemon), None, "nothing is read again without a change");
    fs::remove_file(cluster_policies(&node.path("state"))).unwrap();
    assert_eq!(next(&mut daemon), Some(DriftAction::Degrade));
    node.end(daemon).await;
}
