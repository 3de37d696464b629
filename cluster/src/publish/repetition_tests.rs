//! The publisher creates no Event twice, whatever the API server answers.

use super::tests::{EVENTS, NODE, REPORT, finding, good, publisher};
use super::*;
use crate::api::{ConfigState, DriftState, ReportedConfig};
use crate::played_server::{PlayedAnswer, PlayedRequest};
use crate::reports::{ComparedConfig, NodeEvent};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Rounds with this finding until nothing is due for a while.
async fn settle(publisher: &mut Publisher, finding: &NodeFinding) {
    for _ in 0..9 {
        let next = publisher.round(Some(finding), None).await;
        if next > Instant::now() + Duration::from_secs(90) {
            return;
        }
        tokio::time::sleep_until(next).await;
    }
    panic!("a round is always due");
}

/// The notes of the Events that requests create, those without effect left out.
fn notes(asked: &[PlayedRequest]) -> Vec<&str> {
    asked
        .iter()
        .filter(|asked| asked.method == "POST" && !asked.uri.contains("dryRun=All"))
        .filter_map(|asked| asked.body["note"].as_str())
        .collect()
}

/// The notes of the Events that requests create, those left out that have the name of one before.
fn created(asked: &[PlayedRequest]) -> Vec<&str> {
    let mut names = BTreeSet::new();
    let posts = asked.iter().filter(|asked| asked.method == "POST" && !asked.uri.contains("dryRun=All"));
    posts
        .filter(|asked| names.insert(asked.body["metadata"]["name"].as_str()))
        .filter_map(|asked| asked.body["note"].as_str())
        .collect()
}

