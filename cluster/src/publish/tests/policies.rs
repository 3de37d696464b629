//! The taint, and the policies in the report.

use super::*;
use crate::api::{ConfigState, ReportedConfig, ReportedGap, ReportedPolicy};

/// The answers of a server whose Node has taints, and takes what is written to it.
fn tainted_server(first: &[Value]) -> impl FnMut(&PlayedRequest) -> PlayedAnswer + Send + 'static {
    let mut taints = json!(first);
    move |asked| {
        if asked.line() == format!("PATCH {NODE}") {
            taints = asked.body["spec"]["taints"].clone();
        }
        match good(asked) {
            PlayedAnswer::Json(mut node) if node["kind"] == "Node" => {
                node["spec"] = json!({ "taints": taints });
                node["metadata"]["resourceVersion"] = "7".into();
                PlayedAnswer::Json(node)
            }
            answer => answer,
        }
    }
}

fn degrading(paths: &[&str]) -> NodeFinding {
    let finding = finding(paths);
    NodeFinding { status: DriftReportStatus { degraded: !paths.is_empty(), ..finding.status }, ..finding }
}

fn asks_for_the_taint() -> PolicyStanding {
    let policy = ReportedPolicy { name: "one".to_owned(), ..ReportedPolicy::default() };
    PolicyStanding { policies: vec![policy], taints: Some(true) }
}

/// The keys of the taints in each write of them.
fn taint_writes(log: &PlayedLog) -> Vec<Vec<String>> {
    let written = log.take().into_iter().filter(|asked| asked.line() == format!("PATCH {NODE}"));
    let keys = |asked: PlayedRequest| {
        assert_eq!(asked.body["metadata"]["resourceVersion"], "7", "a list that was read before");
        let taints = asked.body["spec"]["taints"].as_array().unwrap().clone();
        taints.iter().map(|taint| taint["key"].as_str().unwrap().to_owned()).collect()
    };
    written.map(keys).collect()
}

