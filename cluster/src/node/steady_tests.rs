//! The requests of a node's whole reporter while nothing changes, at a played API server.

use super::tests::finding;
use super::*;
use crate::metrics::ReporterMetrics;
use crate::played_server::{PlayedAnswer, PlayedLog, PlayedRequest, played};
use crate::secure::Pages;
use hyper::Request;
use hyper::header::AUTHORIZATION;
use sensor_model::status::{ConfigOrigin, ExpectedConfig};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::time::sleep;

/// The requests are counted for this time.
const COUNTED: Duration = Duration::from_hours(6);
/// The interval of the scraper: that of the component `prometheus`.
const SCRAPES: Duration = Duration::from_secs(30);
/// The socket of no sensor.
const NO_SENSOR: &str = "/nonexistent";

/// An API server with this node, a pod on it, and a policy that names it. It serves the kinds of the Machine Config Operator to no reporter.
fn api_server() -> (Client, PlayedLog) {
    let annotation = |name: &str| format!("machineconfiguration.openshift.io/{name}");
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "uid": "node-uid", "resourceVersion": "7", "annotations": {
            annotation("currentConfig"): "rendered-1", annotation("desiredConfig"): "rendered-1", annotation("state"): "Done"}}});
    let list = |kind: &str, version: &str, item: Value| json!({"apiVersion": version, "kind": kind, "metadata": {"resourceVersion": "7"}, "items": [item]});
    let pods = list(
        "PodList",
        "v1",
        json!({
        "metadata": {"name": "debugger", "namespace": "default", "uid": "u-1"}, "spec": {"serviceAccountName": "default"},
        "status": {"containerStatuses": [{"name": "shell", "containerID": "containerd://c-1"}]}}),
    );
    let policies = list(
        "DriftPolicyList",
        "holdfast.dev/v1alpha1",
        json!({
        "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": {"name": "allowed"},
        "spec": {"rules": [{"path": "/etc/a", "action": "observe", "allowedActors": {"pods": ["default/debugger"]}}]}}),
    );
    played(move |asked: &PlayedRequest| match asked.line().as_str() {
        _ if asked.uri.contains("watch=true") => PlayedAnswer::Watch,
        "GET /api/v1/pods" => PlayedAnswer::Json(pods.clone()),
        "GET /apis/holdfast.dev/v1alpha1/driftpolicies" => PlayedAnswer::Json(policies.clone()),
        line if line.contains("/api/v1/nodes") => PlayedAnswer::Json(node.clone()),
        line if line.starts_with("GET") => PlayedAnswer::Code(403),
        line if line.starts_with("POST") => {
            let mut answer = asked.body.clone();
            answer["status"] =
                json!({"authenticated": true, "user": {"username": "scraper"}, "allowed": true});
            PlayedAnswer::Json(answer)
        }
        _ => PlayedAnswer::Echo,
    })
}

/// Scrapes the page of metrics for ever.
async fn scrape(pages: Pages) {
    loop {
        let request = Request::get("/metrics").header(AUTHORIZATION, "Bearer good").body(()).unwrap();
        assert_eq!(pages.answer(&request.into_parts().0).await.status(), 200);
        sleep(SCRAPES).await;
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_scraper_and_a_watch_of_pods_the_steady_reporter_sends_less_than_two_requests_a_minute() {
    let (client, log) = api_server();
    let reads = Reads::with(client.clone(), client.clone());
    // The drift was made by a pod.
    let mut drifted = finding("/etc/a");
    drifted.status.os_image =
        Some(crate::api::ReportedOsImage { booted: Some("quay.io/os:1".to_owned()), ..Default::default() });
    drifted.config = Some(ExpectedConfig {
        origin: ConfigOrigin::Operator,
        name: Some("rendered-1".to_owned()),
        digest: "d".to_owned(),
    });
    let (_findings, newest) = watch::channel(Some(drifted));
    let mut tasks = JoinSet::new();
    let cluster = follow_cluster(&mut tasks, (&reads, "n1", Path::new(NO_SENSOR)), &newest);

    let metrics = ReporterMetrics::default();
    let place = ReporterPlace {
        node: "n1".to_owned(),
        namespace: "holdfast-system".to_owned(),
        holder: "holdfast-x".to_owned(),
    };
    let publisher = Publisher::new(&client, reads.clone(), place);
    let (_observes, managed) = watch::channel(Some(ManagedNode::default()));
    let (written, _) = watch::channel(WrittenNode::default());
    let (_stop, stopped) = watch::channel(false);
    let (renewals, _) = watch::channel(None);
    let update = ManagedChannels { managed, written, renewals };
    tasks.spawn(writer::write(publisher, Pods::new(reads, "n1"), newest, update, cluster, stopped));
    let authorizer = Authorizer::new(&client, "n1", metrics.clone());
    tasks.spawn(scrape(Pages::new(authorizer, metrics, NO_SENSOR.into())));

    // What a start reads and writes is no part of the steady state.
    sleep(Duration::from_mins(20)).await;
    log.take();
    sleep(COUNTED).await;
    assert!(tasks.try_join_next().is_none(), "a task ended");
    let mut by: BTreeMap<String, usize> = BTreeMap::new();
    for asked in log.take() {
        let watches = if asked.uri.contains("watch=true") { "watch " } else { "" };
        *by.entry(format!("{watches}{}", asked.line())).or_default() += 1;
    }
    for kind in [
        "watch GET /api/v1/pods",
        "watch GET /api/v1/nodes",
        "tokenreviews",
        "subjectaccessreviews",
        "leases",
        "bootcnodes",
    ] {
        assert!(by.keys().any(|line| line.contains(kind)), "nothing of {kind}: {by:#?}");
    }
    let (all, minutes) = (by.values().sum::<usize>(), usize::try_from(COUNTED.as_secs() / 60).unwrap());
    assert!(all < 2 * minutes, "{all} requests in {minutes} minutes: {by:#?}");
    tasks.shutdown().await;
}
