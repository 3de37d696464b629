//! The commands with objects as the API server gives them.

use super::diff::diff;
use super::history::{explained, text};
use super::node_log::{Entry, LogPages, NodeLog, follow, read};
use super::output::{OutputFormat, Screen, age};
use super::pages::NodeAnswer;
use super::plan::plan_of_report;
use super::status::{NodeRow, rows, table};
use super::{Plugin, PluginError};
use crate::api::{
    ChangedBy, Drift, DriftReport, DriftReportSpec, DriftReportStatus, DriftState, NewestDrift, ReportedPlan,
    ReportedRewriting,
};
use crate::played_log::{PlayedForensicLog, drift};
use crate::reports::{PodNames, Rewriting};
use clap::Parser as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::ObjectList;
use kube::core::PartialObjectMeta;
use sensor_model::chain::EntryFault;
use sensor_model::difference::{Difference, DifferenceKind};
use sensor_model::record::{Record, RecordKind};
use sensor_model::status::DriftedThing;
use serde_json::{Value, json};
use std::time::Duration;

fn now() -> Timestamp {
    "2026-11-24T12:00:00Z".parse().unwrap()
}

/// What a command prints, in a format.
pub(super) fn printed(
    format: OutputFormat,
    act: impl FnOnce(&mut Screen<'_>) -> Result<(), PluginError>,
) -> String {
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let mut screen = Screen::new(&mut out, &mut notes);
    screen.set_format(format);
    act(&mut screen).unwrap();
    String::from_utf8(out).unwrap()
}

fn list<T: serde::de::DeserializeOwned + Clone>(items: &Value) -> ObjectList<T> {
    serde_json::from_value(json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}))
        .unwrap()
}

pub(super) fn report(node: &str, state: DriftState, path: Option<&str>) -> DriftReport {
    let mut report = DriftReport::new(node, DriftReportSpec {});
    report.status = Some(DriftReportStatus {
        state,
        count: i64::from(path.is_some()),
        newest: path.map(|path| NewestDrift {
            path: path.to_owned(),
            by: "root login alice via vi".to_owned(),
            since: Some("2026-11-24T11:57:00Z".to_owned()),
        }),
        ..DriftReportStatus::default()
    });
    report
}

pub(super) fn lease(node: &str, renewed: &str) -> Value {
    json!({"metadata": {"name": node}, "spec": {"renewTime": renewed, "leaseDurationSeconds": 300}})
}

/// Four nodes: one in sync, one that drifted, one whose reporter died, and one without a report.
fn four() -> Vec<NodeRow> {
    let reports = json!([
        report("n1", DriftState::InSync, None),
        report("n2", DriftState::Drifted, Some("/etc/x\u{1b}[2J")),
        report("n3", DriftState::Drifted, Some("/etc/y")),
    ]);
    let leases = json!([
        lease("n1", "2026-11-24T11:59:30.000000Z"),
        lease("n2", "2026-11-24T11:58:00.000000Z"),
        lease("n3", "2026-11-24T11:00:00.000000Z"),
    ]);
    let nodes: Vec<Value> = ["n1", "n2", "n3", "n4"].map(|name| json!({"metadata": {"name": name}})).into();
    let nodes: ObjectList<PartialObjectMeta<Node>> = list(&json!(nodes));
    rows(&list(&reports), &list::<Lease>(&leases), Some(&nodes), now())
}

#[test]
fn a_node_without_a_report_or_with_a_silent_reporter_is_not_taken_as_known() {
    let shown = printed(OutputFormat::Table, |screen| table(&four(), now(), screen));
    let expected = "\
NODE   STATE             COUNT   NEWEST PATH       BY                        SINCE   REPORTER SEEN
n1     InSync            0                                                           30s
n2     Drifted           1       /etc/x\\u{1b}[2J   root login alice via vi   3m      2m
n3     Stale (Drifted)   1       /etc/y            root login alice via vi   3m      60m
n4     NoReport
";
    assert_eq!(shown, expected);
}

#[test]
fn a_node_whose_lease_is_missing_is_stale() {
    let reports = json!([report("n1", DriftState::InSync, None)]);
    let rows = rows(&list(&reports), &list::<Lease>(&json!([])), None, now());
    let shown = printed(OutputFormat::Table, |screen| table(&rows, now(), screen));
    assert!(shown.contains("Stale (InSync)"), "{shown}");
}

#[test]
fn json_and_yaml_have_the_same_rows() {
    let rows = four();
    let json = printed(OutputFormat::Json, |screen| screen.object(&rows).map(drop));
    let yaml = printed(OutputFormat::Yaml, |screen| screen.object(&rows).map(drop));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json, serde_saphyr::from_str::<Value>(&yaml).unwrap());
    assert_eq!(json[2]["state"], "Stale");
    assert_eq!(json[2]["reported"], "Drifted");
}