/// A server that does not answer the first creation of an Event. `is_created`: it creates it all the same.
fn forgetful(is_created: bool) -> impl FnMut(&PlayedRequest) -> PlayedAnswer + Send + 'static {
    let mut unanswered = None;
    move |asked| {
        if asked.line() != format!("POST {EVENTS}") {
            return good(asked);
        }
        let name = asked.body["metadata"]["name"].clone();
        match &unanswered {
            None => {
                unanswered = Some(name);
                PlayedAnswer::Never
            }
            Some(known) if *known == name && is_created => PlayedAnswer::Code(409),
            Some(_) => PlayedAnswer::Echo,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_was_created_without_an_answer_is_not_created_again() {
    let (mut publisher, log) = publisher(forgetful(true));
    settle(&mut publisher, &finding(&["/etc/a"])).await;
    settle(&mut publisher, &finding(&["/etc/b", "/etc/a"])).await;
    let asked = log.take();
    let notes = created(&asked);
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("/etc/a"), "{notes:?}");
    assert!(notes[1].contains("/etc/b") && !notes[1].contains("/etc/a"), "{notes:?}");
    let page = publisher.metrics.page();
    for counted in ["result=\"refused\"} 0", "result=\"timed_out\"} 1", "result=\"success\"} 2"] {
        let line = format!("writes_total{{object=\"event\",{counted}\n");
        assert!(page.contains(&line), "{line} is missing:\n{page}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_was_not_created_and_got_no_answer_is_created_under_the_same_name() {
    let (mut publisher, log) = publisher(forgetful(false));
    publisher.round(Some(&finding(&["/etc/a"])), None).await;
    settle(&mut publisher, &finding(&["/etc/b", "/etc/a"])).await;
    let asked = log.take();
    // A late creation by the first request is a conflict then.
    let notes = created(&asked);
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("/etc/a"), "{notes:?}");
    assert!(notes[1].contains("/etc/b") && !notes[1].contains("/etc/a"), "{notes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_recovery_during_an_event_without_an_answer_is_reported_if_the_event_comes_to_exist_late() {
    for is_late in [true, false] {
        let mut looks = 0;
        let (mut publisher, log) = publisher(move |asked| {
            if asked.line() != format!("POST {EVENTS}") {
                return good(asked);
            }
            if asked.uri.contains("dryRun=All") {
                looks += 1;
                return if is_late && looks > 2 { PlayedAnswer::Code(409) } else { PlayedAnswer::Echo };
            }
            if asked.body["reason"] == "ConfigDriftDetected"
                && asked.body["note"].as_str().unwrap().contains("/etc/a")
            {
                return PlayedAnswer::Never;
            }
            PlayedAnswer::Echo
        });
        publisher.round(Some(&finding(&["/etc/a"])), None).await;
        log.take();
        settle(&mut publisher, &finding(&[])).await;
        let asked = log.take();
        assert_eq!(notes(&asked).len(), usize::from(is_late), "{asked:?}");
        settle(&mut publisher, &finding(&["/etc/b"])).await;
        let asked = log.take();
        assert!(notes(&asked)[0].contains("/etc/b"), "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_refuses_requests_without_effect_gets_events_all_the_same() {
    let mut is_first = true;
    let (mut publisher, log) = publisher(move |asked| {
        if asked.line() != format!("POST {EVENTS}") {
            return good(asked);
        }
        if std::mem::take(&mut is_first) {
            return PlayedAnswer::Code(500);
        }
        if asked.uri.contains("dryRun=All") { PlayedAnswer::Code(400) } else { PlayedAnswer::Echo }
    });
    settle(&mut publisher, &finding(&["/etc/a"])).await;
    assert_eq!(created(&log.take()).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_the_report_of_an_earlier_reporter_no_event_is_created_and_conditions_are_written() {
    let is_away = Arc::new(AtomicBool::new(true));
    let now = Arc::clone(&is_away);
    let (mut publisher, log) = publisher(move |asked| {
        if asked.line() != format!("PATCH {REPORT}") {
            return good(asked);
        }
        if now.load(Ordering::Relaxed) {
            return PlayedAnswer::Code(503);
        }
        PlayedAnswer::Json(json!({"apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftReport",
            "metadata": {"name": "n1"}, "status": finding(&["/etc/a"]).status}))
    });
    publisher.round(Some(&finding(&["/etc/a"])), None).await;
    let lines = log.lines();
    assert!(lines.contains(&format!("PATCH {NODE}/status")), "{lines:?}");
    assert!(!lines.contains(&format!("POST {EVENTS}")), "{lines:?}");
    is_away.store(false, Ordering::Relaxed);
    settle(&mut publisher, &finding(&["/etc/a"])).await;
    assert_eq!(notes(&log.take()), Vec::<&str>::new(), "the earlier reporter created the Event");
    settle(&mut publisher, &finding(&["/etc/b", "/etc/a"])).await;
    assert_eq!(notes(&log.take()).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_report_that_is_refused_at_first_is_learnt_all_the_same_and_one_that_is_always_refused_holds_no_event_back()
 {
    for is_for_ever in [false, true] {
        let begin = Instant::now();
        let (mut publisher, log) = publisher(move |asked| {
            if asked.line() != format!("PATCH {REPORT}") {
                return good(asked);
            }
            if is_for_ever || begin.elapsed() < Duration::from_secs(20) {
                return PlayedAnswer::Code(403);
            }
            PlayedAnswer::Json(json!({"apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftReport",
                "metadata": {"name": "n1"}, "status": finding(&["/etc/a"]).status}))
        });
        while begin.elapsed() < Duration::from_mins(3) {
            let next = publisher.round(Some(&finding(&["/etc/a"])), None).await;
            tokio::time::sleep_until(next).await;
        }
        assert_eq!(notes(&log.take()).len(), usize::from(is_for_ever), "{is_for_ever}");
    }
}

#[tokio::test(start_paused = true)]
async fn reporters_that_start_while_the_sensor_is_silent_keep_the_drifts_and_the_last_one_reports_their_end()
{
    let silent = NodeFinding {
        status: DriftReportStatus::default(),
        sensor: SensorState::Silent { since: "2026-01-01T00:00:00Z".to_owned() },
        ..finding(&[])
    };
    let report = Arc::new(Mutex::new(serde_json::to_value(finding(&["/etc/a"]).status).unwrap()));
    let start = || {
        let kept = Arc::clone(&report);
        publisher(move |asked| match asked.line() {
            line if line == format!("PATCH {REPORT}") => PlayedAnswer::Json(json!({
                "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftReport", "metadata": {"name": "n1"},
                "status": *kept.lock().unwrap()})),
            line if line == format!("PATCH {REPORT}/status") => {
                *kept.lock().unwrap() = asked.body["status"].clone();
                PlayedAnswer::Echo
            }
            _ => good(asked),
        })
    };
    for _ in 0..2 {
        let (mut publisher, log) = start();
        settle(&mut publisher, &silent).await;
        let asked = log.take();
        assert_eq!(notes(&asked), Vec::<&str>::new());
        let conditions = asked.iter().find(|asked| asked.line() == format!("PATCH {NODE}/status")).unwrap();
        let message = conditions.body["status"]["conditions"][0]["message"].as_str().unwrap();
        assert!(message.contains("1 managed thing drifted when it last answered: /etc/a"), "{message}");
        let report = report.lock().unwrap();
        assert_eq!((&report["state"], &report["drifts"][0]["path"]), (&json!("Unknown"), &json!("/etc/a")));
    }
    let (mut publisher, log) = start();
    settle(&mut publisher, &silent).await;
    settle(&mut publisher, &finding(&[])).await;
    assert_eq!(
        notes(&log.take()),
        ["the node matches its MachineConfigs again; 1 managed thing had drifted"]
    );
    assert_eq!(report.lock().unwrap()["count"], 0);
}

#[tokio::test(start_paused = true)]
async fn what_an_update_changed_has_no_event_of_an_earlier_reporter() {
    let during = DriftReportStatus { state: DriftState::Updating, ..finding(&["/etc/a"]).status };
    for (after, expected) in [(&[][..], None), (&["/etc/a"], Some("1 managed thing drifted: /etc/a"))] {
        let report = json!({"apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftReport",
            "metadata": {"name": "n1"}, "status": during});
        let (mut publisher, log) = publisher(move |asked| match asked.line() {
            line if line == format!("PATCH {REPORT}") => PlayedAnswer::Json(report.clone()),
            _ => good(asked),
        });
        settle(&mut publisher, &finding(after)).await;
        let asked = log.take();
        let notes = notes(&asked);
        assert_eq!(notes.len(), usize::from(expected.is_some()), "{notes:?}");
        assert!(notes.iter().zip(expected).all(|(note, begin)| note.starts_with(begin)), "{notes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_config_that_cannot_be_compared_for_a_while_has_no_second_event() {
    use ConfigState::{Differs, Same, Unknown};
    let (mut publisher, log) = publisher(good);
    for (state, paths, expected) in [
        (Some(Differs), &[][..], &["NodeConfigDiffers"][..]),
        (Some(Unknown), &[], &[]),
        (Some(Differs), &[], &[]),
        (None, &["/etc/a"], &["ConfigDriftDetected"]),
        (Some(Unknown), &["/etc/a"], &[]),
        (Some(Differs), &["/etc/a"], &[]),
        (Some(Same), &["/etc/a"], &[]),
        (Some(Differs), &["/etc/a"], &["NodeConfigDiffers"]),
    ] {
        let reported = |state| ReportedConfig {
            expected: Some("rendered-1".to_owned()),
            state,
            ..ReportedConfig::default()
        };
        let config = ComparedConfig { config: state.map(reported), is_final: true };
        publisher.set_compared(None, config);
        settle(&mut publisher, &finding(paths)).await;
        let asked = log.take();
        let events = asked.iter().filter(|asked| asked.method == "POST");
        let reasons: Vec<_> = events.filter_map(|asked| asked.body["reason"].as_str()).collect();
        assert_eq!(reasons, expected, "{state:?} {paths:?}");
    }
}

/// The requests of a reporter to which the API server and the sensor tell this time.
async fn requests_at(time: &'static str) -> Vec<String> {
    let at = move |paths: &[&str]| {
        let mut finding = finding(paths);
        finding.status.observed_at = Some(time.to_owned());
        finding
    };
    let (mut publisher, log) = publisher(move |asked| {
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": time, "lastHeartbeatTime": time});
        match asked.line() {
            line if line == format!("GET {NODE}") => {
                let conditions = crate::reports::CONDITIONS.map(condition);
                PlayedAnswer::Json(json!({"apiVersion": "v1", "kind": "Node",
                    "metadata": {"name": "n1", "uid": "node-uid"}, "status": {"conditions": conditions}}))
            }
            line if line == format!("PATCH {REPORT}") => PlayedAnswer::Json(json!({
                "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftReport", "metadata": {"name": "n1"},
                "status": at(&["/etc/a"]).status})),
            _ => good(asked),
        }
    });
    for paths in [&["/etc/a"][..], &["/etc/b", "/etc/a"], &[]] {
        settle(&mut publisher, &at(paths)).await;
    }
    tokio::time::sleep(REFRESH).await;
    settle(&mut publisher, &at(&[])).await;
    log.lines()
}

#[tokio::test(start_paused = true)]
async fn a_wrong_clock_changes_neither_what_is_written_nor_when() {
    let past = requests_at("1971-01-01T00:00:00Z").await;
    assert!(past.len() > 9, "{past:?}");
    assert_eq!(past, requests_at("2099-01-01T00:00:00Z").await);
}

#[tokio::test(start_paused = true)]
async fn events_of_updates_above_the_budget_or_without_an_answer_are_created_later_and_once() {
    let mut answers = vec![
        // Created without an answer.
        ("1", PlayedAnswer::Code(503)),
        ("1", PlayedAnswer::Code(409)),
        // Not created at first.
        ("2", PlayedAnswer::Code(429)),
    ];
    let (mut publisher, log) = publisher(move |asked| {
        if asked.line() != format!("POST {EVENTS}") {
            return good(asked);
        }
        let next = answers.iter().position(|(note, _)| asked.body["note"] == *note);
        next.map_or(PlayedAnswer::Echo, |next| answers.remove(next).1)
    });
    let event = |note: String| NodeEvent { is_warning: false, reason: "Drain", action: "Update", note };
    let expected: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    for (number, notes) in (0..).zip(expected.chunks(2)) {
        let managed = ManagedNode {
            plan: None,
            annotations: Some(AnnotationWrite {
                annotations: BTreeMap::from([(STATE, number.to_string())]),
                removed: Vec::new(),
                based_on: number,
                events: notes.iter().cloned().map(event).collect(),
            }),
        };
        publisher.round(Some(&finding(&[])), Some(&managed)).await;
    }
    // The Node has the annotations now.
    let drift = finding(&["/etc/a"]);
    let end = Instant::now() + Duration::from_mins(10);
    while Instant::now() < end {
        let next = publisher.round(Some(&drift), Some(&ManagedNode::default())).await;
        tokio::time::sleep_until(next).await;
    }
    let asked = log.take();
    let (drifts, updates): (Vec<&str>, Vec<&str>) =
        created(&asked).into_iter().partition(|note| note.contains("/etc/a"));
    assert_eq!((drifts.len(), updates), (1, expected.iter().map(String::as_str).collect()));
}
