//! Removal with a played API server.

use super::*;
use crate::played_server::{PlayedAnswer, PlayedRequest, played};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::{Value, json};

fn list(items: &Value) -> PlayedAnswer {
    PlayedAnswer::Json(json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}))
}

#[tokio::test]
async fn nothing_is_written_while_a_reporter_runs() {
    let pods = json!([{
        "metadata": {"name": "holdfast-1"},
        "spec": {"nodeName": "n1", "containers": [{"name": "sensor"}, {"name": "reporter"}]},
    }]);
    let (client, log) = played(move |_| list(&pods));
    let error = remove(&client, "holdfast-system").await.unwrap_err();
    assert!(
        matches!(&error, RemoveError::Reporter { pod, node } if pod == "holdfast-1" && node == "n1"),
        "{error}"
    );
    assert_eq!(log.lines(), ["GET /api/v1/namespaces/holdfast-system/pods"]);
}

fn not_found() -> PlayedAnswer {
    PlayedAnswer::Status(json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}))
}

/// What a removal gives if the old pod of the node n1 is still to end.
async fn removed_with_a_terminating_pod(
    phase: &str,
    node: Option<&Value>,
    renewed: Option<Timestamp>,
) -> (Result<Removed, RemoveError>, Vec<String>) {
    let pods = json!([{
        "metadata": {"name": "holdfast-1", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n1", "containers": [{"name": "reporter"}]},
        "status": {"phase": phase},
    }]);
    let node = node.cloned();
    let (client, log) = played(move |request: &PlayedRequest| match request.line().as_str() {
        "GET /api/v1/namespaces/holdfast-system/pods" => list(&pods),
        "GET /api/v1/nodes/n1" => node.clone().map_or_else(not_found, PlayedAnswer::Json),
        "GET /apis/coordination.k8s.io/v1/namespaces/holdfast-system/leases/n1" => match renewed {
            Some(renewed) => PlayedAnswer::Json(json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n1"},
                "spec": {"renewTime": MicroTime(renewed)},
            })),
            None => not_found(),
        },
        _ => list(&json!([])),
    });
    (remove(&client, "holdfast-system").await, log.lines())
}

fn node_with_ready(status: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "status": {"conditions": [{"type": "Ready", "status": status}]},
    })
}

#[tokio::test]
async fn a_terminating_pod_of_a_node_that_is_off_blocks_no_removal_and_is_named() {
    let old = Timestamp::now() - SignedDuration::from_mins(30);
    let (unknown, not_ready) = (node_with_ready("Unknown"), node_with_ready("False"));
    for (node, renewed) in [(Some(&unknown), Some(old)), (Some(&not_ready), None), (None, None)] {
        let (removed, lines) = removed_with_a_terminating_pod("Running", node, renewed).await;
        let pod = UnconfirmedPod { pod: "holdfast-1".to_owned(), node: "n1".to_owned() };
        assert_eq!(removed.unwrap().unconfirmed, [pod]);
        assert!(lines.contains(&"GET /api/v1/nodes".to_owned()), "all Nodes are cleaned: {lines:?}");
    }
}

#[tokio::test]
async fn a_terminating_pod_blocks_the_removal_while_its_node_is_ready_or_its_reporter_renews_its_lease() {
    let (error, lines) =
        removed_with_a_terminating_pod("Running", Some(&node_with_ready("True")), None).await;
    assert!(matches!(error, Err(RemoveError::Reporter { .. })), "{error:?}");
    assert_eq!(lines.last().unwrap(), "GET /api/v1/nodes/n1");
    let now = Some(Timestamp::now() - SignedDuration::from_mins(2));
    let (error, lines) =
        removed_with_a_terminating_pod("Running", Some(&node_with_ready("Unknown")), now).await;
    assert!(matches!(error, Err(RemoveError::Renewed { .. })), "{error:?}");
    assert!(!lines.contains(&"GET /api/v1/nodes".to_owned()), "{lines:?}");
}

#[tokio::test]
async fn a_pod_that_has_ended_blocks_no_removal() {
    let node = node_with_ready("True");
    let (removed, _) = removed_with_a_terminating_pod("Failed", Some(&node), None).await;
    assert_eq!(removed.unwrap(), Removed::default());
}

/// A Node that another writer gives the condition again, however often it is removed.
#[tokio::test]
async fn a_writer_that_puts_a_condition_back_is_an_error_and_no_endless_loop() {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "resourceVersion": "7"},
        "status": {"conditions": [{"type": "ConfigDrift", "status": "True"}]},
    });
    let (client, _) = played(move |request: &PlayedRequest| {
        let line = request.line();
        match line.as_str() {
            "GET /api/v1/nodes" => list(&json!([node])),
            "GET /api/v1/nodes/n1" | "PATCH /api/v1/nodes/n1/status" => PlayedAnswer::Json(node.clone()),
            _ => list(&json!([])),
        }
    });
    let error = remove(&client, "holdfast-system").await.unwrap_err();
    assert!(matches!(&error, RemoveError::Changing { node } if node == "n1"), "{error}");
}

