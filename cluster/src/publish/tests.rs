mod policies;

use super::*;
use crate::api::{ChangedBy, Drift, DriftReportStatus, DriftState, ReportedPlan};
use crate::played_server::{PlayedAnswer, PlayedLog, PlayedRequest, played};
use crate::reports::{NodeEvent, SensorState};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

pub(super) const REPORT: &str = "/apis/holdfast.dev/v1alpha1/driftreports/n1";
pub(super) const NODE: &str = "/api/v1/nodes/n1";
pub(super) const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/holdfast-system/leases/n1";
pub(super) const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

fn place() -> ReporterPlace {
    ReporterPlace {
        node: "n1".to_owned(),
        namespace: "holdfast-system".to_owned(),
        holder: "pod-1".to_owned(),
    }
}

fn drift(path: &str) -> Drift {
    Drift { path: path.to_owned(), differences: vec!["content".to_owned()], ..Drift::default() }
}

pub(super) fn finding(paths: &[&str]) -> NodeFinding {
    let drifts: Vec<Drift> = paths.iter().map(|path| drift(path)).collect();
    NodeFinding {
        status: DriftReportStatus {
            observed_at: Some("2026-01-01T00:00:00Z".to_owned()),
            state: if paths.is_empty() { DriftState::InSync } else { DriftState::Drifted },
            count: i64::try_from(paths.len()).unwrap(),
            drifts,
            backend: Some("lsm".to_owned()),
            ..DriftReportStatus::default()
        },
        sensor: SensorState::Answers { refuses_config: false },
        text: None,
        config: None,
    }
}

fn node(uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": uid}})
}

/// The answer of a server on which nothing goes wrong.
pub(super) fn good(asked: &PlayedRequest) -> PlayedAnswer {
    match (asked.method.as_str(), asked.line().split_once(' ').unwrap().1) {
        (_, path) if path.starts_with(NODE) => PlayedAnswer::Json(node("node-uid")),
        _ => PlayedAnswer::Echo,
    }
}

pub(super) fn publisher(
    answer: impl FnMut(&PlayedRequest) -> PlayedAnswer + Send + 'static,
) -> (Publisher, PlayedLog) {
    let (client, log) = played(answer);
    (Publisher::new(&client, Reads::with(client.clone(), client.clone()), place()), log)
}

#[tokio::test(start_paused = true)]
async fn the_first_finding_makes_every_object_and_the_same_one_makes_no_request() {
    let (mut publisher, log) = publisher(good);
    publisher.round(Some(&finding(&["/etc/a"])), None).await;
    let asked = log.take();
    let lines: Vec<String> = asked.iter().map(PlayedRequest::line).collect();
    assert_eq!(
        lines,
        [
            format!("GET {NODE}"),
            format!("PATCH {REPORT}"),
            format!("PATCH {REPORT}/status"),
            format!("PATCH {NODE}/status"),
            format!("POST {EVENTS}"),
            format!("PATCH {LEASE}"),
        ]
    );
    for patch in asked.iter().filter(|asked| asked.method == "PATCH") {
        assert!(patch.uri.contains("fieldManager=holdfast-reporter"), "{}", patch.uri);
        assert!(patch.uri.contains("force=true"), "{}", patch.uri);
    }
    let owner = &asked[1].body["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Node"), &json!("node-uid")));
    assert_eq!(asked[2].body["status"]["drifts"][0]["path"], "/etc/a");
    let conditions = asked[3].body["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 2);
    assert_eq!(conditions[0]["type"], "ConfigDrift");
    assert_eq!(conditions[0]["status"], "True");
    assert_eq!(asked[3].body.as_object().unwrap().len(), 4, "nothing else of the Node: {}", asked[3].body);
    assert_eq!(asked[4].body["regarding"]["uid"], "node-uid");
    assert_eq!(asked[4].body["reason"], "ConfigDriftDetected");
    assert_eq!(asked[5].body["spec"]["holderIdentity"], "pod-1");

    let again = publisher.round(Some(&finding(&["/etc/a"])), None).await;
    assert_eq!(log.lines(), Vec::<String>::new());
    assert!(again > Instant::now() + Duration::from_mins(1), "the Lease is next");
}

