//! `diff` and `plan` with the answers of a node.

use super::node_log::LogPages;
use super::output::Screen;
use super::pages::NodeAnswer;
use super::{Plugin, PluginCommand, PluginError};
use crate::api::{ConfigState, DriftReportStatus, ReportedConfig, ReportedPlan};
use clap::Parser as _;
use sensor_model::node_disruption::DisruptionPolicy;
use sensor_model::plan::{Plan, Step, plan};
use sensor_model::socket::{
    APPLY, ApplyPhase, ApplyProgress, CONFIG, PLANNED_CONFIG_SCHEMA, PlannedConfig, STATUS, SocketError,
    SocketErrorReason,
};
use serde_json::{Value, json};
use std::time::Duration;

/// A node that answers each of these requests so.
struct Node(Vec<(&'static str, Result<Value, SocketErrorReason>)>);

impl LogPages for Node {
    async fn get(&mut self, target: &str, _: Duration) -> Result<NodeAnswer, PluginError> {
        let (_, answer) =
            self.0.iter().find(|(request, _)| *request == target).expect("a request of the test");
        Ok(match answer {
            Ok(body) => Ok(body.to_string().into()),
            Err(reason) => Err(SocketError { reason: *reason, error: "no".to_owned(), oldest: None }),
        })
    }
}

/// The exit code and the answer of a command to a node with this report.
async fn ran(line: &str, mut node: Node, report: &DriftReportStatus) -> (u8, String) {
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let mut screen = Screen::new(&mut out, &mut notes);
    let arguments = Plugin::try_parse_from(line.split(' ')).unwrap().arguments;
    screen.set_format(arguments.output.format);
    let code = match arguments.command {
        PluginCommand::Plan(plan) => plan.of_node(&mut node, report, &mut screen).await,
        PluginCommand::Diff(diff) => diff.of_node(&mut node, report, &mut screen).await,
        other => panic!("{other:?}"),
    };
    (code.unwrap(), String::from_utf8(out).unwrap())
}

/// The plan for the config `b`: a write and a restart for two files.
fn planned() -> PlannedConfig {
    let step = |action, target: Option<&str>| -> Step {
        serde_json::from_value(json!({ "action": action, "target": target, "because": ["/etc/x", "/etc/y"] }))
            .unwrap()
    };
    let change = |path: &str| {
        json!({
            "kind": "file", "name": path, "operation": "change", "action": "restart", "policy": "p", "source": "99-worker",
        })
    };
    let nothing = plan(None, None, &DisruptionPolicy::default()).unwrap();
    let plan = Plan {
        changes: serde_json::from_value(json!([change("/etc/x"), change("/etc/y")])).unwrap(),
        steps: vec![step("write", None), step("restart", Some("crio.service"))],
        ..nothing
    };
    PlannedConfig {
        schema: PLANNED_CONFIG_SCHEMA.to_owned(),
        id: "1".to_owned(),
        config: "b".to_owned(),
        plan,
        drains: true,
        reboots: false,
        has_nothing_to_do: false,
        changes_left_out: 7,
        is_shortened: false,
    }
}

fn progress(phase: ApplyPhase, id: &str) -> ApplyProgress {
    let message = Some("restart crio.service".to_owned());
    let current = Some("a".to_owned());
    ApplyProgress { phase, id: Some(id.to_owned()), message, current, ..ApplyProgress::idle() }
}

fn node(planned: &PlannedConfig, progress: &ApplyProgress) -> Node {
    Node(vec![(CONFIG, Ok(json!(planned))), (APPLY, Ok(json!(progress)))])
}

/// A report with the plan for `b`.
fn published() -> DriftReportStatus {
    let plan = ReportedPlan { config: "b".to_owned(), ..ReportedPlan::default() };
    DriftReportStatus { plan: Some(plan), ..DriftReportStatus::default() }
}

#[tokio::test]
async fn a_plan_of_a_node_names_its_steps_what_needs_them_how_far_they_are_and_each_change() {
    let (code, shown) =
        ran("x plan n1", node(&planned(), &progress(ApplyPhase::Running, "1")), &published()).await;
    let expected = "\
node n1 gets the MachineConfig b
  1. write, because of /etc/x, /etc/y
  2. restart crio.service, because of /etc/x, /etc/y
workloads leave the node, no reboot
it is being applied: restart crio.service
CHANGE   KIND   NAME     ACTION    DECLARED BY
change   file   /etc/x   restart   99-worker
change   file   /etc/y   restart   99-worker
and 7 more changes that the answer has no room for
";
    assert_eq!((code, shown.as_str()), (1, expected));
    let shortened = PlannedConfig { changes_left_out: 0, is_shortened: true, ..planned() };
    let (_, shown) =
        ran("x plan n1", node(&shortened, &progress(ApplyPhase::Running, "1")), &published()).await;
    assert!(shown.ends_with("no room for all reasons and paths\n"), "{shown}");
    let (_, shown) =
        ran("x plan n1 -o json", node(&planned(), &progress(ApplyPhase::Failed, "1")), &published()).await;
    let answer: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(answer["plan"]["actions"], json!(["write", "restart crio.service"]));
    assert_eq!(answer["planned"]["plan"]["changes"][1]["name"], "/etc/y");
    assert_eq!(answer["progress"]["phase"], "Failed");
}

#[tokio::test]
async fn a_plan_is_shown_while_it_is_not_done_and_the_cluster_wants_it() {
    use ApplyPhase::{Done, Failed, Idle, Rebooting};
    let none = DriftReportStatus::default();
    for (phase, id, report, is_shown, text) in [
        (Idle, "0", &published(), true, "it has not begun"),
        (Done, "0", &published(), true, "it has not begun"),
        (Rebooting, "1", &none, true, "it goes on after a reboot"),
        (Failed, "1", &none, true, "it has failed: restart crio.service"),
        // The cluster has changed its mind, also after an order that failed.
        (Failed, "0", &none, false, "applies nothing at present"),
        (Done, "0", &none, false, "applies nothing at present"),
    ] {
        let (code, shown) = ran("x plan n1", node(&planned(), &progress(phase, id)), report).await;
        assert_eq!(code == 1, is_shown, "{phase:?} {id}: {shown}");
        assert!(shown.contains(text), "{phase:?} {id}: {shown}");
    }
    let applied = ApplyProgress { current: Some("b".to_owned()), ..progress(Done, "1") };
    let (code, shown) = ran("x plan n1", node(&planned(), &applied), &published()).await;
    assert!(code == 0 && shown.contains("applies nothing at present; it has the MachineConfig b"), "{shown}");
    // A rollback on the node: the same config waits again.
    let (code, shown) = ran("x plan n1", node(&planned(), &progress(Done, "1")), &published()).await;
    assert!(code == 1 && shown.contains("it has not begun"), "{shown}");
    let nothing = PlannedConfig { has_nothing_to_do: true, ..planned() };
    let (code, shown) = ran("x plan n1", node(&nothing, &progress(Idle, "0")), &published()).await;
    assert_eq!(code, 0, "{shown}");
}

#[tokio::test]
async fn a_config_that_a_running_node_cannot_take_is_shown_with_the_reasons() {
    let mut impossible = planned();
    impossible.plan.reconcilable = false;
    impossible.plan.steps.clear();
    impossible.plan.reasons =
        serde_json::from_value(json!(["ignition passwd.users changed\u{1b}[2J"])).unwrap();
    let (code, shown) =
        ran("x plan n1", node(&impossible, &progress(ApplyPhase::Idle, "0")), &published()).await;
    let expected =
        "node n1 cannot take the MachineConfig b while it runs:\n  ignition passwd.users changed\\u{1b}[2J\n";
    assert_eq!((code, shown.as_str()), (1, expected));
}

#[tokio::test]
async fn an_order_without_a_kept_plan_is_no_node_that_applies_nothing() {
    let of = |phase| {
        let ordered = ApplyProgress { config: Some("b".to_owned()), ..progress(phase, "1") };
        Node(vec![(APPLY, Ok(json!(ordered))), (CONFIG, Err(SocketErrorReason::NotPlanned))])
    };
    for (phase, text) in [
        (ApplyPhase::Running, "it is being applied: restart crio.service"),
        (ApplyPhase::Rebooting, "it goes on after a reboot"),
        (ApplyPhase::Failed, "it has failed: restart crio.service"),
    ] {
        let (code, shown) = ran("x plan n1", of(phase), &published()).await;
        assert_eq!(
            (code, shown),
            (1, format!("node n1 gets the MachineConfig b; it keeps no plan of it\n{text}\n"))
        );
    }
    let (code, shown) = ran("x plan n1", of(ApplyPhase::Done), &published()).await;
    assert!(code == 0 && shown.contains("applies nothing"), "{code}: {shown}");
}

#[tokio::test]
async fn a_node_that_applies_nothing_or_has_no_config_yet_has_no_plan() {
    let observes = Node(vec![(APPLY, Err(SocketErrorReason::NotManaged))]);
    let idle = json!(ApplyProgress::idle());
    let new = Node(vec![(APPLY, Ok(idle)), (CONFIG, Err(SocketErrorReason::NotPlanned))]);
    for (node, text) in [(observes, "its sensor is not in the mode manage"), (new, "at present\n")] {
        let (code, shown) = ran("x plan n1", node, &DriftReportStatus::default()).await;
        assert!(code == 0 && shown.contains(text), "{code}: {shown}");
    }
}

/// The status of a node on which these files differ.
fn status(files: usize) -> Value {
    let thing = |number: usize| {
        json!({
            "path": format!("/etc/{number}"), "thing": "file", "since": "2026-11-24T11:00:00Z", "actor": null,
            "source": "99-worker",
            "differences": [{ "kind": "mode", "expected": "0644", "found": "0666", "text": "mode mismatch" }],
        })
    };
    let drifted: Vec<Value> = (0..files).map(thing).collect();
    let verdict = if files == 0 { "compliant" } else { "drifted" };
    json!({
        "schema": "holdfast.status/v1", "verdict": verdict, "degraded": files > 0, "backend": "lsm", "capabilities": [],
        "time": "2026-11-24T11:00:00Z", "pid": 7, "boot_id": "", "beat_seconds": 5, "sources": [], "drifted": drifted,
        "gaps": [], "counters": {}, "left_out": { "drifted": 0, "gaps": 0 },
    })
}

#[tokio::test]
async fn a_diff_of_a_node_has_each_thing_with_its_values_and_what_the_cluster_says() {
    let config = ReportedConfig {
        state: ConfigState::Differs,
        message: Some("they differ".to_owned()),
        ..ReportedConfig::default()
    };
    let report = DriftReportStatus { config: Some(config), ..DriftReportStatus::default() };
    let of = |files| Node(vec![(STATUS, Ok(status(files)))]);
    let (code, shown) = ran("x diff n1", of(130), &report).await;
    assert_eq!((code, shown.lines().count()), (1, 132), "more than a report has room for: {shown}");
    assert!(shown.ends_with("config differs from the cluster: they differ\n"), "{shown}");
    let (_, shown) = ran("x diff n1 -o json", of(1), &report).await;
    let answer: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(answer["drifts"][0]["differences"], json!(["mode"]));
    assert_eq!(answer["things"][0]["differences"][0]["found"], "0666");
    for (report, wanted) in [(report, 1), (DriftReportStatus::default(), 0)] {
        let (code, shown) = ran("x diff n1", of(0), &report).await;
        assert_eq!(code, wanted, "{shown}");
    }
}
