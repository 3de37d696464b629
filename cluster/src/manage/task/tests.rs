//! The task with a played API server, and channels in the place of the other tasks.

use super::super::plan::annotation;
use super::*;
use crate::api::ReportedPlan;
use crate::played_server::{PlayedAnswer, played};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::{sleep, timeout};

fn node(resource_version: u64) -> NodeMetadata {
    NodeMetadata { resource_version, ..NodeMetadata::default() }
}

/// The other ends of a manager's channels.
struct Others {
    node: watch::Sender<Option<NodeMetadata>>,
    written: watch::Sender<WrittenNode>,
    progress: watch::Sender<Option<ApplyProgress>>,
    findings: watch::Sender<Option<NodeFinding>>,
}

/// A manager with this API server.
fn manager_of(client: &Client, watched: Option<NodeMetadata>) -> (Manager, Others) {
    let (node, newest_node) = watch::channel(watched);
    let (written, newest_written) = watch::channel(WrittenNode::default());
    let (progress, newest_progress) = watch::channel(None);
    let (findings, newest_finding) = watch::channel(None);
    let channels = ManageChannels {
        node: newest_node,
        progress: newest_progress,
        findings: newest_finding,
        written: newest_written,
        managed: watch::channel(None).0,
    };
    let reads = Reads::with(client.clone(), client.clone());
    let manager = Manager::new(client, reads, "n1".to_owned(), SensorSocket::new("/nowhere"), channels);
    (manager, Others { node, written, progress, findings })
}

/// A manager, and the channels by which it learns what the Node is.
fn manager(
    watched: NodeMetadata,
) -> (Manager, watch::Sender<Option<NodeMetadata>>, watch::Sender<WrittenNode>) {
    let (client, _log) = played(|_| PlayedAnswer::Code(404));
    let (manager, others) = manager_of(&client, Some(watched));
    (manager, others.node, others.written)
}

/// A Node with these annotations.
fn annotated(annotations: &[(&str, &str)]) -> NodeMetadata {
    let owned = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    NodeMetadata { annotations: owned.collect(), ..node(1) }
}

#[tokio::test(start_paused = true)]
async fn each_drain_has_an_hour_of_its_own_and_that_of_an_update_that_is_over_has_none() {
    let requests = |request: &str, more: &[(&str, &str)]| {
        annotated(&[&[(annotations::DESIRED_DRAIN, request)][..], more].concat())
    };
    let (mut manager, watched, _written) = manager(requests("drain-b", &[]));
    let mut left = |shown: Option<NodeMetadata>| {
        if let Some(shown) = shown {
            watched.send_replace(Some(shown));
        }
        manager.look();
        manager.drain_due().map(|due| due.duration_since(Instant::now()))
    };
    assert_eq!(left(None), Some(LONGEST_DRAIN));
    sleep(LONGEST_DRAIN / 2).await;
    assert_eq!(left(None), Some(LONGEST_DRAIN / 2));
    // The pool has another config now.
    assert_eq!(left(Some(requests("drain-c", &[]))), Some(LONGEST_DRAIN));
    sleep(LONGEST_DRAIN).await;
    assert_eq!(left(None), Some(Duration::ZERO));
    // It went back to the present config, on a node that was cordoned before.
    let over = [(annotations::CORDONED_BEFORE, annotations::OVER)];
    assert_eq!(left(Some(requests("drain-c", &over))), None);
    assert_eq!(left(Some(requests("drain-d", &[]))), Some(LONGEST_DRAIN));
    assert_eq!(left(Some(requests("drain-d", &[(annotations::LAST_APPLIED_DRAIN, "drain-d")]))), None);
}