#[test]
fn a_plan_lists_its_steps_and_says_what_workloads_notice() {
    let wanted = ReportedPlan {
        config: "rendered-2".to_owned(),
        actions: vec!["write".to_owned(), "restart crio.service".to_owned()],
        more: 3,
        drain: true,
        reboot: false,
    };
    let shown = printed(OutputFormat::Table, |screen| plan_of_report("n1", Some(&wanted), screen));
    let expected = "\
node n1 gets the MachineConfig rendered-2
  1. write
  2. restart crio.service
     and 3 steps
workloads leave the node, no reboot
";
    assert_eq!(shown, expected);
    let shown = printed(OutputFormat::Table, |screen| plan_of_report("n1", None, screen));
    assert_eq!(shown, "node n1: Holdfast applies nothing at present\n");
}

#[test]
fn a_diff_names_each_thing_with_its_actor_and_what_there_was_no_room_for() {
    let by = ChangedBy {
        pod_namespace: Some("team".to_owned()),
        pod_name: Some("editor".to_owned()),
        process: Some("/busybox".to_owned()),
        ..ChangedBy::default()
    };
    let status = DriftReportStatus {
        state: DriftState::Drifted,
        count: 3,
        drifts: vec![Drift {
            kind: Some("file".to_owned()),
            path: "/etc/chrony.conf".to_owned(),
            differences: vec!["content".to_owned(), "mode".to_owned()],
            since: Some("2026-11-24T11:59:20Z".to_owned()),
            by: Some(by),
            source: "99-worker".to_owned(),
            ..Drift::default()
        }],
        more: 2,
        os_image: Some(crate::api::ReportedOsImage {
            out_of_step: Some("the node booted X".to_owned()),
            ..Default::default()
        }),
        ..DriftReportStatus::default()
    };
    let shown = printed(OutputFormat::Table, |screen| diff("n1", &status, now(), screen));
    let expected = "\
PATH               KIND   DIFFERS IN     BY                            SINCE   DECLARED BY
/etc/chrony.conf   file   content,mode   pod team/editor via busybox   40s     99-worker
and 2 things that the answer has no room for
OS image out of step: the node booted X
";
    assert_eq!(shown, expected);
}

/// Lines of a log with drifts of these paths.
fn lines(paths: &[&str]) -> Vec<u8> {
    PlayedForensicLog::new(paths).lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect()
}

#[test]
fn an_entry_is_shown_with_its_actor_and_hidden_characters_are_escaped() {
    let entries = read("n1", 1, &lines(&["/etc/x\u{202e}y"])).unwrap();
    let shown = printed(OutputFormat::Table, |screen| text(&entries[0].entry, &PodNames::default(), screen));
    let expected = "\
#1 2026-11-24 11:00:00Z drift /etc/x\\u{202e}y by write
  root login alice via vi, pid 7
  content mismatch
";
    assert_eq!(shown, expected);
}

#[test]
fn a_changed_and_a_missing_entry_are_found() {
    let sound = lines(&["/a", "/b", "/c"]);
    let read_all = |bytes: &[u8]| -> Result<Vec<Entry>, PluginError> {
        let entries = read("n1", 1, bytes)?;
        follow("n1", &entries).map(|()| entries)
    };
    assert_eq!(read_all(&sound).unwrap().len(), 3);
    let changed = String::from_utf8(sound.clone()).unwrap().replace("\"/b\"", "\"/x\"");
    let error = read_all(changed.as_bytes()).unwrap_err();
    assert!(matches!(error, PluginError::Unsound { seq: 2, fault: EntryFault::Hash { .. }, .. }), "{error}");
    let missing: Vec<u8> = sound
        .split_inclusive(|byte| *byte == b'\n')
        .enumerate()
        .filter(|(index, _)| *index != 1)
        .flat_map(|(_, line)| line.to_vec())
        .collect();
    let error = read_all(&missing).unwrap_err();
    assert!(
        matches!(error, PluginError::Unsound { seq: 3, fault: EntryFault::Number { .. }, .. }),
        "{error}"
    );
}