#[tokio::test]
async fn annotations_of_the_mode_manage_that_the_removal_takes_away_are_named() {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "managedFields": [{
            "manager": "holdfast-reporter", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:annotations": {
                "f:machineconfiguration.openshift.io/state": {}, "f:holdfast.dev/plan": {}}}},
        }]},
    });
    let mut left = Some(node.clone());
    let (client, _) = played(move |request: &PlayedRequest| match request.line().as_str() {
        "GET /api/v1/nodes" => list(&json!([node])),
        "PATCH /api/v1/nodes/n1" => PlayedAnswer::Json(left.take().unwrap()),
        "GET /api/v1/nodes/n1" => PlayedAnswer::Json(
            left.clone().unwrap_or(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})),
        ),
        _ => list(&json!([])),
    });
    let removed = remove(&client, "holdfast-system").await.unwrap().removals;
    assert_eq!(removed[0].removed, ["annotation machineconfiguration.openshift.io/state"]);
}

const DESIRED_DRAIN: &str = "machineconfiguration.openshift.io/desiredDrain";
const LAST_APPLIED_DRAIN: &str = "machineconfiguration.openshift.io/lastAppliedDrain";

/// A cordoned Node with these annotations, for which these field managers wrote the request for a drain.
fn cordoned(annotations: &Value, managers: &[(&str, &str)]) -> Value {
    let wrote = |(manager, operation): &(&str, &str)| {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:annotations": {(format!("f:{DESIRED_DRAIN}")): {}}}}})
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "resourceVersion": "7", "annotations": annotations,
            "managedFields": managers.iter().map(wrote).collect::<Vec<_>>()},
        "spec": {"unschedulable": true},
    })
}

/// What is removed from a Node, and the first patch. Merge patches change it, and an apply takes the fields of our manager.
async fn removed_from(node: Value) -> (Vec<String>, Value) {
    let mut left = node.clone();
    let (client, log) = played(move |request: &PlayedRequest| match request.line().as_str() {
        "GET /api/v1/nodes" => list(&json!([node])),
        "GET /api/v1/nodes/n1" => PlayedAnswer::Json(left.clone()),
        "PATCH /api/v1/nodes/n1" => {
            if request.body["kind"] == "Node" {
                let fields = left["metadata"]["managedFields"].as_array_mut().unwrap();
                fields.retain(|fields| fields["manager"] != FIELD_MANAGER);
            } else {
                merge(&mut left, &request.body);
            }
            PlayedAnswer::Json(left.clone())
        }
        _ => list(&json!([])),
    });
    let removed = remove(&client, "holdfast-system").await.unwrap().removals;
    let requests = log.take();
    let first = requests.iter().find(|request| request.method == "PATCH").map(|first| first.body.clone());
    (removed.into_iter().flat_map(|removal| removal.removed).collect(), first.unwrap_or_default())
}

/// A merge patch.
fn merge(object: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    for (name, value) in fields {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut object[name], value);
        }
    }
}

#[tokio::test]
async fn the_cordon_of_a_drain_that_a_reporter_asked_for_ends_with_the_request() {
    let ours = [(FIELD_MANAGER, "Apply")];
    for applied in [json!("drain-b"), json!("drain-a")] {
        let annotations = json!({DESIRED_DRAIN: "drain-b", LAST_APPLIED_DRAIN: applied});
        let (removed, first) = removed_from(cordoned(&annotations, &ours)).await;
        assert_eq!(removed, ["cordon".to_owned(), format!("annotation {DESIRED_DRAIN}")]);
        let end = json!({
            "metadata": {"resourceVersion": "7", "annotations": {DESIRED_DRAIN: null}},
            "spec": {"unschedulable": null},
        });
        assert_eq!(first, end);
    }
}

#[tokio::test]
async fn a_cordon_of_an_admin_or_of_the_machine_config_operators_daemon_stays() {
    let drained = json!({DESIRED_DRAIN: "drain-b", LAST_APPLIED_DRAIN: "drain-b"});
    let with = |name: &str, value: &str| {
        let mut annotations = drained.clone();
        annotations[name] = json!(value);
        annotations
    };
    let ours = (FIELD_MANAGER, "Apply");
    let daemon = ("machine-config-daemon", "Update");
    for (annotations, managers) in [
        (with("holdfast.dev/cordoned-before", "true"), vec![ours]),
        (with("holdfast.dev/cordoned-before", "over"), vec![ours]),
        // The drain controller has ended our cordon, so this one is not ours.
        (json!({DESIRED_DRAIN: "uncordon-b", LAST_APPLIED_DRAIN: "uncordon-b"}), vec![ours]),
        (drained.clone(), vec![daemon]),
        // The reporter has only taken the request over.
        (drained.clone(), vec![ours, daemon]),
    ] {
        let node = cordoned(&annotations, &managers);
        let (removed, first) = removed_from(node).await;
        assert!(!removed.contains(&"cordon".to_owned()), "{annotations}: {removed:?}");
        assert_eq!(first.pointer("/spec/unschedulable"), None, "{first}");
    }
}
