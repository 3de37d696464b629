use super::*;
use crate::api::DriftState;
use crate::metrics::ReporterMetrics;
use crate::played_server::{PlayedAnswer, PlayedLog, PlayedRequest, played};
use crate::publish::{NodeMetadata, PolicyStanding};
use crate::reports::{ComparedConfig, NodeFinding, SensorState};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

const GRACE: Duration = Duration::from_millis(400);
const NOT_READY: &str = r#"{"reason":"NotReady","error":"the daemon has no status yet"}"#;

fn status(drifted: bool) -> String {
    let things = if drifted {
        r#"[{"path":"/etc/a","thing":"file","differences":[],"since":"2026-01-01T00:00:00Z","actor":null,"source":"99"}]"#
    } else {
        "[]"
    };
    let verdict = if drifted { "drifted" } else { "compliant" };
    format!(
        r#"{{"schema":"holdfast.status/v1","verdict":"{verdict}","degraded":false,"backend":"lsm","time":"2026-01-01T00:00:00Z",
        "pid":1,"boot_id":"","sources":[],"drifted":{things},"gaps":[],"counters":{{}}}}"#
    )
}

/// A sensor whose status is the newest text of the channel; without a text it has none. It waits if the client has that one, for at
/// most 50 ms.
async fn serve(listener: UnixListener, statuses: watch::Receiver<(u64, String)>) {
    // The connections end with this task.
    let mut connections = JoinSet::new();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut statuses = statuses.clone();
        connections.spawn(async move {
            loop {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => return,
                    }
                }
                let head = String::from_utf8(head).unwrap().to_lowercase();
                let answer = if head.starts_with("get /v1/log ") {
                    let body = r#"{"schema":"holdfast.log-checkpoint/v1","sequence":5,"hash":"ab","time":"2026-01-01T00:00:00Z"}"#;
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
                } else {
                    let known = |tag: u64| head.contains(&format!("if-none-match: \"{tag}\""));
                    let wait = statuses.wait_for(|(tag, _)| !known(*tag));
                    match timeout(Duration::from_millis(50), wait).await {
                        Ok(Ok(status)) => {
                            let (tag, body) = &*status;
                            let (head, body) = if body.is_empty() {
                                ("503 Service Unavailable".to_owned(), NOT_READY)
                            } else {
                                (format!("200 OK\r\nETag: \"{tag}\""), body.as_str())
                            };
                            format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
                        }
                        _ => "HTTP/1.1 304 Not Modified\r\n\r\n".to_owned(),
                    }
                };
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
    }
}

async fn next(findings: &mut watch::Receiver<Option<NodeFinding>>) -> NodeFinding {
    timeout(Duration::from_secs(10), findings.changed()).await.unwrap().unwrap();
    findings.borrow_and_update().clone().unwrap()
}

#[tokio::test]
async fn a_sensor_that_dies_is_unknown_after_the_grace_time_and_a_new_one_is_believed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("reporter.sock");
    let (set, statuses) = watch::channel((1, status(false)));
    let sensor = tokio::spawn(serve(UnixListener::bind(&path).unwrap(), statuses.clone()));
    let (findings, mut newest) = watch::channel(None);
    let (not_ready, ready) = watch::channel(Some("the sensor has not answered yet"));
    tokio::spawn(sensor::follow(
        SensorSocket::new(&path),
        GRACE,
        findings,
        not_ready,
        ReporterMetrics::default(),
    ));

    let first = next(&mut newest).await;
    assert_eq!((first.status.state, first.status.log.unwrap().sequence), (DriftState::InSync, 5));
    assert_eq!(*ready.borrow(), None);
    set.send((2, status(true))).unwrap();
    let drifted = next(&mut newest).await;
    assert_eq!((drifted.status.state, drifted.status.count), (DriftState::Drifted, 1));

    sensor.abort();
    let _ = sensor.await;
    std::fs::remove_file(&path).unwrap();
    let silent = next(&mut newest).await;
    assert_eq!((silent.status.state, silent.status.count), (DriftState::Unknown, 1), "the last drifts stay");
    assert!(matches!(silent.sensor, SensorState::Silent { .. }));
    assert!(ready.borrow().is_some());

    set.send((3, "{}".to_owned())).unwrap();
    tokio::spawn(serve(UnixListener::bind(&path).unwrap(), statuses));
    sleep(GRACE).await;
    set.send((4, status(false))).unwrap();
    let back = next(&mut newest).await;
    assert_eq!(back.status.state, DriftState::InSync);
    assert_eq!(back.sensor, SensorState::Answers { refuses_config: false });
    assert_eq!(*ready.borrow(), None);
}

