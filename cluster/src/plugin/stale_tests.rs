//! No command calls a node in sync of which it knows nothing.

use super::access::Access;
use super::output::Screen;
use super::tests::{lease, report};
use super::{Plugin, PluginCommand, status};
use crate::api::DriftState;
use crate::played_server::{PlayedAnswer, played};
use clap::Parser as _;
use jiff::Timestamp;
use serde_json::{Value, json};

const LONG_AGO: &str = "2026-01-01T00:00:00.000000Z";
const FUTURE: &str = "2100-01-01T00:00:00.000000Z";

/// A Lease of n1 that was renewed now.
fn fresh() -> Value {
    lease("n1", &Timestamp::now().to_string())
}

/// The exit code, the answer and the notes of a command, in a cluster with this report and this Lease of n1.
async fn ran(line: &str, reports: Vec<Value>, leases: Vec<Value>) -> (u8, String, String) {
    let (client, _log) = played(move |asked| {
        let list = |items: &[Value]| {
            PlayedAnswer::Json(json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}))
        };
        let one = |items: &[Value]| match items.first() {
            None => PlayedAnswer::Code(404),
            Some(Value::Null) => PlayedAnswer::Code(403),
            Some(item) => PlayedAnswer::Json(item.clone()),
        };
        match asked.line().rsplit('/').next().unwrap() {
            "driftreports" => list(&reports),
            "leases" => list(&leases),
            "nodes" => PlayedAnswer::Code(403),
            _ if asked.uri.contains("/leases/") => one(&leases),
            _ => one(&reports),
        }
    });
    let access = Access::with(client);
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let mut screen = Screen::new(&mut out, &mut notes);
    let arguments = Plugin::try_parse_from(line.split(' ')).unwrap().arguments;
    screen.set_format(arguments.output.format);
    let code = match arguments.command {
        PluginCommand::Status => status::run(&access, &mut screen).await,
        PluginCommand::Plan(plan) => plan.run(&access, &mut screen).await,
        PluginCommand::Diff(diff) => diff.run(&access, &mut screen).await,
        other => panic!("{other:?}"),
    };
    (code.unwrap(), String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap())
}

fn in_sync() -> Vec<Value> {
    vec![json!(report("n1", DriftState::InSync, None))]
}

#[tokio::test(start_paused = true)]
async fn a_report_whose_reporter_is_silent_is_not_believed_by_any_command() {
    for command in ["status", "diff n1 --report", "plan n1 --report"] {
        let line = format!("holdfast {command}");
        let (code, _, notes) = ran(&line, in_sync(), vec![fresh()]).await;
        assert!(code == 0 && !notes.contains("out of date"), "{command}: {code} {notes}");
        for leases in [vec![lease("n1", LONG_AGO)], vec![lease("n1", FUTURE)], vec![]] {
            let (code, out, notes) = ran(&line, in_sync(), leases).await;
            assert_eq!(code, 1, "{command}");
            assert!(
                out.contains("Stale") || notes.contains("may be out of date"),
                "{command}: {out} {notes}"
            );
        }
    }
    let (code, out, notes) = ran("holdfast diff n1 --report", in_sync(), vec![Value::Null]).await;
    assert!(code == 1 && out.contains("n1") && notes.contains("you may not read the Lease"), "{out} {notes}");
    let (_, out, _) = ran("holdfast diff n1 --report -o json", in_sync(), vec![lease("n1", LONG_AGO)]).await;
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["stale"], true);
    let (_, _, notes) = ran("holdfast diff n1 --report", in_sync(), vec![lease("n1", FUTURE)]).await;
    assert!(notes.contains("in the future: one of the clocks is wrong"), "{notes}");
}

#[tokio::test(start_paused = true)]
async fn without_any_report_no_node_is_in_sync() {
    let (code, out, notes) = ran("holdfast status", vec![], vec![]).await;
    assert_eq!(code, 1, "{out}");
    assert!(notes.contains("No node has a DriftReport"), "{notes}");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_without_leases_is_named() {
    let (code, _, notes) = ran("holdfast status", in_sync(), vec![]).await;
    assert!(code == 1 && notes.contains("The namespace holdfast-system has no Lease"), "{notes}");
}

#[tokio::test(start_paused = true)]
async fn a_report_that_names_no_drift_and_counts_some_is_not_said_to_differ_in_nothing() {
    let mut drifted = json!(report("n1", DriftState::Drifted, Some("/etc/a")));
    drifted["status"]["more"] = json!(1);
    let (code, out, _) = ran("holdfast diff n1 --report", vec![drifted], vec![fresh()]).await;
    assert!(code == 1 && !out.contains("nothing differs") && out.contains("1 thing"), "{out}");
}
