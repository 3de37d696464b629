//! The commands with a node whose root lies.

use super::history::Log;
use super::node_log::{LogPages, NodeLog};
use super::output::{OutputFormat, Screen};
use super::pages::NodeAnswer;
use super::tests::printed;
use super::tunnel::reporter_of;
use super::{Plugin, PluginCommand, PluginError};
use crate::api::DriftReportStatus;
use crate::played_log::PlayedForensicLog;
use crate::text::has_hidden;
use clap::Parser as _;
use k8s_openapi::api::core::v1::Pod;
use sensor_model::chain::EntryFault;
use sensor_model::socket::{LOG, STATUS, SocketError, SocketErrorReason};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The time after which a command is taken for one that never ends.
const LIMIT: Duration = Duration::from_secs(30);

/// Pages that a function answers, with the number of the request.
struct Pages<F>(F, usize);

impl<F: FnMut(&str, usize) -> NodeAnswer> LogPages for Pages<F> {
    async fn get(&mut self, target: &str, wait: Duration) -> Result<NodeAnswer, PluginError> {
        // Lets the time limit of the test end a loop.
        tokio::task::yield_now().await;
        self.1 += 1;
        let answer = (self.0)(target, self.1);
        if answer.as_ref().is_ok_and(|body| body.as_ref() == b"waited") {
            sleep(wait).await;
            return Ok(Ok("".into()));
        }
        Ok(answer)
    }
}

/// The log of pages, without a report that keeps an entry.
async fn log_of<F: FnMut(&str, usize) -> NodeAnswer>(pages: F) -> NodeLog<Pages<F>> {
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let status = DriftReportStatus::default();
    let mut screen = Screen::new(&mut out, &mut notes);
    NodeLog::begin(Pages(pages, 0), "n1", &status, &mut screen).await.unwrap()
}

/// The answer with the number of the newest entry.
#[expect(clippy::unnecessary_wraps, reason = "it is an answer of pages")]
fn newest(sequence: u64) -> NodeAnswer {
    let schema = "holdfast.log-checkpoint/v1";
    Ok(json!({"schema": schema, "sequence": sequence, "hash": "", "time": ""}).to_string().into())
}

fn command(line: &str) -> PluginCommand {
    Plugin::try_parse_from(line.split(' ')).unwrap().arguments.command
}

fn log_command(line: &str) -> Log {
    let PluginCommand::Log(log) = command(line) else { panic!("{line}") };
    log
}

/// What `log` prints, and how it ends; `None` if it does not.
async fn shown<P: LogPages>(
    line: &str,
    log: NodeLog<P>,
    limit: Duration,
) -> (String, Option<Result<u8, PluginError>>) {
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let end = timeout(limit, log_command(line).show(log, &mut Screen::new(&mut out, &mut notes))).await.ok();
    (String::from_utf8(out).unwrap(), end)
}

#[tokio::test]
async fn a_node_that_gives_the_same_entry_for_each_number_is_found_out() {
    let first = PlayedForensicLog::new(&["/a"]).lines[0].clone();
    for number in [9, u64::MAX] {
        let first = first.clone();
        let mut log =
            log_of(move |target, _| if target == LOG { newest(number) } else { Ok(first.clone().into()) })
                .await;
        let range = log.range(number - 5, number);
        let error = timeout(LIMIT, range).await.expect("it never ends").unwrap_err();
        assert!(error.to_string().contains("begins with entry 1 and not with"), "{error}");
    }
}

#[tokio::test]
async fn a_node_whose_oldest_entry_is_always_a_later_one_is_found_out() {
    let mut oldest = 10;
    let mut log = log_of(move |_, _| {
        oldest += 1;
        Err(SocketError { reason: SocketErrorReason::Gone, error: String::new(), oldest: Some(oldest) })
    })
    .await;
    let error = timeout(LIMIT, log.from(1, Duration::ZERO)).await.expect("it never ends").unwrap_err();
    assert!(error.to_string().contains("is gone, as those before it"), "{error}");
}

#[tokio::test]
async fn a_search_does_not_call_a_log_whole_that_lacks_the_entries_that_it_claims() {
    let mut log = log_of(|target, _| if target == LOG { newest(u64::MAX) } else { Ok("".into()) }).await;
    let changes = timeout(LIMIT, log.changes("/etc/a", 10)).await.expect("it never ends");
    assert!(changes.unwrap_err().to_string().contains("it has no entry"));
}

