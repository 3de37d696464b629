mod drains;

use super::annotations::{
    CORDONED_BEFORE, CURRENT_CONFIG, DESIRED_CONFIG, DESIRED_DRAIN, PLAN, POST_CONFIG_ACTION, REASON, STATE,
};
use super::plan::annotation;
use super::*;
use crate::api::ReportedPlan;
use crate::played_server::{PlayedAnswer, played};
use sensor_model::socket::{ApplyPhase, ApplyProgress};
use serde_json::json;
use std::collections::BTreeMap;

const LAST_APPLIED_DRAIN: &str = "machineconfiguration.openshift.io/lastAppliedDrain";
const TEXT: &str = "content mismatch for file \"/etc/a\"";

/// A node whose cluster writes what it wants at once.
struct Played {
    annotations: BTreeMap<String, String>,
    published: Option<ReportedPlan>,
    progress: Option<ApplyProgress>,
    planned: Option<Planned>,
    drift: NodeDrift,
    may_attempt: bool,
    is_cordoned: Option<bool>,
    is_drain_overdue: bool,
}

impl Played {
    /// A node that has config `a` and is to have `desired`.
    fn new(desired: &str) -> Self {
        let mut played = Self {
            annotations: BTreeMap::new(),
            published: None,
            progress: Some(progress(ApplyPhase::Idle, None, "a")),
            planned: None,
            drift: NodeDrift::InSync,
            may_attempt: true,
            is_cordoned: None,
            is_drain_overdue: false,
        };
        played.set(CURRENT_CONFIG, "a");
        played.set(DESIRED_CONFIG, desired);
        played.set(STATE, "Done");
        played.set(REASON, "");
        played
    }

    /// The same after the drain for it was requested.
    fn asked_to_drain(desired: &str, is_cordoned: bool) -> Self {
        let mut played = Self::new(desired);
        played.plan(desired, true);
        played.is_cordoned = Some(is_cordoned);
        played.settle();
        played
    }

    fn set(&mut self, name: &str, value: &str) {
        self.annotations.insert(name.to_owned(), value.to_owned());
    }

    fn has(&self, name: &str, value: &str) -> bool {
        self.annotations.get(name).is_some_and(|found| found == value)
    }

    fn next(&self) -> Step {
        next(&Situation {
            node: "n1",
            annotations: &self.annotations,
            progress: self.progress.as_ref(),
            planned: self.planned.as_ref(),
            drift: &self.drift,
            may_attempt: self.may_attempt,
            published: self.published.as_ref(),
            is_cordoned: self.is_cordoned,
            is_drain_overdue: self.is_drain_overdue,
        })
    }

    /// Writes what is wanted until nothing more is. Gives the Events' reasons and what is to be done then.
    fn settle(&mut self) -> (Vec<&'static str>, Then) {
        let mut events = Vec::new();
        for _ in 0..9 {
            let step = self.next();
            if step.wanted.is_seen(&self.annotations, self.published.as_ref()) {
                return (events, step.then);
            }
            if !step.wanted.has_annotations(&self.annotations) {
                events.extend(step.wanted.events.iter().map(|event| event.reason));
            }
            self.annotations.retain(|name, _| !OURS.contains(&name.as_str()));
            for (name, value) in step.wanted.annotations {
                self.set(name, &value);
            }
            self.published = step.wanted.plan;
        }
        panic!("the steps never end: {:?}", self.next());
    }

    /// The sensor's plan of a config.
    fn plan(&mut self, config: &str, drain: bool) {
        let plan = ReportedPlan { config: config.to_owned(), drain, ..ReportedPlan::default() };
        let outcome = PlannedOutcome::Plan { id: format!("id-{config}"), plan, is_forced: false };
        self.planned = Some(Planned { config: config.to_owned(), outcome });
    }

    fn planned_as(&mut self, config: &str, outcome: PlannedOutcome) {
        self.planned = Some(Planned { config: config.to_owned(), outcome });
    }
}

