//! What the task says about the taint while the sensor has not taken the policies.

use super::PolicyFollower;
use crate::api::PolicyState;
use crate::played_server::{PlayedAnswer, played};
use crate::publish::{NodeMetadata, PolicyStanding};
use crate::reads::Reads;
use crate::socket::SensorSocket;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// The socket of no sensor.
const NO_SENSOR: &str = "/nonexistent";

fn policy(name: &str, taints: bool, rule: &Value) -> Value {
    json!({
        "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": {"name": name, "generation": 1},
        "spec": {"taintDriftedNodes": taints, "rules": [rule]},
    })
}

/// The first standing on a cluster with these policies. The API server refuses each list of pods.
async fn standing(policies: Vec<Value>) -> PolicyStanding {
    let list = json!({"apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicyList",
        "metadata": {"resourceVersion": "7"}, "items": policies});
    let (client, _log) = played(move |asked| match asked.line().as_str() {
        _ if asked.uri.contains("watch=true") => PlayedAnswer::Watch,
        line if line.ends_with("/driftpolicies") => PlayedAnswer::Json(list.clone()),
        _ => PlayedAnswer::Code(403),
    });
    let (_node, mut newest_node) = watch::channel(Some(NodeMetadata::default()));
    newest_node.mark_changed();
    let (standing, mut newest) = watch::channel(None);
    let reads = Reads::with(client.clone(), client);
    let follower = PolicyFollower::new(reads, "n1", newest_node, SensorSocket::new(NO_SENSOR), standing);
    let task = tokio::spawn(follower.run());
    let standing = timeout(Duration::from_mins(2), newest.wait_for(Option::is_some)).await;
    let standing = standing.expect("the policies have no standing").unwrap().clone().unwrap();
    task.abort();
    standing
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_asks_for_the_taint_and_waits_does_not_end_it() {
    let rule = json!({"path": "/etc/a", "action": "degrade"});
    let names_a_pod =
        json!({"path": "/etc/a", "action": "degrade", "allowedActors": {"pods": ["default/agent"]}});
    let asks = policy("asks", true, &rule);
    let faulty = policy("faulty", false, &json!({"path": "/etc/[", "action": "degrade"}));
    let conflicting = policy("other", false, &json!({"path": "/etc/a", "action": "observe"}));
    for policies in [
        vec![asks.clone()],
        vec![asks.clone(), faulty.clone()],
        vec![asks, conflicting],
        vec![policy("asks", true, &names_a_pod)],
    ] {
        let standing = standing(policies.clone()).await;
        assert_eq!(standing.taints, None, "{policies:?}");
        assert_ne!(standing.policies[0].state, PolicyState::InForce, "{policies:?}");
    }
    for policies in [
        vec![],
        vec![policy("plain", false, &rule)],
        vec![policy("plain", false, &names_a_pod)],
        vec![faulty],
    ] {
        let standing = standing(policies.clone()).await;
        assert_eq!(standing.taints, Some(false), "no policy asks for it: {policies:?}");
    }
}