#[tokio::test]
async fn a_sensor_without_a_current_status_is_not_called_silent_and_its_death_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("reporter.sock");
    let (set, statuses) = watch::channel((1, status(true)));
    let sensor = tokio::spawn(serve(UnixListener::bind(&path).unwrap(), statuses));
    let (findings, mut newest) = watch::channel(None);
    let (not_ready, ready) = watch::channel(None);
    tokio::spawn(sensor::follow(
        SensorSocket::new(&path),
        GRACE,
        findings,
        not_ready,
        ReporterMetrics::default(),
    ));
    assert_eq!(next(&mut newest).await.status.count, 1);

    set.send((2, String::new())).unwrap();
    let hangs = next(&mut newest).await;
    assert_eq!((hangs.status.state, hangs.status.count), (DriftState::Unknown, 1), "the last drifts stay");
    assert!(matches!(hangs.sensor, SensorState::NotReady { .. }), "{:?}", hangs.sensor);
    assert_eq!(*ready.borrow(), Some("the sensor has no current status"));

    sensor.abort();
    let _ = sensor.await;
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(next(&mut newest).await.sensor, SensorState::Silent { .. }));
    assert_eq!(*ready.borrow(), Some("the sensor does not answer"));
}

/// A finding with one drift, whose actor is in a pod.
pub(super) fn finding(path: &str) -> NodeFinding {
    let drift = crate::api::Drift {
        path: path.to_owned(),
        by: Some(crate::api::ChangedBy {
            pod_uid: Some("u-1".to_owned()),
            container_id: Some("c-1".to_owned()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let status = crate::api::DriftReportStatus {
        state: DriftState::Drifted,
        count: 1,
        drifts: vec![drift],
        ..Default::default()
    };
    NodeFinding { status, sensor: SensorState::Answers { refuses_config: false }, text: None, config: None }
}

/// The Node with this state of an update.
pub(super) fn node_in(state: &str) -> NodeMetadata {
    let annotation = ("machineconfiguration.openshift.io/state".to_owned(), state.to_owned());
    NodeMetadata { annotations: [annotation].into(), ..NodeMetadata::default() }
}

/// An API server that knows the Node and a pod of this namespace, and accepts every write.
pub(super) fn api_server_with(namespace: &'static str) -> (Client, PlayedLog) {
    played(move |asked: &PlayedRequest| match asked.line().as_str() {
        "GET /api/v1/pods" => {
            PlayedAnswer::Json(json!({"apiVersion": "v1", "kind": "PodList", "metadata": {},
            "items": [{"metadata": {"name": "debugger", "namespace": namespace, "uid": "u-1"}, "spec": {},
                "status": {"containerStatuses": [{"name": "shell", "containerID": "containerd://c-1"}]}}]}))
        }
        line if line.contains("/api/v1/nodes") => PlayedAnswer::Json(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "node-uid"}}),
        ),
        line if line.starts_with("GET") => PlayedAnswer::Code(404),
        _ => PlayedAnswer::Echo,
    })
}

fn api_server() -> (Client, PlayedLog) {
    api_server_with("default")
}

/// The task that writes, with what it takes.
pub(super) struct Writing {
    pub(super) findings: watch::Sender<Option<NodeFinding>>,
    stop: watch::Sender<bool>,
    /// Mode `observe` never sends anything.
    _managed: watch::Sender<Option<ManagedNode>>,
    /// No policy is known.
    _policies: watch::Sender<Option<PolicyStanding>>,
    pub(super) os_image: watch::Sender<Option<crate::api::ReportedOsImage>>,
    pub(super) config: watch::Sender<ComparedConfig>,
    pub(super) node: watch::Sender<Option<NodeMetadata>>,
    renewed: watch::Receiver<Option<Instant>>,
    task: tokio::task::JoinHandle<()>,
}

impl Writing {
    pub(super) fn start(client: Client) -> Self {
        Self::start_in(client, None)
    }

    /// With the progress of the mode `manage`. The Node is known.
    fn start_in(client: Client, progress: Option<watch::Receiver<Option<ApplyProgress>>>) -> Self {
        Self::start_with(client, progress, Some(NodeMetadata::default()))
    }

    pub(super) fn start_with(
        client: Client,
        progress: Option<watch::Receiver<Option<ApplyProgress>>>,
        node: Option<NodeMetadata>,
    ) -> Self {
        let place = ReporterPlace {
            node: "n1".to_owned(),
            namespace: "holdfast-system".to_owned(),
            holder: "n1".to_owned(),
        };
        let (findings, newest) = watch::channel(None);
        let (stop, stopped) = watch::channel(false);
        let (observe, managed) = watch::channel(None);
        let (written, _) = watch::channel(WrittenNode::default());
        let (renewals, renewed) = watch::channel(None);
        let update = writer::ManagedChannels { managed, written, renewals };
        let publisher_client = client.clone();
        let reads = Reads::with(client.clone(), client);
        let publisher = Publisher::new(&publisher_client, reads.clone(), place);
        let (policies, standing) = watch::channel(None);
        let (set_image, os_image) = watch::channel(None);
        let (set_config, config) = watch::channel(ComparedConfig::default());
        let (set_node, node) = watch::channel(node);
        let cluster = ClusterChannels { policies: standing, os_image, config, node, progress };
        let pods = Pods::new(reads, "n1");
        let task = tokio::spawn(writer::write(publisher, pods, newest, update, cluster, stopped));
        Self {
            findings,
            stop,
            _managed: observe,
            _policies: policies,
            os_image: set_image,
            config: set_config,
            node: set_node,
            renewed,
            task,
        }
    }

    pub(super) async fn end(self) {
        self.stop.send_replace(true);
        timeout(Duration::from_secs(1), self.task).await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_change_the_reporter_renews_its_lease_and_writes_the_rest_again_every_ten_minutes() {
    let (client, log) = api_server();
    let writing = Writing::start(client);
    writing.findings.send_replace(Some(finding("/etc/a")));
    sleep(Duration::from_secs(30)).await;
    log.take();
    sleep(Duration::from_mins(9)).await;
    let lease = "PATCH /apis/coordination.k8s.io/v1/namespaces/holdfast-system/leases/n1";
    assert_eq!(log.lines(), [lease; 4]);
    sleep(Duration::from_mins(50)).await;
    let mut others = log.lines();
    others.retain(|line| line != lease);
    let refreshed =
        ["PATCH /apis/holdfast.dev/v1alpha1/driftreports/n1/status", "PATCH /api/v1/nodes/n1/status"];
    assert_eq!(others, refreshed.repeat(5));
    writing.end().await;
}

#[tokio::test(start_paused = true)]
async fn findings_in_quick_succession_are_few_rounds_and_the_last_one_is_written_with_its_pod() {
    let (client, log) = api_server();
    let writing = Writing::start(client);
    for number in 0..100 {
        writing.findings.send_replace(Some(finding(&format!("/etc/{number}"))));
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_secs(5)).await;
    let statuses: Vec<PlayedRequest> =
        log.take().into_iter().filter(|asked| asked.line().ends_with("/driftreports/n1/status")).collect();
    assert!((2..=7).contains(&statuses.len()), "{} writes in one second", statuses.len());
    let last = &statuses[statuses.len() - 1].body["status"];
    assert_eq!(last["drifts"][0]["path"], "/etc/99");
    assert_eq!(last["newest"]["by"], "pod default/debugger container shell");
    writing.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_finding_after_a_quiet_time_is_written_at_once_although_the_lease_was_just_renewed() {
    let (client, log) = api_server();
    let writing = Writing::start(client);
    for number in 0..1_000 {
        writing.findings.send_replace(Some(finding(&format!("/etc/{number}"))));
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_secs(10)).await;
    log.take();
    while !log.take().iter().any(|asked| asked.line().contains("/leases/")) {
        sleep(Duration::from_millis(100)).await;
    }
    sleep(Duration::from_millis(100)).await;
    writing.findings.send_replace(Some(finding("/etc/new")));
    sleep(Duration::from_millis(250)).await;
    let asked = log.take();
    let status = asked.iter().find(|asked| asked.line().ends_with("/driftreports/n1/status"));
    assert_eq!(status.map(|asked| &asked.body["status"]["drifts"][0]["path"]), Some(&json!("/etc/new")));
    writing.end().await;
}

/// The status, the reason and the message of the condition that was written last, and the Events.
fn written(log: &PlayedLog) -> (String, Vec<String>) {
    let asked = log.take();
    let condition = asked.iter().rfind(|asked| asked.line().ends_with("/nodes/n1/status")).map(|asked| {
        let drift = &asked.body["status"]["conditions"][0];
        format!("{} {}", drift["status"].as_str().unwrap(), drift["reason"].as_str().unwrap())
    });
    let events = asked.iter().filter(|asked| asked.line().starts_with("POST"));
    (condition.unwrap_or_default(), events.map(|asked| asked.body["reason"].to_string()).collect())
}

#[tokio::test(start_paused = true)]
async fn while_the_operators_daemon_updates_the_node_its_own_changes_are_no_drift_and_make_no_event() {
    let (client, log) = api_server_with("openshift-machine-config-operator");
    let writing = Writing::start(client);
    writing.node.send_replace(Some(node_in("Working")));
    writing.findings.send_replace(Some(finding("/etc/a")));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(written(&log), ("Unknown Updating".to_owned(), vec![]));

    // The update ended, and its change is still a difference.
    writing.node.send_replace(Some(node_in("Done")));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(written(&log), ("True Drifted".to_owned(), vec!["\"ConfigDriftDetected\"".to_owned()]));
    writing.end().await;
}

#[tokio::test(start_paused = true)]
async fn in_mode_manage_an_update_is_that_of_others_only_while_the_operators_daemon_runs() {
    for (daemon_runs, expected) in [(true, "Unknown Updating"), (false, "True Drifted")] {
        let progress = ApplyProgress { is_managed_by_operator: daemon_runs, ..ApplyProgress::idle() };
        let (_sensor, progress) = watch::channel(Some(progress));
        let (client, log) = api_server_with("openshift-machine-config-operator");
        let writing = Writing::start_in(client, Some(progress));
        writing.node.send_replace(Some(node_in("Working")));
        writing.findings.send_replace(Some(finding("/etc/a")));
        sleep(Duration::from_secs(5)).await;
        assert_eq!(written(&log).0, expected);
        writing.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reporter_whose_writes_are_refused_is_not_ready() {
    let refuses = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&refuses);
    let (client, _log) = played(move |request: &PlayedRequest| match &*request.line() {
        line if line.starts_with("PATCH") && asked.load(Ordering::Relaxed) => PlayedAnswer::Code(403),
        line if line.starts_with("GET") && line.contains("/driftreports/") => PlayedAnswer::Code(404),
        line if line.starts_with("GET") => PlayedAnswer::Json(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "one"}}),
        ),
        _ => PlayedAnswer::Echo,
    });
    let writing = Writing::start(client);
    let reason = || writes_nothing(*writing.renewed.borrow());
    writing.findings.send_replace(Some(finding("/etc/a")));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(reason(), Some("nothing was written to the API server yet"));
    refuses.store(false, Ordering::Relaxed);
    sleep(Duration::from_mins(2)).await;
    assert_eq!(reason(), None);
    refuses.store(true, Ordering::Relaxed);
    sleep(Duration::from_mins(2)).await;
    assert_eq!(reason(), None, "a short time without the API server changes nothing");
    sleep(Duration::from_mins(5)).await;
    assert_eq!(
        reason(),
        Some("the Lease, the report or the conditions have not been written for five minutes")
    );
    writing.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_made_anew_gets_conditions_report_and_lease_as_soon_as_the_watch_sees_it() {
    let uid = Arc::new(Mutex::new("one"));
    let now = Arc::clone(&uid);
    let (client, log) = played(move |asked: &PlayedRequest| {
        if !asked.line().contains("/api/v1/nodes") {
            return if asked.line().starts_with("GET") {
                PlayedAnswer::Code(404)
            } else {
                PlayedAnswer::Echo
            };
        }
        let uid = *now.lock().unwrap();
        PlayedAnswer::Json(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": uid}}),
        )
    });
    let writing = Writing::start(client);
    let see = |uid: &str| {
        let node = NodeMetadata { uid: Some(uid.to_owned()), ..NodeMetadata::default() };
        writing.node.send_replace(Some(node));
    };
    see("one");
    writing.findings.send_replace(Some(finding("/etc/a")));
    sleep(Duration::from_secs(5)).await;
    log.take();
    *uid.lock().unwrap() = "another";
    writing.node.send_replace(None);
    see("another");
    sleep(Duration::from_secs(5)).await;
    let asked = log.take();
    let sent = |end: &str| asked.iter().filter(|asked| asked.line().ends_with(end)).collect::<Vec<_>>();
    let report = sent("/driftreports/n1");
    assert_eq!(report[0].body["metadata"]["ownerReferences"][0]["uid"], "another");
    for end in ["/driftreports/n1", "/driftreports/n1/status", "/nodes/n1/status", "/leases/n1"] {
        assert_eq!(sent(end).len(), 1, "{asked:?}");
    }
    // A watch that is behind makes no requests.
    see("one");
    sleep(Duration::from_secs(5)).await;
    see("another");
    sleep(Duration::from_secs(5)).await;
    let lines = log.lines();
    assert!(lines.len() <= 6, "{lines:?}");
    writing.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_update_does_not_hide_the_change_of_another_pod() {
    let (client, log) = api_server();
    let writing = Writing::start(client);
    writing.node.send_replace(Some(node_in("Working")));
    writing.findings.send_replace(Some(finding("/etc/a")));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(written(&log), ("True Drifted".to_owned(), vec!["\"ConfigDriftDetected\"".to_owned()]));
    writing.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_opinion_that_is_out_of_step_is_one_drift_until_it_agrees_again() {
    let (client, log) = api_server();
    let writing = Writing::start(client);
    let opinions = |out_of_step: Option<&str>| {
        Some(crate::api::ReportedOsImage {
            booted: Some("quay.io/os@sha256:aa".to_owned()),
            out_of_step: out_of_step.map(str::to_owned),
            ..Default::default()
        })
    };
    let status = crate::api::DriftReportStatus {
        state: DriftState::InSync,
        os_image: opinions(None),
        ..Default::default()
    };
    let sensor = SensorState::Answers { refuses_config: false };
    writing.findings.send_replace(Some(NodeFinding { status, sensor, text: None, config: None }));
    writing.os_image.send_replace(opinions(Some("the node booted X")));
    sleep(Duration::from_secs(5)).await;
    let asked = log.take();
    let last =
        |end: &str| asked.iter().rfind(|asked| asked.line().ends_with(end)).unwrap().body["status"].clone();
    let report = last("/driftreports/n1/status");
    assert_eq!((&report["state"], &report["count"]), (&json!("Drifted"), &json!(1)));
    assert_eq!(report["osImage"]["outOfStep"], "the node booted X");
    assert_eq!(report["drifts"][0]["kind"], "os-image");
    let message = last("/nodes/n1/status")["conditions"][0]["message"].as_str().unwrap().to_owned();
    assert!(
        message.starts_with("OS image out of step: the node booted X; 1 managed thing drifted"),
        "{message}"
    );
    let event = asked.iter().find(|asked| asked.line().starts_with("POST")).unwrap();
    assert!(event.body["note"].as_str().unwrap().contains("the node booted X"), "{event:?}");

    writing.os_image.send_replace(opinions(None));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(written(&log), ("False InSync".to_owned(), vec!["\"ConfigDriftRecovered\"".to_owned()]));
    writing.end().await;
}