impl LogPages for PlayedForensicLog {
    async fn get(&mut self, target: &str, _: Duration) -> Result<NodeAnswer, PluginError> {
        Ok(self.answer(target).map(Into::into))
    }
}

/// The first look at a log, with the notes that it prints.
async fn began(
    log: PlayedForensicLog,
    status: &DriftReportStatus,
) -> (Result<NodeLog<PlayedForensicLog>, PluginError>, String) {
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let begun = NodeLog::begin(log, "n1", status, &mut Screen::new(&mut out, &mut notes)).await;
    (begun, String::from_utf8(notes).unwrap())
}

/// A report that keeps the newest entry of this log.
fn keeping(log: &PlayedForensicLog) -> DriftReportStatus {
    DriftReportStatus { log: Some(log.kept()), ..DriftReportStatus::default() }
}

#[tokio::test]
async fn a_log_without_the_entry_that_the_report_keeps_was_written_anew_however_long_it_is() {
    let kept = keeping(&PlayedForensicLog::new(&["/a", "/b", "/c"]));
    let longer: Vec<String> = (0..2_000).map(|number| format!("/{number}")).collect();
    let longer: Vec<&str> = longer.iter().map(String::as_str).collect();
    for (paths, wanted) in [
        (&["/x"][..], Rewriting::Ends { newest: 1 }),
        (&["/a", "/b"], Rewriting::Ends { newest: 2 }),
        (&[], Rewriting::Ends { newest: 0 }),
        (&["/x", "/b", "/c"], Rewriting::Other),
        // The entry is far from what any command reads.
        (&longer, Rewriting::Other),
    ] {
        let (begun, _) = began(PlayedForensicLog::new(paths), &kept).await;
        let error = begun.unwrap_err();
        assert!(
            matches!(&error, PluginError::Rewritten { sequence: 3, found, .. } if *found == wanted),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("node n1: the log was written anew: the DriftReport keeps entry 3"), "{text}");
    }
}

#[tokio::test]
async fn a_log_with_the_entry_that_the_report_keeps_is_read_without_a_note() {
    let kept = keeping(&PlayedForensicLog::new(&["/a", "/b"]));
    for status in [&kept, &DriftReportStatus::default()] {
        let (begun, notes) = began(PlayedForensicLog::new(&["/a", "/b", "/a"]), status).await;
        let (changes, is_whole) = begun.unwrap().changes("/a", 10).await.unwrap();
        let numbers: Vec<u64> = changes.iter().map(|change| change.entry.seq).collect();
        assert_eq!((numbers, is_whole, notes.as_str()), (vec![3, 1], true, ""));
    }
}

