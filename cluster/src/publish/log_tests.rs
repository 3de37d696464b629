//! A forensic log that was written anew.

use super::tests::{EVENTS, NODE, REPORT, finding, good, publisher};
use super::*;
use crate::api::ReportedRewriting;
use crate::played_log::{PlayedForensicLog, SharedLog, serve};
use crate::played_server::{PlayedAnswer, PlayedLog, PlayedRequest};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// A reporter of a node whose log a test replaces.
struct Case {
    publisher: Publisher,
    asked: PlayedLog,
    log: SharedLog,
    _folder: tempfile::TempDir,
}

impl Case {
    /// With the answers of an API server.
    fn new(paths: &[&str], answer: impl FnMut(&PlayedRequest) -> PlayedAnswer + Send + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("reporter.sock");
        let log = Arc::new(Mutex::new(PlayedForensicLog::new(paths)));
        serve(&socket, Arc::clone(&log));
        let (publisher, asked) = publisher(answer);
        Self { publisher: publisher.comparing(socket), asked, log, _folder: folder }
    }

    /// Another log is in the place of the one before.
    fn write_anew(&self, paths: &[&str]) {
        *self.log.lock().unwrap() = PlayedForensicLog::new(paths);
    }

    /// A round with the finding of a sensor that has this log and these drifts. Gives the report, if it is written, and the Events
    /// about the log.
    async fn round(&mut self, drifts: &[&str]) -> (Option<Value>, Vec<PlayedRequest>) {
        let mut finding = finding(drifts);
        finding.status.log = self.log.lock().unwrap().newest().map(|newest| crate::reports::entry(&newest));
        self.publisher.round(Some(&finding), None).await;
        let mut asked = self.asked.take();
        let report = asked.iter().rfind(|asked| asked.line() == format!("PATCH {REPORT}/status"));
        let report = report.map(|asked| asked.body["status"].clone());
        asked.retain(|asked| asked.body["reason"] == "ForensicLogRewritten");
        (report, asked)
    }
}

/// The answers of a server that has this report from an earlier reporter.
fn with_report(status: DriftReportStatus) -> impl FnMut(&PlayedRequest) -> PlayedAnswer + Send + 'static {
    move |asked| {
        if asked.line() != format!("PATCH {REPORT}") {
            return good(asked);
        }
        PlayedAnswer::Json(json!({"apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftReport",
            "metadata": {"name": "n1", "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": status}))
    }
}

/// The same for a Node that was made at this time.
fn with_report_and_node(
    status: DriftReportStatus,
    made: &'static str,
) -> impl FnMut(&PlayedRequest) -> PlayedAnswer + Send + 'static {
    let mut with_report = with_report(status);
    move |asked| {
        if asked.line() != format!("GET {NODE}") {
            return with_report(asked);
        }
        PlayedAnswer::Json(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "uid": "node-uid", "creationTimestamp": made}}))
    }
}

#[tokio::test]
async fn a_log_that_goes_on_moves_the_kept_entry_and_makes_no_event() {
    let mut case = Case::new(&["/a"], good);
    let (report, events) = case.round(&["/etc/a"]).await;
    assert_eq!(report.unwrap()["log"]["sequence"], 1);
    case.write_anew(&["/a", "/b", "/c"]);
    let (report, more) = case.round(&["/etc/b"]).await;
    let report = report.unwrap();
    assert_eq!((&report["log"]["sequence"], report.get("logRewritten")), (&json!(3), None));
    assert_eq!((events.len(), more.len()), (0, 0));
}

