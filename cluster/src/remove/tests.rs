//! Removal with a played API server.

use super::*;
use crate::played_server::{PlayedAnswer, PlayedRequest, played};
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
    let removed = remove(&client, "holdfast-system").await.unwrap();
    assert_eq!(removed[0].removed, ["annotation machineconfiguration.openshift.io/state"]);
}