#[tokio::test]
async fn an_entry_that_is_longer_than_any_is_refused() {
    let path = format!("/{}", "a".repeat(1 << 20));
    let line = PlayedForensicLog::new(&[&path]).lines[0].clone();
    let mut log =
        log_of(move |target, _| if target == LOG { newest(1) } else { Ok(line.clone().into()) }).await;
    let error = log.range(1, 1).await.unwrap_err().to_string();
    assert!(error.contains("which no entry has") && error.len() < 500, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_written_anew_after_a_quiet_minute_is_found_by_the_command_that_follows_it() {
    let log = PlayedForensicLog::new(&["/a", "/b"]);
    let other = PlayedForensicLog::new(&["/x", "/y", "/z"]);
    let pages = move |target: &str, number: usize| match target {
        LOG => newest(2),
        _ if target.ends_with("=1") => Ok(log.lines.join("\n").into()),
        _ if number < 5 => Ok("waited".into()),
        _ => Ok(other.lines[2].clone().into()),
    };
    let (out, end) = shown("holdfast log n1 -f", log_of(pages).await, Duration::from_hours(1)).await;
    assert!(out.contains("#2 ") && !out.contains("/z"), "{out}");
    let error = end.expect("it goes on").unwrap_err();
    assert!(
        matches!(error, PluginError::Unsound { seq: 3, fault: EntryFault::Previous { .. }, .. }),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_wait_is_asked_once_a_second() {
    let asked = std::rc::Rc::new(std::cell::Cell::new(0));
    let counted = std::rc::Rc::clone(&asked);
    let pages = move |target: &str, number: usize| {
        counted.set(number);
        if target == LOG { newest(0) } else { Ok("".into()) }
    };
    let (_, end) = shown("holdfast log n1 -f", log_of(pages).await, Duration::from_mins(1)).await;
    assert!(end.is_none());
    assert!((30..70).contains(&asked.get()), "{} requests in a minute", asked.get());
}

#[tokio::test]
async fn the_newest_lines_are_shown_in_their_order_and_as_they_are() {
    let paths: Vec<String> = (1..=1300).map(|number| format!("/{number}")).collect();
    let log = PlayedForensicLog::new(&paths.iter().map(String::as_str).collect::<Vec<_>>());
    for lines in [0, 1, 500, 1201, 1300, 5000] {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut screen = Screen::new(&mut out, &mut notes);
        screen.set_format(OutputFormat::Json);
        let node_log =
            NodeLog::begin(log.clone(), "n1", &DriftReportStatus::default(), &mut screen).await.unwrap();
        let code = log_command(&format!("holdfast log n1 --lines {lines}")).show(node_log, &mut screen).await;
        assert_eq!(code.unwrap(), 0);
        let shown = String::from_utf8(out).unwrap();
        let expected: Vec<&String> = log.lines.iter().rev().take(lines).rev().collect();
        assert_eq!(shown.lines().collect::<Vec<_>>(), expected, "{lines}");
    }
}

#[tokio::test]
async fn rotation_while_the_log_is_read_is_noted_and_is_no_rewriting() {
    let paths: Vec<String> = (1..=3000).map(|number| format!("/{number}")).collect();
    let mut log = PlayedForensicLog::new(&paths.iter().map(String::as_str).collect::<Vec<_>>());
    let lines = log.lines.clone();
    let node_log = log_of(move |target, number| {
        let answer = log.answer(target);
        if target == LOG {
            return answer.map(Into::into);
        }
        // Each answer has a part. Rotation removes what was asked for next: in the midst of a window, and more than a whole one.
        if matches!(number, 9 | 17) {
            log.oldest += 900;
        }
        answer.map(|body| body.split_inclusive('\n').take(100).collect::<String>().into())
    })
    .await;
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let mut screen = Screen::new(&mut out, &mut notes);
    screen.set_format(OutputFormat::Json);
    let code = log_command("holdfast log n1 --lines 3000").show(node_log, &mut screen).await;
    assert_eq!(code.unwrap(), 0);
    let (shown, notes) = (String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap());
    assert!(notes.contains("note: rotation removed the entries from "), "{notes}");
    let shown: Vec<&str> = shown.lines().collect();
    assert!(
        shown.len() > 500 && shown.last().copied() == lines.last().map(String::as_str),
        "{}",
        shown.len()
    );
    let place = |line: &str| lines.iter().position(|known| known == line).unwrap();
    assert!(shown.is_sorted_by_key(|line| place(line)));
}

/// The status of a node with nothing that differs, and these fields.
fn status(more: &Value) -> String {
    let mut status = json!({"schema": "holdfast.status/v1", "verdict": "compliant", "degraded": false, "backend": "lsm",
        "time": "2026-01-01T00:00:00Z", "pid": 1, "boot_id": "", "sources": [], "drifted": [], "gaps": [], "counters": {}});
    for (name, value) in more.as_object().unwrap() {
        status[name] = value.clone();
    }
    status.to_string()
}

#[tokio::test]
async fn a_path_is_in_sync_only_if_the_node_knows_it() {
    let gap = |path: Value, until: Value| json!({"gaps": [{"since": "2026-01-01T00:00:00Z", "until": until, "reason": "ring-lost", "path": path}]});
    for (more, doubt) in [
        (json!({}), None),
        (gap(json!("/etc/other"), Value::Null), None),
        (gap(Value::Null, json!("2026-01-01T00:00:01Z")), None),
        (gap(json!("/etc/a"), Value::Null), Some("ring-lost")),
        (gap(Value::Null, Value::Null), Some("ring-lost")),
        (json!({"verdict": "unknown"}), Some("has not verified everything")),
        (json!({"left_out": {"drifted": 3, "gaps": 0, "sources": 0, "waiting": 0}}), Some("3 things")),
    ] {
        let body = status(&more);
        let mut log = log_of(move |target, _| match target {
            STATUS => Ok(body.clone().into()),
            LOG => newest(0),
            _ => panic!("{target}"),
        })
        .await;
        let PluginCommand::Explain(explain) = command("holdfast explain n1 /etc//a/") else { panic!() };
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let code = explain.explain(&mut log, &mut Screen::new(&mut out, &mut notes)).await.unwrap();
        let out = String::from_utf8(out).unwrap();
        assert_eq!(code, u8::from(doubt.is_some()), "{more}: {out}");
        assert!(doubt.is_none_or(|doubt| out.contains(doubt) && out.contains("/etc/a")), "{more}: {out}");
    }
}

#[test]
fn no_format_has_a_hidden_character_of_a_node() {
    let hostile = json!({"path": "/etc/\u{1b}[2J\u{9b}2J\u{7f}\u{202e}x\u{2028}\u{e0041}", "plain": "a: b"});
    for format in [OutputFormat::Json, OutputFormat::Yaml] {
        let shown = printed(format, |screen| screen.object(&hostile).map(drop));
        assert!(!has_hidden(&shown), "{format:?}: {shown:?}");
        assert_eq!(serde_saphyr::from_str::<Value>(&shown).unwrap(), hostile);
    }
    let line = "{\"path\":\"/etc/\u{9b}2J\"}";
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    Screen::new(&mut out, &mut notes).on_terminal(true).log_line(line).unwrap();
    Screen::new(&mut out, &mut notes).log_line(line).unwrap();
    let shown = String::from_utf8(out).unwrap();
    assert_eq!(shown, format!("{{\"path\":\"/etc/\\u009b2J\"}}\n{line}\n"), "a pipe gets the very line");
}

#[test]
fn a_long_cell_moves_no_row_but_its_own_and_a_long_line_is_cut() {
    let rows = [["n1", &"x".repeat(900), "1"], ["n2", "y", "2"]].map(|row| row.map(str::to_owned));
    let shown = printed(OutputFormat::Table, |screen| screen.table(["NODE", "PATH", "AGE"], &rows));
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!((lines[0], lines[2]), ("NODE   PATH   AGE", "n2     y      2"));
    assert!(lines[1].ends_with("x   1"), "{}", lines[1]);
    let shown = printed(OutputFormat::Table, |screen| screen.line(&"x".repeat(2 << 20)));
    assert!(shown.len() < 20_000, "{} bytes", shown.len());
}

#[test]
fn of_two_pods_on_a_node_the_one_that_is_ready_is_asked_and_none_that_ends() {
    let pod = |name: &str, made: &str, ready: bool, running: bool, ends: bool| -> Pod {
        let state = if running { json!({"running": {}}) } else { json!({"waiting": {}}) };
        let ends = ends.then_some("2026-01-01T00:00:00Z");
        let status = json!({"name": "reporter", "ready": ready, "state": state, "image": "", "imageID": "", "restartCount": 0});
        serde_json::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": made, "deletionTimestamp": ends},
            "status": {"containerStatuses": [status]},
        }))
        .unwrap()
    };
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let chosen = |pods: Vec<Pod>| reporter_of(pods).and_then(|pod| pod.metadata.name);
    for (pods, name) in [
        (vec![pod("a", late, false, true, false), pod("b", early, true, true, false)], Some("b")),
        (vec![pod("a", early, true, true, false), pod("b", late, true, true, false)], Some("b")),
        (vec![pod("a", late, true, true, true), pod("b", early, false, true, false)], Some("b")),
        (vec![pod("a", early, false, false, false), pod("b", late, true, true, true)], None),
        (vec![], None),
    ] {
        assert_eq!(chosen(pods.clone()).as_deref(), name);
        assert_eq!(chosen(pods.into_iter().rev().collect()).as_deref(), name);
    }
}