#[tokio::test(start_paused = true)]
async fn after_an_order_that_failed_the_config_is_planned_anew_before_the_next_order() {
    let desired = [(annotations::DESIRED_CONFIG.to_owned(), "b".to_owned())];
    let node = NodeMetadata { annotations: desired.into(), ..node(1) };
    let (mut manager, _watched, _written) = manager(node);
    let (progress, seen) = watch::channel(Some(ApplyProgress::idle()));
    manager.channels.progress = seen;
    manager.look();
    let plan = ReportedPlan { config: "b".to_owned(), ..ReportedPlan::default() };
    let outcome = PlannedOutcome::Plan { id: "ab".to_owned(), plan, is_forced: false };
    manager.planned = Some(Planned { config: "b".to_owned(), outcome });
    manager.apply("ab").await;
    // The plan changed since it was published, so the sensor has not applied it.
    progress.send_replace(Some(ApplyProgress {
        phase: ApplyPhase::Failed,
        config: Some("b".to_owned()),
        message: Some("the plan changed since it was published".to_owned()),
        ..ApplyProgress::idle()
    }));
    let mut pauses = Vec::new();
    for _ in 0..3 {
        manager.look();
        let has_plan = matches!(manager.planned_outcome(), Some(PlannedOutcome::Plan { .. }));
        assert!(!has_plan && !manager.may_attempt(), "the failure is shown first");
        let pause = manager.not_before.unwrap() - Instant::now();
        assert!(pause <= LONGEST_PAUSE);
        pauses.push(pause);
        sleep(pause).await;
        manager.look();
        assert_eq!(manager.show(), Then::Plan);
        // The API server has no config here, so there is no plan, and the next attempt comes after a longer pause.
        manager.plan().await;
    }
    assert!(pauses.is_sorted(), "{pauses:?}");
}

#[tokio::test]
async fn after_a_restored_backup_the_answers_to_writes_of_before_are_not_the_newest_node() {
    let (mut manager, watched, written) = manager(node(7));
    written.send_replace(WrittenNode { node: Some(node(9)), plan: None });
    let mut newest = || {
        manager.look();
        manager.show();
        manager.node().unwrap().resource_version
    };
    assert_eq!(newest(), 9);
    watched.send_replace(Some(node(3)));
    assert_eq!(newest(), 3);
    assert_eq!(newest(), 3);
    written.send_replace(WrittenNode { node: Some(node(4)), plan: None });
    assert_eq!(newest(), 4, "a write of after the restore");
    watched.send_replace(Some(node(5)));
    assert_eq!(newest(), 5);
}

/// A manager whose node has a plan with a drain for `b`, which the cluster sees, on a Node that is cordoned when the flag says so.
fn about_to_drain(is_cordoned: &Arc<AtomicBool>) -> (Manager, Others) {
    let is_cordoned = Arc::clone(is_cordoned);
    let (client, _log) = played(move |_| {
        PlayedAnswer::Json(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
            "spec": {"unschedulable": is_cordoned.load(Ordering::Relaxed)},
        }))
    });
    let plan = ReportedPlan { config: "b".to_owned(), drain: true, ..ReportedPlan::default() };
    let node = annotated(&[
        (annotations::CURRENT_CONFIG, "a"),
        (annotations::DESIRED_CONFIG, "b"),
        (annotations::STATE, annotations::state::WORKING),
        (annotations::REASON, ""),
        (annotations::PLAN, &annotation(&plan)),
    ]);
    let (mut manager, others) = manager_of(&client, Some(node));
    others
        .progress
        .send_replace(Some(ApplyProgress { current: Some("a".to_owned()), ..ApplyProgress::idle() }));
    others.written.send_replace(WrittenNode { node: None, plan: Some(plan.clone()) });
    manager.look();
    let outcome = PlannedOutcome::Plan { id: "id-b".to_owned(), plan, is_forced: false };
    manager.planned = Some(Planned { config: "b".to_owned(), outcome });
    (manager, others)
}

/// The annotations with the request for a drain, after a look at the cordon.
async fn requested(manager: &mut Manager) -> BTreeMap<&'static str, String> {
    manager.look();
    assert_eq!(manager.show(), Then::LookAtCordon);
    manager.look_at_cordon().await;
    manager.look();
    assert_eq!(manager.show(), Then::Wait);
    let wanted = manager.channels.managed.borrow().clone().unwrap();
    let annotations = wanted.annotations.unwrap().annotations;
    assert_eq!(annotations[annotations::DESIRED_DRAIN], "drain-b");
    annotations
}