#[tokio::test]
async fn a_log_that_was_written_anew_is_in_the_report_at_once_and_in_one_event() {
    for other in [&["/x"][..], &["/x", "/b"], &["/x", "/b", "/c", "/d"]] {
        let mut case = Case::new(&["/a", "/b"], good);
        case.round(&["/etc/a"]).await;
        assert!(case.publisher.metrics.page().contains("holdfast_reporter_log_rewritten 0\n"));
        let kept = case.log.lock().unwrap().kept();
        case.write_anew(other);
        // A longer log shows no contradiction by its newest entry, so it is compared with the next write.
        let drifts: &[&str] = if other.len() > 2 { &["/etc/b"] } else { &["/etc/a"] };
        let (report, events) = case.round(drifts).await;
        let report = report.unwrap();
        assert_eq!(report["logRewritten"]["sequence"], 2, "{report}");
        assert_eq!(report["logRewritten"]["hash"], kept.hash);
        assert!(case.publisher.metrics.page().contains("holdfast_reporter_log_rewritten 1\n"));
        assert_eq!(report["log"]["sequence"], other.len(), "the entry of the new log is kept from now on");
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!((event.line(), &event.body["type"]), (format!("POST {EVENTS}"), &json!("Warning")));
        assert_eq!(event.body["regarding"]["uid"], "node-uid");
        let note = event.body["note"].as_str().unwrap();
        assert!(note.contains("the DriftReport keeps entry 2"), "{note}");

        let (report, events) = case.round(drifts).await;
        assert_eq!((report, events.len()), (None, 0), "nothing is new");
        let (report, events) = case.round(&["/etc/other"]).await;
        assert_eq!(report.unwrap()["logRewritten"]["sequence"], 2, "it stays");
        assert_eq!(events.len(), 0);
    }
}

#[tokio::test]
async fn the_entry_that_an_earlier_reporter_kept_is_compared_after_a_restart() {
    let kept = PlayedForensicLog::new(&["/a", "/b", "/c"]).kept();
    let last = DriftReportStatus { log: Some(kept.clone()), ..finding(&["/etc/a"]).status };
    let mut case = Case::new(&["/x", "/y", "/z", "/w"], with_report(last.clone()));
    let (report, events) = case.round(&["/etc/a"]).await;
    let report = report.unwrap();
    assert_eq!(report["logRewritten"]["hash"], kept.hash, "{report}");
    assert_eq!(report["logRewritten"]["found"], "the log has another entry of that number");
    assert_eq!(events.len(), 1);

    let mut sound = Case::new(&["/a", "/b", "/c", "/d"], with_report(last));
    let (report, events) = sound.round(&["/etc/a"]).await;
    assert_eq!((report.unwrap().get("logRewritten"), events.len()), (None, 0));

    // What that reporter has reported already is reported again, and announced no more.
    let known: ReportedRewriting = serde_json::from_value(report_of(&case)).unwrap();
    let last = DriftReportStatus { log_rewritten: Some(known), ..finding(&["/etc/a"]).status };
    let mut again = Case::new(&["/x"], with_report(last));
    let (report, events) = again.round(&["/etc/a"]).await;
    assert_eq!((&report.unwrap()["logRewritten"]["hash"], events.len()), (&json!(kept.hash), 0));
}

#[tokio::test]
async fn a_first_write_that_is_refused_hides_neither_the_kept_entry_nor_that_the_log_was_written_anew() {
    let kept = PlayedForensicLog::new(&["/a", "/b"]).kept();
    let known = ReportedRewriting {
        at: "2026-01-01T00:00:00Z".to_owned(),
        sequence: 9,
        hash: "0".repeat(64),
        found: "the log has another entry of that number".to_owned(),
    };
    for code in [403, 404, 409, 422] {
        for known in [None, Some(&known)] {
            let last = DriftReportStatus {
                log: Some(kept.clone()),
                log_rewritten: known.cloned(),
                ..finding(&["/etc/a"]).status
            };
            let mut with_report = with_report(last);
            let mut refusals = vec![code];
            let log: &[&str] = if known.is_some() { &["/a", "/b"] } else { &["/x"] };
            let mut case = Case::new(log, move |asked| {
                if asked.line() == format!("PATCH {REPORT}")
                    && let Some(code) = refusals.pop()
                {
                    return PlayedAnswer::Code(code);
                }
                with_report(asked)
            });
            let (report, _) = case.round(&["/etc/a"]).await;
            assert_eq!(report, None, "{code}");
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(2)).await;
            tokio::time::resume();
            let (report, events) = case.round(&["/etc/a"]).await;
            let expected = known.map_or(&kept.hash, |known| &known.hash);
            assert_eq!(report.unwrap()["logRewritten"]["hash"], *expected, "{code}");
            assert_eq!(events.len(), usize::from(known.is_none()), "{code}");
        }
    }
}

/// What the last report has about a log that was written anew.
fn report_of(case: &Case) -> Value {
    serde_json::to_value(case.publisher.log.rewritten()).unwrap()
}

