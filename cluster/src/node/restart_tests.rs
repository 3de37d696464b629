//! A new reporter goes on where the one before ended.

use super::tests::{Writing, api_server_with, finding, node_in};
use super::*;
use crate::api::{ConfigState, DriftReportStatus, DriftState, ReportedConfig, ReportedOsImage};
use crate::played_server::{PlayedAnswer, PlayedLog, PlayedRequest, played};
use crate::reports::{ComparedConfig, SensorState, add_config, add_os_image};
use sensor_model::status::{ConfigOrigin, ExpectedConfig};
use serde_json::json;
use tokio::time::sleep;

const BOOTED: &str = "quay.io/os@sha256:aa";
const CONFIG: &str = "rendered-1";
const ANSWERS: SensorState = SensorState::Answers { refuses_config: false };

/// An API server that has this report of the reporter before.
fn api_server(last: &DriftReportStatus) -> (Client, PlayedLog) {
    let report = json!({"apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftReport", "metadata": {"name": "n1"},
        "status": last});
    played(move |asked: &PlayedRequest| match asked.line().as_str() {
        "PATCH /apis/holdfast.dev/v1alpha1/driftreports/n1" => PlayedAnswer::Json(report.clone()),
        line if line.contains("/api/v1/nodes") => PlayedAnswer::Json(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "node-uid"}}),
        ),
        _ => PlayedAnswer::Echo,
    })
}

/// What a sensor finds on a node that matches: this image and the config.
fn in_sync(booted: &str) -> NodeFinding {
    let os_image = Some(ReportedOsImage { booted: Some(booted.to_owned()), ..ReportedOsImage::default() });
    let status = DriftReportStatus { state: DriftState::InSync, os_image, ..DriftReportStatus::default() };
    let config = ExpectedConfig {
        origin: ConfigOrigin::Operator,
        name: Some(CONFIG.to_owned()),
        digest: "v1:a".to_owned(),
    };
    NodeFinding { status, sensor: ANSWERS, text: None, config: Some(config) }
}

fn opinions(out_of_step: Option<&str>) -> ReportedOsImage {
    ReportedOsImage {
        booted: Some(BOOTED.to_owned()),
        out_of_step: out_of_step.map(str::to_owned),
        ..ReportedOsImage::default()
    }
}

fn compared(state: ConfigState) -> ReportedConfig {
    ReportedConfig { expected: Some(CONFIG.to_owned()), state, ..ReportedConfig::default() }
}

/// The statuses with the reasons of the condition and the reasons of the Events, in the order in which they were written.
fn written(log: &PlayedLog) -> Vec<String> {
    let text = |asked: PlayedRequest| match asked.line() {
        line if line.ends_with("/nodes/n1/status") => {
            let drift = &asked.body["status"]["conditions"][0];
            Some(format!("{} {}", drift["status"].as_str().unwrap(), drift["reason"].as_str().unwrap()))
        }
        line if line.starts_with("POST") => Some(asked.body["reason"].as_str().unwrap().to_owned()),
        _ => None,
    };
    log.take().into_iter().filter_map(text).collect()
}