#[tokio::test(start_paused = true)]
async fn a_cordon_that_an_admin_sets_before_the_request_for_the_drain_is_written_stays_the_admins() {
    let is_cordoned = Arc::default();
    let (mut manager, _others) = about_to_drain(&is_cordoned);
    assert!(!requested(&mut manager).await.contains_key(annotations::CORDONED_BEFORE));
    // The API server refuses the write for a while.
    is_cordoned.store(true, Ordering::Relaxed);
    let changed = timeout(Duration::from_secs(31), manager.changed());
    assert!(changed.await.expect("the answer about the cordon is believed for ever"));
    assert_eq!(requested(&mut manager).await[annotations::CORDONED_BEFORE], "true");
}

#[tokio::test(start_paused = true)]
async fn the_drain_of_the_next_attempt_asks_for_the_cordon_anew() {
    let is_cordoned = Arc::default();
    let (mut manager, _others) = about_to_drain(&is_cordoned);
    requested(&mut manager).await;
    manager.apply("id-b").await;
    assert_eq!(manager.is_cordoned(), None);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_failed_before_the_start_is_not_repeated_at_once() {
    let (client, _log) = played(|_| PlayedAnswer::Code(404));
    let (mut manager, others) = manager_of(&client, None);
    let failed = |config: &str| ApplyProgress {
        phase: ApplyPhase::Failed,
        config: Some(config.to_owned()),
        ..ApplyProgress::idle()
    };
    for (config, may_attempt) in [("b", false), ("c", true)] {
        // The progress is known before the Node.
        others.progress.send_replace(Some(failed(config)));
        others.node.send_replace(None);
        manager.look();
        others.node.send_replace(Some(annotated(&[(annotations::DESIRED_CONFIG, "b")])));
        manager.look();
        assert_eq!(manager.may_attempt(), may_attempt, "after a failure of {config}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_drift_brings_the_next_attempt_forward_and_leaves_the_pauses_between_attempts() {
    let (client, _log) = played(|_| PlayedAnswer::Code(404));
    let desired = [(annotations::DESIRED_CONFIG, "b")];
    let (mut manager, others) = manager_of(&client, Some(annotated(&desired)));
    let drifts = |state: DriftState| {
        let degraded = state == DriftState::Drifted;
        let status = crate::api::DriftReportStatus { state, degraded, ..Default::default() };
        let sensor = SensorState::Answers { refuses_config: false };
        others.findings.send_replace(Some(NodeFinding { status, sensor, text: None, config: None }));
    };
    manager.look();
    assert!(manager.may_attempt());
    for _ in 0..9 {
        manager.pause();
    }
    let begin = Instant::now();
    let left = |manager: &Manager| manager.not_before.unwrap() - Instant::now();
    assert!(left(&manager) > LONGEST_PAUSE / 2);
    // A user changes a file and changes it back, each second.
    let mut attempts = 0;
    while begin.elapsed() < LONGEST_PAUSE {
        for state in [DriftState::Drifted, DriftState::InSync] {
            drifts(state);
            manager.look();
            if manager.may_attempt() {
                attempts += 1;
                manager.pause();
                assert!(left(&manager) > LONGEST_PAUSE / 2, "the pauses begin anew");
            }
        }
        sleep(Duration::from_secs(1)).await;
    }
    assert!((2..=12).contains(&attempts), "{attempts}");
    // Another desired config need not wait.
    let desired = [(annotations::DESIRED_CONFIG, "c")];
    others.node.send_replace(Some(annotated(&desired)));
    manager.look();
    assert!(manager.may_attempt());
}

#[test]
fn only_an_answering_sensor_without_a_drift_says_that_none_is_known() {
    let found = |count: i64, sensor: SensorState| {
        let status = crate::api::DriftReportStatus { count, degraded: count > 0, ..Default::default() };
        drift_of(Some(&NodeFinding { status, sensor, text: None, config: None }))
    };
    let answers = SensorState::Answers { refuses_config: false };
    assert_eq!(found(0, answers.clone()), NodeDrift::NoneKnown);
    assert_eq!(found(1, answers), NodeDrift::Unknown);
    assert_eq!(found(0, SensorState::Silent { since: String::new() }), NodeDrift::Unknown);
    assert_eq!(drift_of(None), NodeDrift::Unknown);
}