fn progress(phase: ApplyPhase, config: Option<&str>, current: &str) -> ApplyProgress {
    ApplyProgress {
        phase,
        id: config.map(|config| format!("id-{config}")),
        config: config.map(str::to_owned),
        message: Some("chrony.service: the restart failed".to_owned()),
        current: Some(current.to_owned()),
        ..ApplyProgress::idle()
    }
}

fn apply(config: &str) -> Then {
    Then::Apply(format!("id-{config}"))
}

#[test]
fn a_node_without_a_record_of_its_config_is_done_only_after_the_sensor_has_compared_it() {
    let mut node = Played::new("a");
    node.annotations.remove(STATE);
    node.progress = Some(ApplyProgress { current: None, ..progress(ApplyPhase::Idle, None, "") });
    assert_eq!(node.settle(), (vec![], Then::Plan));
    assert!(!node.annotations.contains_key(STATE), "{:?}", node.annotations);
    node.plan("a", false);
    assert_eq!(node.settle(), (vec![], apply("a")));
    assert!(node.has(STATE, "Working"));
    node.progress = Some(progress(ApplyPhase::Done, Some("a"), "a"));
    assert_eq!(node.settle().1, Then::Wait);
    assert!(node.has(STATE, "Done") && node.has(CURRENT_CONFIG, "a"));
}

#[test]
fn beside_the_operators_daemon_no_annotation_is_written_and_nothing_is_asked_for() {
    let drifted = NodeDrift::Drifted(TEXT.to_owned());
    for (desired, drift) in [("a", NodeDrift::InSync), ("b", NodeDrift::InSync), ("a", drifted)] {
        let mut node = Played::new(desired);
        node.drift = drift;
        node.plan("b", true);
        let progress = progress(ApplyPhase::Idle, None, "a");
        node.progress = Some(ApplyProgress { is_managed_by_operator: true, ..progress });
        let before = node.annotations.clone();
        assert_eq!(node.settle(), (vec![], Then::Wait));
        assert_eq!(node.annotations, before);
    }
}

#[test]
fn another_desired_config_is_planned_and_the_plan_is_published_before_the_order() {
    let mut node = Played::new("b");
    assert_eq!(node.settle(), (vec![], Then::Plan));
    assert!(node.has(STATE, "Done"), "nothing is written before there is a plan");
    node.plan("b", false);
    let first = node.next();
    assert!(!first.wanted.is_seen(&node.annotations, None));
    assert_eq!(node.settle(), (vec![], apply("b")));
    assert!(node.has(STATE, "Working") && node.has(CURRENT_CONFIG, "a"));
    assert_eq!(node.published.as_ref().unwrap().config, "b");
    assert_eq!(node.annotations[PLAN], annotation(node.published.as_ref().unwrap()));
    // The annotation alone is not enough.
    node.published = None;
    let step = node.next();
    assert!(!step.wanted.is_seen(&node.annotations, None));
}

#[test]
fn a_finished_apply_is_done_without_a_request_to_end_a_cordon_that_is_not_ours() {
    let mut node = Played::new("b");
    node.plan("b", false);
    node.settle();
    node.progress = Some(progress(ApplyPhase::Running, Some("b"), "a"));
    assert_eq!(node.settle(), (vec![], Then::Wait));
    assert!(node.annotations.contains_key(PLAN));
    node.progress = Some(progress(ApplyPhase::Rebooting, Some("b"), "a"));
    assert_eq!(node.settle(), (vec!["Reboot"], Then::Wait));
    assert!(node.has(POST_CONFIG_ACTION, "Rebooting"));
    // After the reboot the sensor does not answer at once.
    node.progress = None;
    assert_eq!(node.settle(), (vec![], Then::Wait));
    assert!(node.has(POST_CONFIG_ACTION, "Rebooting"));
    node.progress = Some(progress(ApplyPhase::Done, Some("b"), "b"));
    assert_eq!(node.settle(), (vec!["NodeDone"], Then::Wait));
    assert!(node.has(CURRENT_CONFIG, "b") && node.has(STATE, "Done") && node.has(REASON, ""));
    assert!(!node.annotations.contains_key(POST_CONFIG_ACTION));
    assert!(!node.annotations.contains_key(PLAN) && node.published.is_none());
    assert!(!node.annotations.contains_key(DESIRED_DRAIN));
}