#[tokio::test(start_paused = true)]
async fn a_write_without_an_answer_keeps_every_other_write_waiting() {
    let (mut publisher, log) = publisher(|asked| match asked.method.as_str() {
        "GET" => good(asked),
        _ => PlayedAnswer::Never,
    });
    let finding = finding(&["/etc/a"]);
    let round = publisher.round(Some(&finding), None);
    assert!(tokio::time::timeout(Duration::from_secs(5), round).await.is_err(), "the round has ended");
    assert_eq!(log.lines(), [format!("GET {NODE}"), format!("PATCH {REPORT}")]);
}

#[tokio::test(start_paused = true)]
async fn another_time_or_log_entry_alone_is_not_written_before_its_turn() {
    let (mut publisher, log) = publisher(good);
    publisher.round(Some(&finding(&["/etc/a"])), None).await;
    log.take();
    let mut later = finding(&["/etc/a"]);
    later.status.observed_at = Some("2026-01-01T00:00:09Z".to_owned());
    publisher.round(Some(&later), None).await;
    assert_eq!(log.lines(), Vec::<String>::new());
    // Ten minutes of rounds whenever one is due.
    let end = Instant::now() + REFRESH + Duration::from_secs(1);
    while Instant::now() < end {
        let next = publisher.round(Some(&later), None).await;
        tokio::time::sleep_until(next).await;
    }
    let lines = log.lines();
    let count = |line: String| lines.iter().filter(|other| **other == line).count();
    assert_eq!(count(format!("PATCH {REPORT}/status")), 1);
    assert_eq!(count(format!("PATCH {NODE}/status")), 1);
    assert!((4..=5).contains(&count(format!("PATCH {LEASE}"))), "{lines:?}");
    assert!(lines.len() <= 20, "below two requests a minute: {lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_recovery_is_written_with_an_event_and_the_time_of_the_change() {
    let (mut publisher, log) = publisher(good);
    publisher.round(Some(&finding(&["/etc/a"])), None).await;
    log.take();
    publisher.round(Some(&finding(&[])), None).await;
    let asked = log.take();
    let lines: Vec<String> = asked.iter().map(PlayedRequest::line).collect();
    assert_eq!(
        lines,
        [format!("PATCH {REPORT}/status"), format!("PATCH {NODE}/status"), format!("POST {EVENTS}")]
    );
    assert_eq!(asked[1].body["status"]["conditions"][0]["status"], "False");
    assert_eq!(asked[2].body["reason"], "ConfigDriftRecovered");
}

#[tokio::test(start_paused = true)]
async fn a_new_reporter_repeats_neither_event_nor_time_of_the_change() {
    let (mut publisher, log) = publisher(|asked| match asked.line().as_str() {
        "GET /api/v1/nodes/n1" => {
            let mut node = node("node-uid");
            node["status"] = json!({"conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "ConfigDrift", "status": "True", "lastTransitionTime": "2025-05-05T05:05:05Z"}]});
            PlayedAnswer::Json(node)
        }
        "PATCH /apis/holdfast.dev/v1alpha1/driftreports/n1" => PlayedAnswer::Json(json!({
            "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftReport", "metadata": {"name": "n1"},
            "status": finding(&["/etc/a"]).status,
        })),
        _ => good(asked),
    });
    publisher.round(Some(&finding(&["/etc/a"])), None).await;
    let asked = log.take();
    assert!(asked.iter().all(|asked| asked.method != "POST"), "{asked:?}");
    let conditions = asked.iter().find(|asked| asked.line() == format!("PATCH {NODE}/status")).unwrap();
    let drift = &conditions.body["status"]["conditions"][0];
    assert_eq!(drift["lastTransitionTime"], "2025-05-05T05:05:05Z");
    assert_ne!(drift["lastHeartbeatTime"], "2025-05-05T05:05:05Z");
}

#[tokio::test(start_paused = true)]
async fn a_new_reporter_keeps_the_names_of_pods_and_containers_that_no_longer_exist() {
    let by = |name: Option<&str>| {
        let name = name.map(str::to_owned);
        let mut found = finding(&["/etc/a"]);
        found.status.drifts[0].by = Some(ChangedBy {
            pod_uid: Some("u-1".to_owned()),
            container_id: Some("c-1".to_owned()),
            pod_namespace: name.clone(),
            pod_name: name.clone(),
            container_name: name,
            ..ChangedBy::default()
        });
        found
    };
    let report = json!({"apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftReport",
        "metadata": {"name": "n1"}, "status": by(Some("gone")).status});
    let (mut publisher, log) = publisher(move |asked| match asked.line() {
        line if line == format!("PATCH {REPORT}") => PlayedAnswer::Json(report.clone()),
        _ => good(asked),
    });
    publisher.round(Some(&by(None)), None).await;
    let asked = log.take();
    let named = &asked[2].body["status"];
    assert_eq!(asked[2].line(), format!("PATCH {REPORT}/status"));
    assert_eq!(
        (&named["drifts"][0]["by"]["podName"], &named["newest"]["by"]),
        (&json!("gone"), &json!("pod gone/gone container gone"))
    );
    let condition = asked[3].body["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(condition.contains("gone/gone"), "{condition}");
    // The sensor's next answers have no names either.
    let mut later = by(None);
    later.status.drifts.push(drift("/etc/b"));
    publisher.round(Some(&later), None).await;
    let asked = log.take();
    assert_eq!(asked[0].body["status"]["drifts"][0]["by"]["containerName"], "gone");
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_the_present_state_is_written_once() {
    let code = Arc::new(AtomicU16::new(503));
    let now = Arc::clone(&code);
    let (mut publisher, log) = publisher(move |asked| match now.load(Ordering::Relaxed) {
        200 => good(asked),
        code => PlayedAnswer::Code(code),
    });
    let names: Vec<String> = (0..300).map(|number| format!("/etc/{number}")).collect();
    let begin = Instant::now();
    for name in &names {
        publisher.round(Some(&finding(&[name.as_str()])), None).await;
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(begin.elapsed() >= Duration::from_mins(5));
    let requests = log.take().len();
    assert!((5..=20).contains(&requests), "{requests} requests in five minutes without an API server");
    code.store(200, Ordering::Relaxed);
    let mut next = publisher.round(Some(&finding(&[])), None).await;
    for _ in 0..3 {
        tokio::time::sleep_until(next).await;
        next = publisher.round(Some(&finding(&[])), None).await;
        if next > Instant::now() + Duration::from_secs(90) {
            break;
        }
    }
    let lines = log.lines();
    let statuses = lines.iter().filter(|line| line.ends_with("/driftreports/n1/status")).count();
    assert_eq!(statuses, 1, "{lines:?}");
    assert!(
        !lines.iter().any(|line| line.starts_with("POST")),
        "no Event names a drift that is over: {lines:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_the_definition_gets_conditions_all_the_same() {
    let (mut publisher, log) =
        publisher(
            |asked| if asked.uri.contains("driftreports") { PlayedAnswer::Code(404) } else { good(asked) },
        );
    let again = publisher.round(Some(&finding(&["/etc/a"])), None).await;
    let lines = log.lines();
    assert!(lines.contains(&format!("PATCH {NODE}/status")), "{lines:?}");
    assert!(
        lines.contains(&format!("POST {EVENTS}")) && lines.contains(&format!("PATCH {LEASE}")),
        "{lines:?}"
    );
    assert!(again <= Instant::now() + Duration::from_secs(1), "the report is tried again");
}

#[tokio::test(start_paused = true)]
async fn a_report_that_was_deleted_is_made_anew() {
    let deleted = Arc::new(Mutex::new(false));
    let now = Arc::clone(&deleted);
    let (mut publisher, log) = publisher(move |asked| {
        let mut deleted = now.lock().unwrap();
        match asked.line().as_str() {
            line if line == format!("PATCH {REPORT}/status") && *deleted => PlayedAnswer::Code(404),
            line if line == format!("PATCH {REPORT}") => {
                *deleted = false;
                PlayedAnswer::Echo
            }
            _ => good(asked),
        }
    });
    publisher.round(Some(&finding(&["/etc/a"])), None).await;
    log.take();
    *deleted.lock().unwrap() = true;
    let next = publisher.round(Some(&finding(&["/etc/b"])), None).await;
    assert!(log.lines().contains(&format!("PATCH {REPORT}/status")));
    tokio::time::sleep_until(next).await;
    publisher.round(Some(&finding(&["/etc/b"])), None).await;
    assert_eq!(log.lines(), [format!("PATCH {REPORT}"), format!("PATCH {REPORT}/status")]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_made_anew_gets_a_report_of_its_own() {
    let uid = Arc::new(Mutex::new("node-uid"));
    let now = Arc::clone(&uid);
    let (mut publisher, log) = publisher(move |asked| {
        if asked.uri.starts_with(NODE) { PlayedAnswer::Json(node(*now.lock().unwrap())) } else { good(asked) }
    });
    publisher.round(Some(&finding(&[])), None).await;
    *uid.lock().unwrap() = "another-uid";
    publisher.round(Some(&finding(&["/etc/a"])), None).await;
    log.take();
    let next = publisher.round(Some(&finding(&["/etc/a"])), None).await;
    let asked = log.take();
    let report = asked.iter().find(|asked| asked.line() == format!("PATCH {REPORT}")).unwrap();
    assert_eq!(report.body["metadata"]["ownerReferences"][0]["uid"], "another-uid");
    assert!(asked.iter().any(|asked| asked.line() == format!("PATCH {LEASE}")));
    assert!(next > Instant::now());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_to_wait_is_not_asked_before() {
    let (mut publisher, log) = publisher(|_| {
        PlayedAnswer::Status(
            json!({"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "slow",
            "details": {"retryAfterSeconds": 40}}),
        )
    });
    let next = publisher.round(Some(&finding(&[])), None).await;
    assert_eq!(log.take().len(), 1);
    assert!(next >= Instant::now() + Duration::from_secs(40));
    publisher.round(Some(&finding(&["/etc/a"])), None).await;
    assert_eq!(log.take().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_is_given_up_after_the_time_limit() {
    let (mut publisher, _log) = publisher(|_| PlayedAnswer::Never);
    let begin = Instant::now();
    let next = publisher.round(Some(&finding(&[])), None).await;
    assert!(begin.elapsed() < ANSWER_TIMEOUT + Duration::from_secs(1));
    assert!(next > Instant::now());
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_drifts_is_a_few_events_and_none_is_left_out() {
    let (mut publisher, log) = publisher(good);
    let mut paths = Vec::new();
    for number in 0..60 {
        paths.push(format!("/etc/{number}"));
        let newest: Vec<&str> = paths.iter().rev().map(String::as_str).collect();
        publisher.round(Some(&finding(&newest)), None).await;
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let newest: Vec<&str> = paths.iter().rev().map(String::as_str).collect();
    let next = publisher.round(Some(&finding(&newest)), None).await;
    tokio::time::sleep_until(next).await;
    publisher.round(Some(&finding(&newest)), None).await;
    let asked = log.take();
    let notes: Vec<&str> = asked
        .iter()
        .filter(|asked| asked.method == "POST")
        .filter_map(|asked| asked.body["note"].as_str())
        .collect();
    assert!((6..=9).contains(&notes.len()), "{notes:?}");
    let counted: i64 = notes.iter().map(|note| note.split(' ').next().unwrap().parse::<i64>().unwrap()).sum();
    assert_eq!(counted, 60, "each drift is counted in one Event: {notes:?}");
}

#[tokio::test(start_paused = true)]
async fn without_a_finding_only_the_lease_is_renewed() {
    let (mut publisher, log) = publisher(good);
    publisher.round(None, None).await;
    assert_eq!(log.lines().last().unwrap(), &format!("PATCH {LEASE}"));
    assert_eq!(publisher.round(None, None).await, Instant::now() + objects::LEASE_RENEWAL);
}

/// What mode `manage` wants while config `b` is applied.
fn managed(state: &str) -> ManagedNode {
    let annotations = [("machineconfiguration.openshift.io/state", state.to_owned())];
    let event = NodeEvent { is_warning: true, reason: "X", action: "Update", note: "x".to_owned() };
    ManagedNode {
        plan: Some(ReportedPlan { config: "b".to_owned(), ..ReportedPlan::default() }),
        annotations: Some(AnnotationWrite {
            annotations: BTreeMap::from(annotations),
            removed: Vec::new(),
            based_on: 7,
            events: vec![event],
        }),
    }
}

#[tokio::test(start_paused = true)]
async fn the_plan_is_in_the_report_before_the_annotations_and_both_are_remembered_as_written() {
    let (mut publisher, log) = publisher(|asked| match asked.line() {
        line if line == format!("PATCH {NODE}") => {
            let mut node = node("node-uid");
            node["metadata"]["resourceVersion"] = json!("8");
            node["metadata"]["annotations"] = asked.body["metadata"]["annotations"].clone();
            node["metadata"]["annotations"]["example.com/x"] = json!("y");
            PlayedAnswer::Json(node)
        }
        _ => good(asked),
    });
    publisher.round(Some(&finding(&[])), Some(&ManagedNode::default())).await;
    log.take();
    publisher.round(Some(&finding(&[])), Some(&managed("Degraded"))).await;
    let asked = log.take();
    let lines: Vec<String> = asked.iter().map(PlayedRequest::line).collect();
    assert_eq!(
        lines,
        [format!("PATCH {REPORT}/status"), format!("POST {EVENTS}"), format!("PATCH {NODE}")],
        "the Event is before the annotations that end its cause"
    );
    assert_eq!(asked[0].body["status"]["plan"]["config"], "b");
    assert!(asked[2].uri.contains("fieldManager=holdfast-reporter"), "{}", asked[2].uri);
    let written = publisher.written();
    assert_eq!(written.plan.as_ref().unwrap().config, "b");
    let node = written.node.as_ref().unwrap();
    assert_eq!(node.resource_version, 8);
    let state = ("machineconfiguration.openshift.io/state".to_owned(), "Degraded".to_owned());
    assert_eq!(node.annotations, BTreeMap::from([state]), "annotations of others are not kept");
    let counted = "writes_total{object=\"annotations\",result=\"success\"} 1\n";
    assert!(publisher.metrics.page().contains(counted), "{}", publisher.metrics.page());
    publisher.round(Some(&finding(&[])), Some(&managed("Degraded"))).await;
    assert_eq!(log.lines(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_annotation_that_another_writer_set_is_removed_by_name_and_one_of_ours_by_the_apply_alone() {
    const ACTION: &str = "machineconfiguration.openshift.io/post-config-action";
    for is_foreign in [true, false] {
        let (mut publisher, log) = publisher(move |asked| match asked.line() {
            line if line == format!("PATCH {NODE}") => {
                let mut node = node("node-uid");
                if is_foreign && asked.uri.contains("force=true") {
                    node["metadata"]["annotations"][ACTION] = json!("");
                }
                PlayedAnswer::Json(node)
            }
            _ => good(asked),
        });
        let mut managed = managed("Done");
        managed.annotations.as_mut().unwrap().removed = vec![ACTION];
        publisher.round(None, Some(&managed)).await;
        let asked = log.take();
        let patches: Vec<_> = asked.iter().filter(|asked| asked.line() == format!("PATCH {NODE}")).collect();
        assert_eq!(patches.len(), 1 + usize::from(is_foreign), "{patches:?}");
        if is_foreign {
            assert_eq!(patches[1].body, json!({"metadata": {"annotations": {ACTION: null}}}));
        }
        assert!(!publisher.written().node.as_ref().unwrap().annotations.contains_key(ACTION));
    }
}

#[tokio::test(start_paused = true)]
async fn annotations_that_are_refused_are_tried_again_without_another_event() {
    let (mut publisher, log) = publisher(|asked| {
        if asked.line() == format!("PATCH {NODE}") { PlayedAnswer::Code(403) } else { good(asked) }
    });
    let mut next = publisher.round(None, Some(&managed("Degraded"))).await;
    for _ in 0..4 {
        tokio::time::sleep_until(next).await;
        next = publisher.round(None, Some(&managed("Degraded"))).await;
    }
    let lines = log.lines();
    let count = |line: String| lines.iter().filter(|other| **other == line).count();
    assert_eq!(count(format!("POST {EVENTS}")), 1, "{lines:?}");
    let refused = count(format!("PATCH {NODE}"));
    assert!(refused >= 3, "{lines:?}");
    assert_eq!(publisher.written().node, None);
    let page = publisher.metrics.page();
    let counted = |result: &str, count: usize| {
        let line = format!("writes_total{{object=\"annotations\",result=\"{result}\"}} {count}\n");
        assert!(page.contains(&line), "{line} is missing:\n{page}");
    };
    counted("refused", refused);
    counted("success", 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_reporter_keeps_the_plan_until_mode_manage_has_decided() {
    let (mut publisher, log) = publisher(|asked| match asked.line() {
        line if line == format!("PATCH {REPORT}") => {
            let status = DriftReportStatus { plan: managed("").plan, ..finding(&[]).status };
            PlayedAnswer::Json(json!({"apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftReport",
                "metadata": {"name": "n1"}, "status": status}))
        }
        _ => good(asked),
    });
    publisher.round(Some(&finding(&[])), None).await;
    let status = |asked: Vec<PlayedRequest>| {
        let write = asked.into_iter().find(|asked| asked.line() == format!("PATCH {REPORT}/status"));
        write.unwrap().body["status"].clone()
    };
    assert_eq!(status(log.take())["plan"]["config"], "b");
    publisher.round(Some(&finding(&[])), Some(&ManagedNode::default())).await;
    assert_eq!(status(log.take()).get("plan"), None);
}