#[tokio::test(start_paused = true)]
async fn an_os_image_that_was_out_of_step_is_so_until_it_is_compared_again() {
    let mut last = in_sync(BOOTED).status;
    add_os_image(&mut last, &ANSWERS, &opinions(Some("the node booted X")));
    let (client, log) = api_server(&last);
    let writing = Writing::start(client);
    writing.findings.send_replace(Some(in_sync(BOOTED)));
    sleep(Duration::from_secs(32)).await;
    writing.os_image.send_replace(Some(opinions(Some("the node booted X"))));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(written(&log), ["True Drifted"]);
    writing.os_image.send_replace(Some(opinions(None)));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(written(&log), ["False InSync", "ConfigDriftRecovered"]);
    writing.end().await;

    // The node has booted another image since.
    let (client, log) = api_server(&last);
    let writing = Writing::start(client);
    writing.findings.send_replace(Some(in_sync("quay.io/os@sha256:bb")));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(written(&log), ["False InSync", "ConfigDriftRecovered"]);
    writing.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_config_that_differed_does_so_until_it_is_compared_again() {
    let mut last = in_sync(BOOTED).status;
    add_config(&mut last, &ANSWERS, &compared(ConfigState::Differs));
    let (client, log) = api_server(&last);
    let writing = Writing::start(client);
    let set = |state: ConfigState, is_final: bool| {
        writing.config.send_replace(ComparedConfig { config: Some(compared(state)), is_final });
    };
    writing.findings.send_replace(Some(in_sync(BOOTED)));
    sleep(Duration::from_secs(5)).await;
    // The API server does not answer the read.
    set(ConfigState::Unknown, false);
    sleep(Duration::from_mins(1)).await;
    set(ConfigState::Differs, true);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(written(&log), ["Unknown ConfigDiffers"]);
    set(ConfigState::Same, true);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(written(&log), ["False InSync"]);
    set(ConfigState::Differs, true);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(written(&log), ["Unknown ConfigDiffers", "NodeConfigDiffers"]);
    writing.end().await;

    // The sensor expects another config since, or the reporter may not read the object any more.
    let mut other = in_sync(BOOTED);
    other.config.as_mut().unwrap().name = Some("rendered-2".to_owned());
    let forbidden = ComparedConfig { config: Some(compared(ConfigState::Unknown)), is_final: true };
    for (finding, config) in [(other, ComparedConfig::default()), (in_sync(BOOTED), forbidden)] {
        let (client, log) = api_server(&last);
        let writing = Writing::start(client);
        writing.config.send_replace(config);
        writing.findings.send_replace(Some(finding));
        sleep(Duration::from_secs(5)).await;
        assert_eq!(written(&log), ["False InSync"]);
        writing.end().await;
    }
}

/// The last report that was written.
fn reported(log: &PlayedLog) -> DriftReportStatus {
    let line = "PATCH /apis/holdfast.dev/v1alpha1/driftreports/n1/status";
    let last = log.take().into_iter().rfind(|asked| asked.line() == line).expect("no report was written");
    serde_json::from_value(last.body["status"].clone()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_silent_sensor_and_reporters_that_start_meanwhile_end_neither_a_changed_config_nor_an_image_out_of_step()
 {
    let silent = |last: Option<NodeFinding>| {
        let sensor = SensorState::Silent { since: "2026-01-01T00:00:00Z".to_owned() };
        Some(sensor::silent(last, &sensor, jiff::Timestamp::UNIX_EPOCH))
    };
    for is_config in [true, false] {
        let (client, log) = api_server(&in_sync(BOOTED).status);
        let writing = Writing::start(client);
        if is_config {
            let config = Some(compared(ConfigState::Differs));
            writing.config.send_replace(ComparedConfig { config, is_final: true });
        } else {
            writing.os_image.send_replace(Some(opinions(Some("the node booted X"))));
        }
        writing.findings.send_replace(Some(in_sync(BOOTED)));
        sleep(Duration::from_secs(6)).await;
        writing.findings.send_replace(silent(Some(in_sync(BOOTED))));
        sleep(Duration::from_secs(6)).await;
        let mut last = reported(&log);
        writing.end().await;
        for round in 0..3 {
            assert_eq!((last.state, last.count), (DriftState::Unknown, i64::from(!is_config)), "{round}");
            let differs = last.config.as_ref().is_some_and(|config| config.state == ConfigState::Differs);
            let out_of_step = last.os_image.as_ref().is_some_and(|image| image.out_of_step.is_some());
            assert_eq!((differs, out_of_step), (is_config, !is_config), "{round}");
            let (client, log) = api_server(&last);
            let writing = Writing::start(client);
            writing.findings.send_replace(silent(None));
            sleep(Duration::from_secs(6)).await;
            last = reported(&log);
            writing.end().await;
        }
        // The sensor answers the next reporter, which has compared nothing yet.
        let (client, log) = api_server(&last);
        let writing = Writing::start(client);
        writing.findings.send_replace(Some(in_sync(BOOTED)));
        sleep(Duration::from_secs(6)).await;
        assert_eq!(written(&log), [if is_config { "Unknown ConfigDiffers" } else { "True Drifted" }]);
        writing.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_finding_that_is_faster_than_the_node_shows_no_update_as_drift() {
    for is_managed in [false, true] {
        let (sensor, progress) = watch::channel(None);
        let (client, log) = api_server_with("openshift-machine-config-operator");
        let writing = Writing::start_with(client, is_managed.then_some(progress), None);
        writing.findings.send_replace(Some(finding("/etc/a")));
        sleep(Duration::from_millis(100)).await;
        writing.node.send_replace(Some(node_in("Working")));
        if is_managed {
            sleep(Duration::from_millis(500)).await;
            let progress = ApplyProgress { is_managed_by_operator: true, ..ApplyProgress::idle() };
            sensor.send_replace(Some(progress));
        }
        sleep(Duration::from_secs(2)).await;
        assert_eq!(written(&log), ["Unknown Updating"], "{is_managed}");
        sensor.send_replace(None);
        writing.findings.send_replace(Some(finding("/etc/b")));
        sleep(Duration::from_secs(2)).await;
        assert_eq!(written(&log), ["Unknown Updating"], "the sensor gives no progress for a while");
        writing.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_node_the_first_finding_is_written_after_seconds_and_the_lease_at_once() {
    let (client, log) = api_server_with("default");
    let writing = Writing::start_with(client, None, None);
    writing.findings.send_replace(Some(finding("/etc/a")));
    sleep(Duration::from_secs(4)).await;
    let lines = log.lines();
    assert!(lines.iter().any(|line| line.contains("/leases/")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("/driftreports/")), "{lines:?}");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(written(&log), ["True Drifted", "ConfigDriftDetected"]);
    writing.node.send_replace(None);
    writing.findings.send_replace(Some(finding("/etc/b")));
    sleep(Duration::from_secs(2)).await;
    assert_eq!(written(&log), ["True Drifted", "ConfigDriftDetected"], "only the first one waits");
    writing.end().await;
}