#[test]
fn a_refusal_of_the_next_attempt_is_shown_in_the_place_of_the_last_failure() {
    let mut node = Played::new("b");
    (node.progress, node.may_attempt) = (Some(progress(ApplyPhase::Failed, Some("b"), "a")), false);
    node.settle();
    assert!(node.annotations[REASON].contains("the restart failed"));
    node.planned_as("b", PlannedOutcome::Refused("machineconfig \"b\" not found".to_owned()));
    node.settle();
    assert!(node.has(STATE, "Degraded") && node.has(REASON, "machineconfig \"b\" not found"));
}

#[test]
fn a_new_reporter_between_drain_and_apply_continues() {
    let mut node = Played::asked_to_drain("b", false);
    node.set(LAST_APPLIED_DRAIN, "drain-b");
    // Only the cluster and the sensor remember anything.
    (node.planned, node.is_cordoned, node.published) = (None, None, None);
    assert_eq!(node.settle(), (vec![], Then::Plan));
    node.plan("b", true);
    assert_eq!(node.settle(), (vec![], apply("b")));
}

#[test]
fn a_new_reporter_during_an_apply_or_a_reboot_only_waits() {
    for phase in [ApplyPhase::Running, ApplyPhase::Rebooting] {
        let mut node = Played::new("b");
        node.set(STATE, "Working");
        node.set(PLAN, r#"{"config":"b","actions":["write"],"more":0,"drain":false,"reboot":true}"#);
        if phase == ApplyPhase::Rebooting {
            node.set(POST_CONFIG_ACTION, "Rebooting");
        }
        node.progress = Some(progress(phase, Some("b"), "a"));
        assert_eq!(node.settle(), (vec![], Then::Wait));
        assert!(node.published.as_ref().unwrap().reboot, "the plan stays");
    }
}

#[test]
fn drift_in_preflight_degrades_the_node_with_the_operators_text_and_is_tried_again() {
    let mut node = Played::new("b");
    node.plan("b", false);
    node.settle();
    let mut failed = progress(ApplyPhase::Failed, Some("b"), "a");
    failed.drifted = true;
    (node.progress, node.may_attempt) = (Some(failed), false);
    node.drift = NodeDrift::Drifted(TEXT.to_owned());
    assert_eq!(node.settle(), (vec!["PreflightConfigDriftCheckFailed"], Then::Wait));
    let reason = format!("unexpected on-disk state validating against a: {TEXT}");
    assert!(node.has(STATE, "Degraded") && node.has(REASON, &reason), "{:?}", node.annotations);
    // The drift is over: the text stays until the next attempt.
    node.drift = NodeDrift::InSync;
    assert_eq!(node.settle(), (vec![], Then::Wait));
    node.may_attempt = true;
    assert_eq!(node.settle(), (vec![], apply("b")));
    assert!(node.has(STATE, "Degraded"), "a bad state stays visible while it is tried again");
    node.progress = Some(progress(ApplyPhase::Done, Some("b"), "b"));
    assert_eq!(node.settle(), (vec!["NodeDone"], Then::Wait));
    assert!(node.has(STATE, "Done") && node.has(REASON, ""));
}

#[test]
fn a_failed_apply_degrades_the_node_with_a_bounded_reason_and_waits_for_its_pause() {
    let mut node = Played::new("b");
    let mut failed = progress(ApplyPhase::Failed, Some("b"), "a");
    failed.message = Some("x".repeat(9000));
    (node.progress, node.may_attempt) = (Some(failed), false);
    node.plan("b", false);
    assert_eq!(node.settle(), (vec![], Then::Wait));
    assert!(node.has(STATE, "Degraded"));
    assert!(node.annotations[REASON].len() <= 2000 && node.annotations[REASON].starts_with("xxx"));
    // Back to the config that the node still has.
    node.set(DESIRED_CONFIG, "a");
    node.settle();
    assert!(node.has(STATE, "Done") && node.has(REASON, ""));
}

#[test]
fn a_config_that_a_running_node_cannot_take_is_never_ordered() {
    let mut node = Played::new("b");
    node.planned_as("b", PlannedOutcome::Unreconcilable("detected change to FIPS flag".to_owned()));
    assert_eq!(node.settle(), (vec!["FailedToReconcile"], Then::Wait));
    assert!(node.has(STATE, "Unreconcilable"));
    assert!(node.has(REASON, "can't reconcile config a with b: detected change to FIPS flag"));
    node.set(DESIRED_CONFIG, "a");
    node.settle();
    assert!(node.has(STATE, "Done"));
}

#[test]
fn the_sensor_may_find_at_the_apply_that_a_config_cannot_be_taken() {
    let mut node = Played::new("b");
    let mut failed = progress(ApplyPhase::Failed, Some("b"), "a");
    failed.unreconcilable = true;
    (node.progress, node.may_attempt) = (Some(failed), false);
    assert_eq!(node.settle(), (vec!["FailedToReconcile"], Then::Wait));
    assert!(node.has(STATE, "Unreconcilable"));
}

#[test]
fn a_config_that_is_refused_degrades_the_node_with_the_reason() {
    let mut node = Played::new("b");
    node.planned_as("b", PlannedOutcome::Refused("machineconfig \"b\" not found".to_owned()));
    assert_eq!(node.settle(), (vec![], Then::Wait));
    assert!(node.has(STATE, "Degraded") && node.has(REASON, "machineconfig \"b\" not found"));
}

#[test]
fn drift_in_sync_degrades_the_node_and_only_a_proved_recovery_ends_it() {
    let mut node = Played::new("a");
    assert_eq!(node.settle(), (vec![], Then::Wait));
    node.drift = NodeDrift::Drifted(TEXT.to_owned());
    node.settle();
    assert!(node.has(STATE, "Degraded") && node.has(REASON, TEXT));
    node.drift = NodeDrift::Unknown;
    node.settle();
    assert!(node.has(STATE, "Degraded") && node.has(REASON, TEXT));
    node.drift = NodeDrift::InSync;
    node.settle();
    assert!(node.has(STATE, "Done") && node.has(REASON, ""));
}

#[test]
fn the_end_of_each_known_drift_ends_a_bad_state_also_while_a_gap_lasts() {
    let mut node = Played::new("a");
    node.drift = NodeDrift::Drifted(TEXT.to_owned());
    node.settle();
    node.drift = NodeDrift::NoneKnown;
    node.settle();
    assert!(node.has(STATE, "Done") && node.has(REASON, ""), "{:?}", node.annotations);
}

#[test]
fn an_update_that_ends_well_ends_the_bad_state_of_an_earlier_attempt_also_without_a_verdict() {
    let mut node = Played::new("b");
    (node.progress, node.may_attempt) = (Some(progress(ApplyPhase::Failed, Some("b"), "a")), false);
    node.drift = NodeDrift::Unknown;
    node.settle();
    assert!(node.has(STATE, "Degraded"));
    node.progress = Some(progress(ApplyPhase::Done, Some("b"), "b"));
    assert_eq!(node.settle(), (vec!["NodeDone"], Then::Wait));
    assert!(node.has(CURRENT_CONFIG, "b") && node.has(STATE, "Done") && node.has(REASON, ""));
}

#[test]
fn the_nodes_own_record_of_its_config_is_the_truth() {
    // The annotations come from a backup of etcd.
    let mut node = Played::new("b");
    node.progress = Some(progress(ApplyPhase::Idle, None, "b"));
    assert_eq!(node.settle(), (vec!["NodeDone"], Then::Wait));
    assert!(node.has(CURRENT_CONFIG, "b"));
    let mut node = Played::new("a");
    node.progress = Some(progress(ApplyPhase::Idle, None, "b"));
    assert_eq!(node.settle(), (vec![], Then::Plan));
}

#[test]
fn without_a_desired_config_or_a_sensor_nothing_is_written() {
    let mut node = Played::new("b");
    node.progress = None;
    let before = node.annotations.clone();
    assert_eq!(node.settle(), (vec![], Then::Wait));
    assert_eq!(node.annotations, before);
    let mut node = Played::new("b");
    node.annotations.clear();
    assert_eq!(node.settle(), (vec![], Then::Wait));
    assert_eq!(node.annotations, BTreeMap::new());
}

#[test]
fn a_failure_of_another_config_does_not_keep_the_desired_one_from_being_tried() {
    let mut node = Played::new("c");
    node.progress = Some(progress(ApplyPhase::Failed, Some("b"), "a"));
    assert_eq!(node.settle(), (vec![], Then::Plan));
    node.plan("c", false);
    assert_eq!(node.settle(), (vec![], apply("c")));
}

#[test]
fn annotations_of_others_are_not_among_those_that_are_written() {
    let mut node = Played::new("b");
    node.set("machineconfiguration.openshift.io/ssh", "accessed");
    node.plan("b", false);
    let step = node.next();
    assert!(step.wanted.annotations.keys().all(|name| OURS.contains(name)));
    assert!(!OURS.contains(&DESIRED_CONFIG) && !OURS.contains(&LAST_APPLIED_DRAIN));
}

#[tokio::test(start_paused = true)]
async fn the_sensor_gets_the_config_and_the_policy_of_the_cluster_without_the_records_of_their_writers() {
    let (client, log) = played(|asked| match asked.line().as_str() {
        "GET /apis/machineconfiguration.openshift.io/v1/machineconfigs/b" => PlayedAnswer::Json(json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
            "metadata": {"name": "b", "managedFields": [{"manager": "x"}]}, "spec": {"fips": false}})),
        "GET /apis/operator.openshift.io/v1/machineconfigurations/cluster" => PlayedAnswer::Json(json!({
            "apiVersion": "operator.openshift.io/v1", "kind": "MachineConfiguration",
            "metadata": {"name": "cluster"}, "spec": {"nodeDisruptionPolicy": {"files": []}}})),
        _ => PlayedAnswer::Code(404),
    });
    let configs = super::configs::Configs::new(&client);
    let desired = configs.desired("b").await.unwrap().unwrap();
    assert_eq!(desired.machine_config["kind"], "MachineConfig");
    assert_eq!(desired.machine_config["spec"]["fips"], false);
    assert_eq!(desired.machine_config["metadata"], json!({"name": "b"}));
    assert_eq!(desired.node_disruption.unwrap()["spec"]["nodeDisruptionPolicy"]["files"], json!([]));
    log.take();
    assert_eq!(configs.desired("c").await.unwrap(), None);
    assert_eq!(log.take().len(), 1, "without the config the policy is not asked for");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_a_disruption_policy_has_configs_all_the_same() {
    let (client, _log) = played(|asked| {
        if asked.uri.contains("machineconfigurations") {
            return PlayedAnswer::Code(404);
        }
        PlayedAnswer::Json(
            json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
            "metadata": {"name": "b"}}),
        )
    });
    let desired = super::configs::Configs::new(&client).desired("b").await.unwrap().unwrap();
    assert_eq!(desired.node_disruption, None);
}