#[tokio::test]
async fn who_ran_a_file_or_was_refused_is_not_who_changed_it() {
    let kinds = [RecordKind::Drift, RecordKind::Exec, RecordKind::Denied];
    let log = PlayedForensicLog::of(kinds.into_iter().map(|kind| Record { kind, ..drift("/a") }));
    let (begun, _) = began(log, &DriftReportStatus::default()).await;
    let (changes, _) = begun.unwrap().changes("/a", 10).await.unwrap();
    assert_eq!(changes.iter().map(|change| change.entry.seq).collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn a_log_whose_kept_entry_was_rotated_away_is_read_with_a_note() {
    let kept = keeping(&PlayedForensicLog::new(&["/a"]));
    let log = PlayedForensicLog { oldest: 2, ..PlayedForensicLog::new(&["/a", "/b", "/c"]) };
    let (begun, notes) = began(log, &kept).await;
    assert!(notes.contains("rotation removed entry 1") && notes.contains("begins at entry 2"), "{notes}");
    assert_eq!(begun.unwrap().range(1, 3).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_log_that_is_written_anew_while_it_is_followed_is_found() {
    let (begun, _) = began(PlayedForensicLog::new(&["/x"]), &DriftReportStatus::default()).await;
    let error = begun.unwrap().from(4, Duration::ZERO).await.unwrap_err();
    let ends = Rewriting::Ends { newest: 1 };
    assert!(matches!(&error, PluginError::Rewritten { sequence: 3, found, .. } if *found == ends), "{error}");
}

#[tokio::test]
async fn a_log_that_was_written_anew_earlier_is_noted_with_each_answer_and_in_the_diff() {
    let log = PlayedForensicLog::new(&["/a"]);
    let rewriting = ReportedRewriting {
        at: "2026-11-24T11:00:00Z".to_owned(),
        sequence: 9,
        hash: "ab".to_owned(),
        found: "the log ends at entry 1".to_owned(),
    };
    let status =
        DriftReportStatus { state: DriftState::InSync, log_rewritten: Some(rewriting), ..keeping(&log) };
    let said = "at 2026-11-24T11:00:00Z the forensic log had been written anew: the report had entry 9, and the log ends at entry 1\n";
    let (begun, notes) = began(log, &status).await;
    assert_eq!((begun.is_ok(), notes), (true, format!("note: {said}")));
    let shown = printed(OutputFormat::Table, |screen| diff("n1", &status, now(), screen));
    assert!(shown.ends_with(said), "{shown}");
}

#[test]
fn an_explanation_has_the_expected_and_the_found_value() {
    let thing = DriftedThing {
        path: "/etc/x".to_owned(),
        thing: None,
        differences: vec![Difference {
            kind: DifferenceKind::Mode,
            expected: "0644".to_owned(),
            found: "0666".to_owned(),
            text: "mode mismatch for file: \"/etc/x\"".to_owned(),
        }],
        since: "2026-11-24T11:00:00Z".to_owned(),
        actor: None,
        source: "99-worker".to_owned(),
        source_kind: None,
        strength: None,
        action: None,
        allowed: false,
    };
    let shown =
        printed(OutputFormat::Table, |screen| explained("/etc/x", &[&thing], &PodNames::default(), screen));
    let expected = "\
thing /etc/x, declared by 99-worker, differs since 2026-11-24 11:00:00Z
  mode mismatch for file: \"/etc/x\"
    expected 0644
    found    0666
  by an unknown actor
";
    assert_eq!(shown, expected);
    let shown = printed(OutputFormat::Table, |screen| explained("/etc/x", &[], &PodNames::default(), screen));
    assert_eq!(shown, "/etc/x does not differ, or is not managed\n");
}

#[test]
fn a_user_without_the_right_is_told_which_role_has_it() {
    let status = json!({"status": "Failure", "message": "User \"bob\" cannot list driftreports", "reason": "Forbidden", "code": 403});
    let error = kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()));
    let error = PluginError::request("the kind DriftReport", "", error).to_string();
    assert!(error.starts_with("User \"bob\"") && error.contains("`holdfast-log-reader`"), "{error}");
}

#[test]
fn ages_have_one_unit_and_none_is_negative() {
    let ago = |seconds: i64| age(now() - jiff::SignedDuration::from_secs(seconds), now());
    let ages = [-5, 0, 119, 120, 7199, 7200, 172_799, 172_800].map(ago);
    assert_eq!(ages, ["0s", "0s", "119s", "2m", "119m", "2h", "47h", "2d"]);
}

#[test]
fn options_stand_before_or_after_the_command_and_a_missing_argument_is_an_error() {
    for line in [
        "holdfast -n x -o json status",
        "holdfast status -n x -o json",
        "holdfast log n1 -f --lines 5",
        "holdfast who n1 /etc/x",
    ] {
        Plugin::try_parse_from(line.split(' ')).unwrap();
    }
    for line in [
        "holdfast",
        "holdfast who n1",
        "holdfast plan",
        "holdfast status -o xml",
        // No entry of the log has such a path, so the command would find no change of it.
        "holdfast who n1 etc/x",
        "holdfast explain n1 /etc/../x",
    ] {
        let error = Plugin::try_parse_from(line.split(' ')).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}