#[tokio::test]
async fn a_report_of_an_earlier_node_of_the_same_name_says_nothing_about_this_log() {
    let last = DriftReportStatus {
        log: Some(PlayedForensicLog::new(&["/a", "/b"]).kept()),
        ..finding(&["/etc/a"]).status
    };
    let mut case = Case::new(&["/x"], with_report_and_node(last, "2026-02-02T00:00:00Z"));
    let (report, events) = case.round(&["/etc/a"]).await;
    assert_eq!((report.unwrap().get("logRewritten"), events.len()), (None, 0));
}

#[tokio::test]
async fn the_uid_in_a_report_decides_whether_it_is_of_this_node_and_not_its_age() {
    for (uid, made, is_compared) in [
        // The report of an earlier Node that was not removed: a reporter of this Node has written it since.
        (Some("node-uid"), "2026-02-02T00:00:00Z", true),
        (Some("other-uid"), "2025-02-02T00:00:00Z", false),
        // A reporter of an earlier version wrote it.
        (None, "2026-02-02T00:00:00Z", false),
        (None, "2025-02-02T00:00:00Z", true),
    ] {
        let last = DriftReportStatus {
            log: Some(PlayedForensicLog::new(&["/a", "/b"]).kept()),
            node_uid: uid.map(str::to_owned),
            ..finding(&["/etc/a"]).status
        };
        let mut case = Case::new(&["/x"], with_report_and_node(last, made));
        let (report, events) = case.round(&["/etc/a"]).await;
        let report = report.unwrap();
        assert_eq!(report["nodeUid"], "node-uid");
        assert_eq!(
            (report.get("logRewritten").is_some(), events.len()),
            (is_compared, usize::from(is_compared))
        );
    }
}

#[tokio::test]
async fn without_an_answer_about_the_log_the_kept_entry_stays_in_the_report() {
    let kept = PlayedForensicLog::new(&["/a", "/b"]).kept();
    let last = DriftReportStatus { log: Some(kept.clone()), ..finding(&["/etc/a"]).status };
    let (publisher, asked) = publisher(with_report(last));
    let mut publisher = publisher.comparing("/nonexistent/reporter.sock".into());
    publisher.round(Some(&finding(&["/etc/a"])), None).await;
    let report = asked.take().into_iter().find(|asked| asked.line() == format!("PATCH {REPORT}/status"));
    assert_eq!(report.unwrap().body["status"]["log"]["hash"], kept.hash);
}

#[tokio::test]
async fn an_event_about_the_log_that_gets_no_answer_is_sent_again_under_the_same_name_before_the_report() {
    let mut codes = vec![409, 503];
    let mut case = Case::new(&["/a", "/b"], move |asked| {
        if asked.body["reason"] == "ForensicLogRewritten" {
            return codes.pop().map_or(PlayedAnswer::Echo, PlayedAnswer::Code);
        }
        good(asked)
    });
    case.round(&["/etc/a"]).await;
    case.write_anew(&["/x"]);
    let (report, first) = case.round(&["/etc/a"]).await;
    assert_eq!((report, first.len()), (None, 1), "the report comes after the Event");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(2)).await;
    tokio::time::resume();
    let (report, second) = case.round(&["/etc/b"]).await;
    assert_eq!(report.unwrap()["logRewritten"]["sequence"], 2, "the Event exists already");
    assert_eq!(second.len(), 1);
    assert_eq!(first[0].body["metadata"]["name"], second[0].body["metadata"]["name"]);
}

#[tokio::test]
async fn who_deletes_the_report_has_read_it() {
    let deleted = Arc::new(Mutex::new(false));
    let now = Arc::clone(&deleted);
    let mut case = Case::new(&["/a", "/b"], move |asked| {
        let mut deleted = now.lock().unwrap();
        match asked.line() {
            line if line == format!("PATCH {REPORT}/status") && *deleted => PlayedAnswer::Code(404),
            line if line == format!("PATCH {REPORT}") => {
                *deleted = false;
                PlayedAnswer::Echo
            }
            _ => good(asked),
        }
    });
    case.round(&["/etc/a"]).await;
    case.write_anew(&["/x"]);
    let (report, _) = case.round(&["/etc/a"]).await;
    assert_eq!(report.unwrap()["logRewritten"]["sequence"], 2);
    *deleted.lock().unwrap() = true;
    case.round(&["/etc/b"]).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(2)).await;
    tokio::time::resume();
    let (report, events) = case.round(&["/etc/b"]).await;
    let report = report.unwrap();
    assert_eq!((report.get("logRewritten"), &report["log"]["sequence"]), (None, &json!(1)));
    assert_eq!(events.len(), 0);
}
