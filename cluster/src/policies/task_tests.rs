//! When the task evaluates the policies anew, and the taint while the sensor has not taken the policies.

use super::*;
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

#[tokio::test(start_paused = true)]
async fn the_policies_are_evaluated_again_only_after_a_change_of_policies_node_or_pods() {
    let (client, _log) = played(|_| PlayedAnswer::Code(403));
    let (node, newest_node) = watch::channel(Some(NodeMetadata::default()));
    let reads = Reads::with(client.clone(), client);
    let standing = watch::channel(None).0;
    let mut follower = PolicyFollower::new(reads, "n1", newest_node, SensorSocket::new(NO_SENSOR), standing);
    follower.take_node();
    let rule = json!({"path": "/etc/a", "action": "degrade", "allowedActors": {"pods": ["team/agent-*"]}});
    let of = |taints: bool| serde_json::from_value(policy("names", taints, &rule)).unwrap();
    let pod = |uid: &str| {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "team", "name": "agent-x", "uid": uid}, "spec": {}});
        serde_json::from_value(pod).unwrap()
    };
    follower.take(Event::Apply(of(false)));
    let mut last = None;
    let mut is_new = |follower: &mut PolicyFollower| {
        let facts = follower.facts.clone().unwrap();
        let evaluated = follower.evaluated(&facts);
        let is_new = last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &evaluated));
        last = Some(evaluated);
        is_new
    };
    assert!(is_new(&mut follower) && !is_new(&mut follower));
    follower.pods.take(Event::Apply(pod("u-1")));
    assert!(is_new(&mut follower) && !is_new(&mut follower), "a new pod");
    follower.pods.take(Event::Apply(pod("u-1")));
    assert!(!is_new(&mut follower), "another status of the same pod");
    follower.pods.take(Event::Delete(pod("u-1")));
    assert!(is_new(&mut follower) && !is_new(&mut follower), "the pod is the oldest of those that ended");
    follower.pods.take(Event::Apply(pod("u-1")));
    assert!(is_new(&mut follower) && !is_new(&mut follower), "it has not ended");
    follower.take(Event::Apply(of(true)));
    assert!(is_new(&mut follower) && !is_new(&mut follower), "another policy");
    node.send_replace(Some(NodeMetadata { resource_version: 9, ..NodeMetadata::default() }));
    follower.take_node();
    assert!(!is_new(&mut follower), "another version of the same Node");
    let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    node.send_replace(Some(NodeMetadata { labels, ..NodeMetadata::default() }));
    follower.take_node();
    assert!(is_new(&mut follower) && !is_new(&mut follower), "another label");
}