#[tokio::test(start_paused = true)]
async fn a_drifted_node_has_the_taint_until_it_matches_and_taints_of_others_stay() {
    let other = json!({"key": "other", "effect": "NoExecute"});
    let (mut publisher, log) = publisher(tainted_server(&[other]));
    publisher.round(Some(&degrading(&["/etc/a"])), None).await;
    assert!(taint_writes(&log).is_empty(), "no policy is known");
    publisher.set_policies(Some(asks_for_the_taint()));
    publisher.round(Some(&degrading(&["/etc/a"])), None).await;
    publisher.round(Some(&degrading(&["/etc/a", "/etc/b"])), None).await;
    assert_eq!(taint_writes(&log), [["other", "holdfast.dev/drifted"]], "once");
    publisher.round(Some(&degrading(&[])), None).await;
    assert_eq!(taint_writes(&log), [["other"]]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_drifts_ends_the_taint_and_has_an_event_also_while_a_gap_lasts() {
    let (mut publisher, log) = publisher(tainted_server(&[]));
    publisher.set_policies(Some(asks_for_the_taint()));
    let gap = |reason: &str| ReportedGap { reason: reason.to_owned(), ..ReportedGap::default() };
    let under = |paths: &[&str], reason: &str| {
        let mut finding = degrading(paths);
        if paths.is_empty() {
            finding.status.state = DriftState::Unknown;
        }
        finding.status.gaps = vec![gap(reason)];
        finding
    };
    publisher.round(Some(&under(&["/etc/a"], "foreign-file-system")), None).await;
    assert_eq!(taint_writes(&log), [["holdfast.dev/drifted"]]);
    // The first one may come from a log without the drift, and the others are no answers of the sensor, or verify another config.
    let silent = NodeFinding {
        sensor: SensorState::Silent { since: String::new() },
        ..under(&[], "foreign-file-system")
    };
    let mut changed = under(&[], "foreign-file-system");
    changed.status.config = Some(ReportedConfig { state: ConfigState::Differs, ..ReportedConfig::default() });
    for no_proof in [under(&[], "forensic-log-cut"), under(&[], "sensor-start"), silent, changed] {
        publisher.round(Some(&no_proof), None).await;
        let asked = log.take();
        let is_over = |asked: &PlayedRequest| {
            asked.line() == format!("PATCH {NODE}") || asked.body["reason"] == "ConfigDriftRecovered"
        };
        assert!(!asked.iter().any(is_over), "{no_proof:?}: {asked:?}");
    }
    let none: [&str; 0] = [];
    let over = under(&[], "foreign-file-system");
    publisher.round(Some(&over), None).await;
    let asked = log.take();
    let events: Vec<_> =
        asked.iter().filter(|asked| asked.body["reason"] == "ConfigDriftRecovered").collect();
    let [event] = &events[..] else { panic!("{asked:?}") };
    assert_eq!(
        event.body["note"],
        "no known drift is left, but whether the node matches its MachineConfigs is unknown (changes may have been missed: \
         foreign-file-system); 1 managed thing had drifted: /etc/a (content) by an unknown actor"
    );
    let taints = asked.iter().find(|asked| asked.line() == format!("PATCH {NODE}")).unwrap();
    assert_eq!(taints.body["spec"]["taints"], json!(none));
    publisher.round(Some(&over), None).await;
    publisher.round(Some(&degrading(&[])), None).await;
    let asked = log.take();
    assert!(!asked.iter().any(|asked| asked.method == "POST"), "one Event of one end: {asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_taint_of_an_earlier_reporter_goes_with_the_drift_or_with_the_policy() {
    let ours = json!({"key": "holdfast.dev/drifted", "effect": "NoSchedule"});
    let none: [&str; 0] = [];
    let (mut publisher, log) = publisher(tainted_server(std::slice::from_ref(&ours)));
    publisher.round(Some(&degrading(&[])), None).await;
    assert_eq!(taint_writes(&log), [none], "the policies are not known, and nothing differs");
    let (mut publisher, log) = super::publisher(tainted_server(&[ours]));
    publisher.round(Some(&degrading(&["/etc/a"])), None).await;
    assert!(taint_writes(&log).is_empty());
    publisher.set_policies(Some(PolicyStanding { taints: Some(false), ..PolicyStanding::default() }));
    publisher.round(Some(&degrading(&["/etc/a"])), None).await;
    assert_eq!(taint_writes(&log), [none], "no policy asks for it any more");
}

#[tokio::test(start_paused = true)]
async fn policies_that_the_sensor_has_not_taken_neither_add_the_taint_nor_remove_it() {
    let ours = json!({"key": "holdfast.dev/drifted", "effect": "NoSchedule"});
    let none: [&str; 0] = [];
    let waits = || Some(PolicyStanding { taints: None, ..asks_for_the_taint() });
    let drifted = degrading(&["/etc/a"]);
    let status = DriftReportStatus { state: DriftState::Unknown, ..drifted.status.clone() };
    let unknown = NodeFinding { status, ..drifted.clone() };
    // What the sensor keeps in force does not degrade the node any more.
    let observed = finding(&["/etc/a"]);
    for is_over in [&observed, &finding(&[])] {
        let (mut publisher, log) = publisher(tainted_server(std::slice::from_ref(&ours)));
        publisher.set_policies(waits());
        for finding in [&drifted, &unknown, &drifted] {
            publisher.round(Some(finding), None).await;
        }
        assert!(taint_writes(&log).is_empty(), "the node keeps it");
        publisher.round(Some(is_over), None).await;
        assert_eq!(taint_writes(&log), [none]);
        publisher.round(Some(&drifted), None).await;
        assert!(taint_writes(&log).is_empty(), "the node does not get it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_conflicts_is_read_again_and_a_refused_one_delays_nothing_else() {
    let mut conflicts = 1;
    let mut server = tainted_server(&[]);
    let (mut publisher, log) = publisher(move |asked| {
        if asked.line() == format!("PATCH {NODE}") && conflicts > 0 {
            conflicts -= 1;
            return PlayedAnswer::Code(409);
        }
        server(asked)
    });
    publisher.set_policies(Some(asks_for_the_taint()));
    let next = publisher.round(Some(&degrading(&["/etc/a"])), None).await;
    let lines = log.lines();
    assert!(
        lines.contains(&format!("POST {EVENTS}")) && lines.contains(&format!("PATCH {LEASE}")),
        "{lines:?}"
    );
    log.take();
    tokio::time::sleep_until(next).await;
    publisher.round(Some(&degrading(&["/etc/a"])), None).await;
    assert_eq!(log.lines(), [format!("GET {NODE}"), format!("PATCH {NODE}")]);
}

#[tokio::test(start_paused = true)]
async fn a_report_has_the_policies_and_until_they_are_known_those_of_the_report_before() {
    let (mut publisher, log) = publisher(|asked| match asked.line() {
        line if line == format!("PATCH {REPORT}") => {
            let status = DriftReportStatus { policies: asks_for_the_taint().policies, ..finding(&[]).status };
            PlayedAnswer::Json(json!({"apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftReport",
                "metadata": {"name": "n1"}, "status": status}))
        }
        _ => good(asked),
    });
    let policies = |asked: Vec<PlayedRequest>| {
        let write = asked.into_iter().find(|asked| asked.line() == format!("PATCH {REPORT}/status"));
        write.unwrap().body["status"].get("policies").cloned()
    };
    publisher.round(Some(&finding(&[])), None).await;
    assert_eq!(policies(log.take()).unwrap()[0]["name"], "one");
    publisher.set_policies(Some(PolicyStanding::default()));
    publisher.round(Some(&finding(&[])), None).await;
    assert_eq!(policies(log.take()), None);
}
