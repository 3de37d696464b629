//! The page of metrics.

use super::*;
use crate::agent::reports::{AgentReport, DaemonFacts, LossReason};
use crate::clock::Clock;
use crate::report::{forensic, picture::Picture};
use sensor_model::difference::Difference;
use sensor_model::image::ScanProgress;
use sensor_model::protocol::GapReason;
use sensor_model::record::{Record, ThingKind};
use std::cell::RefCell;

fn metrics() -> Metrics {
    let build = BuildInfo {
        version: "0.1.0".to_owned(),
        commit: "abc".to_owned(),
        object: "ff00".to_owned(),
        kernel: "6.12.0".to_owned(),
    };
    Metrics::new(build, Timestamp::UNIX_EPOCH)
}

#[derive(Debug)]
struct At(Timestamp);

impl Clock for At {
    fn now(&self) -> Timestamp {
        self.0
    }

    fn boot_ns(&self) -> u64 {
        0
    }
}

/// A picture of a node, as the metrics show it.
struct Shown {
    metrics: Metrics,
    picture: RefCell<Picture>,
}

impl Shown {
    fn new() -> Self {
        Self { metrics: metrics(), picture: RefCell::default() }
    }

    fn drift(&self, thing: &ThingName, differences: &[Difference], actor: Option<&Actor>, second: i64) {
        self.report(("50-a", SourceKind::MachineConfig), thing, differences, actor, second);
    }

    /// A thing of this source drifts.
    fn drift_of(&self, source: &str, kind: SourceKind, thing: &ThingName) {
        self.report((source, kind), thing, &[difference(DifferenceKind::Content)], None, 1);
    }

    fn report(
        &self,
        (source, kind): (&str, SourceKind),
        thing: &ThingName,
        differences: &[Difference],
        actor: Option<&Actor>,
        second: i64,
    ) {
        let mut picture = self.picture.borrow_mut();
        let since = picture.drifts().get(thing).map_or(at(second), |before| before.since);
        let open = OpenDrift {
            differences: differences.to_vec(),
            since,
            actor: actor.cloned(),
            actors: Vec::new(),
            more_actors: false,
            allowed: false,
            source: source.to_owned(),
            source_kind: Some(kind),
            strength: None,
            action: None,
            found: None,
            confirmed: true,
        };
        let report = AgentReport::Drifted(thing.clone(), Box::new(open));
        picture.take(report, &self.metrics, &At(at(second)));
    }

    fn recovered(&self, thing: &ThingName) {
        self.recovered_at(thing, 0);
    }

    fn recovered_at(&self, thing: &ThingName, second: i64) {
        let report = AgentReport::Recovered(thing);
        self.picture.borrow_mut().take(report, &self.metrics, &At(at(second)));
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_323_000 + seconds).unwrap()
}

fn difference(kind: DifferenceKind) -> Difference {
    Difference { kind, expected: String::new(), found: String::new(), text: format!("{kind:?}") }
}

fn file(path: &str) -> ThingName {
    ThingName { path: path.to_owned(), kind: ThingKind::File }
}

fn value(metrics: &Metrics, series: &str) -> Option<String> {
    let page = metrics.page().unwrap();
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned))
}

/// The page without the process's own numbers, the samples of a metric sorted.
fn page(metrics: &Metrics) -> String {
    let mut blocks: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    for line in metrics.page().unwrap().lines() {
        let head = line.starts_with('#');
        if head && blocks.last().is_none_or(|(_, samples)| !samples.is_empty() || line.starts_with("# HELP"))
        {
            blocks.push((Vec::new(), Vec::new()));
        }
        let Some((heads, samples)) = blocks.last_mut() else { continue };
        if head { heads } else { samples }.push(line.to_owned());
    }
    let mut page = String::new();
    for (heads, mut samples) in blocks {
        if heads.iter().any(|line| line.contains(" process_")) {
            continue;
        }
        if !heads.iter().any(|line| line.ends_with(" histogram")) {
            samples.sort();
        }
        for line in heads.into_iter().chain(samples) {
            page.push_str(&line);
            page.push('\n');
        }
    }
    page
}

#[test]
fn the_page_is_the_one_that_dashboards_and_alerts_are_written_for() {
    let node = Shown::new();
    let metrics = &node.metrics;
    let actor = Actor { login_uid: Some(1000), ..Actor::default() };
    metrics.event(Operation::Write);
    metrics.event(Operation::Rename);
    metrics.event(Operation::Write);
    metrics.lost(LossStage::Ring, LossReason::Full, 3);
    metrics.verdict(VerdictKind::Drifted, Some(Duration::from_micros(1500)));
    let differences = [difference(DifferenceKind::Content), difference(DifferenceKind::Mode)];
    node.drift(&file("/etc/a"), &differences, Some(&actor), 1);
    metrics.verified(Duration::from_micros(90));
    metrics.verified_all(12, Duration::from_millis(20), at(2));
    metrics.hook("file_open", Attachment::Lsm, true);
    metrics.hook("inode_file_setattr", Attachment::Lsm, false);
    metrics.backend(BackendName::Lsm, 2);
    metrics.node_state(NodeState::Working, Some(Wait::Act));
    metrics.canary(at(3));
    metrics.gap_opened(GapReason::RecursionMissed);
    metrics.reverted("/etc/a", Ok(()));
    metrics.recorded(RecordKind::Drift, 500);
    metrics.without_record(RecordKind::Denied, 7);
    metrics.checkpoint(at(4));
    metrics.forensic_missing(3);
    metrics.forensic(Some("No space left on device"), 4, 2);
    insta::assert_snapshot!(page(metrics));
}

/// Prometheus sees the first increase only in a series that began with a zero.
#[test]
fn counters_of_gaps_reverts_and_losses_begin_with_zero() {
    let page = metrics().page().unwrap();
    let begins = |series: String| {
        assert!(page.lines().any(|line| line == format!("{series} 0")), "{series} 0 is missing:\n{page}");
    };
    for reason in GapReason::ALL {
        begins(format!("holdfast_gaps_total{{reason=\"{}\"}}", reason.as_str()));
    }
    for result in ["done", "failed"] {
        begins(format!("holdfast_reverts_total{{result=\"{result}\"}}"));
    }
    for (stage, reason) in LOSSES {
        let (stage, reason) = (stage.name(), reason.name());
        begins(format!("holdfast_events_lost_total{{stage=\"{stage}\",reason=\"{reason}\"}}"));
    }
}

#[test]
fn the_page_ends_with_the_last_line_of_openmetrics() {
    assert!(metrics().page().unwrap().ends_with("# EOF\n"));
}

#[test]
fn the_page_has_metrics_of_the_process() {
    let page = metrics().page().unwrap();
    for name in ["process_cpu_seconds_total ", "process_resident_memory_bytes ", "process_open_fds "] {
        assert!(page.lines().any(|line| line.starts_with(name)), "{name} in {page}");
    }
}

#[test]
fn each_drift_is_in_the_gauges_once_until_it_is_over() {
    let node = Shown::new();
    let (content, mode) = (difference(DifferenceKind::Content), difference(DifferenceKind::Mode));
    let drift = |path: &str, differences: &[Difference], second| {
        node.drift(&file(path), differences, None, second);
    };
    drift("/etc/a", std::slice::from_ref(&content), 10);
    drift("/etc/a", std::slice::from_ref(&content), 11);
    assert_eq!(value(&node.metrics, "holdfast_node_drift{kind=\"content\"}").unwrap(), "1");
    let detected = "holdfast_drift_detected_total{kind=\"content\",actor=\"unknown\"}";
    assert_eq!(value(&node.metrics, detected).unwrap(), "1", "reported twice, counted once");
    drift("/etc/b", &[content.clone(), mode.clone()], 20);
    assert_eq!(value(&node.metrics, "holdfast_node_drift{kind=\"content\"}").unwrap(), "2");
    assert_eq!(
        value(&node.metrics, "holdfast_drift_open_since_timestamp_seconds").unwrap(),
        at(10).as_second().to_string()
    );
    drift("/etc/b", &[mode], 30);
    assert_eq!(value(&node.metrics, "holdfast_node_drift{kind=\"content\"}").unwrap(), "1");
    node.recovered(&file("/etc/a"));
    node.recovered(&file("/etc/a"));
    assert_eq!(value(&node.metrics, "holdfast_node_drift{kind=\"content\"}").unwrap(), "0");
    assert_eq!(value(&node.metrics, "holdfast_node_drift{kind=\"mode\"}").unwrap(), "1");
    node.recovered(&file("/etc/b"));
    assert_eq!(value(&node.metrics, "holdfast_drift_open_since_timestamp_seconds").unwrap(), "0");
}

#[test]
fn how_long_a_drift_was_open_is_counted_once_when_it_ends() {
    let node = Shown::new();
    let (thing, content) = (file("/etc/a"), difference(DifferenceKind::Content));
    node.drift(&thing, std::slice::from_ref(&content), None, 10);
    node.drift(&thing, &[content.clone(), difference(DifferenceKind::Mode)], None, 40);
    let count =
        |name: &str| value(&node.metrics, &format!("holdfast_drift_recovery_seconds_{name}")).unwrap();
    assert_eq!(count("count"), "0", "an open drift has not recovered");
    node.recovered_at(&thing, 75);
    node.recovered_at(&thing, 90);
    assert_eq!((count("count"), count("sum")), ("1".to_owned(), "65.0".to_owned()));
    assert_eq!(
        (count("bucket{le=\"60.0\"}"), count("bucket{le=\"300.0\"}")),
        ("0".to_owned(), "1".to_owned())
    );
    // The clock was set back meanwhile.
    node.drift(&thing, &[content], None, 100);
    node.recovered_at(&thing, 95);
    assert_eq!((count("count"), count("sum")), ("2".to_owned(), "65.0".to_owned()));
}

#[test]
fn of_two_things_at_one_path_each_has_its_own_drift() {
    let of_file = file("/etc/systemd/system/a.service");
    let of_unit = ThingName { kind: ThingKind::Unit, ..of_file.clone() };
    let content = [difference(DifferenceKind::Content)];
    let enablement = [difference(DifferenceKind::UnitEnablement)];
    let open = |metrics: &Metrics| {
        ["content", "unit-enablement"]
            .map(|kind| value(metrics, &format!("holdfast_node_drift{{kind=\"{kind}\"}}")).unwrap())
    };
    for file_first in [true, false] {
        let node = Shown::new();
        let mut drifts = [(&of_file, &content), (&of_unit, &enablement)];
        if !file_first {
            drifts.reverse();
        }
        for (thing, differences) in drifts {
            node.drift(thing, differences, None, 10);
        }
        assert_eq!(open(&node.metrics), ["1", "1"]);
        node.recovered(drifts[1].0);
        let left = if file_first { ["1", "0"] } else { ["0", "1"] };
        assert_eq!(open(&node.metrics), left, "the other one is still as it was");
        assert_ne!(value(&node.metrics, "mcd_config_drift").unwrap(), "0");
        node.recovered(drifts[0].0);
        assert_eq!(value(&node.metrics, "mcd_config_drift").unwrap(), "0");
    }
}

#[test]
fn mcd_config_drift_is_the_last_drift_while_there_is_one_and_zero_otherwise() {
    let node = Shown::new();
    let shown = || value(&node.metrics, "mcd_config_drift").unwrap();
    assert_eq!(shown(), "0");
    node.drift(&file("/etc/a"), &[difference(DifferenceKind::Content)], None, 10);
    node.drift(&file("/etc/b"), &[difference(DifferenceKind::Content)], None, 20);
    node.drift(&file("/etc/b"), &[difference(DifferenceKind::Content)], None, 25);
    assert_eq!(shown(), at(20).as_second().to_string());
    node.recovered(&file("/etc/b"));
    assert_eq!(shown(), at(20).as_second().to_string(), "one is still open");
    node.recovered(&file("/etc/a"));
    assert_eq!(shown(), "0");
}

/// The series of the drifted things by source, without the metric's name.
fn by_source(metrics: &Metrics) -> Vec<String> {
    let page = metrics.page().unwrap();
    let series = page.lines().filter_map(|line| line.strip_prefix("holdfast_source_drifted_things"));
    series.map(str::to_owned).collect()
}

#[test]
fn a_layer_has_a_series_without_its_line_of_history_while_it_has_drifted_things() {
    let node = Shown::new();
    assert_eq!(by_source(&node.metrics), [""; 0]);
    for path in ["/usr/bin/a", "/usr/bin/b"] {
        let layer = "layer 2 of 3, sha256:4c0f21aa0b2c…, `RUN TOKEN=secret make`";
        node.drift_of(layer, SourceKind::Image, &file(path));
    }
    node.drift(&file("/etc/a"), &[difference(DifferenceKind::Mode)], None, 1);
    let config = "{source=\"machine-config\",name=\"50-a\"} 1";
    let image = |count| format!("{{source=\"image\",name=\"layer 2 of 3, sha256:4c0f21aa0b2c…\"}} {count}");
    assert_eq!(by_source(&node.metrics), [&image(2), config]);
    node.recovered(&file("/usr/bin/a"));
    assert_eq!(by_source(&node.metrics), [&image(1), config]);
    node.recovered(&file("/usr/bin/b"));
    assert_eq!(by_source(&node.metrics), [config]);
}

#[test]
fn however_many_sources_have_drifted_things_the_series_are_limited_and_count_all() {
    let node = Shown::new();
    // The cut is behind a character of several bytes.
    let long = "é".repeat(1000);
    for number in 0..60 {
        let kind = [SourceKind::Package, SourceKind::Baseline][number % 2];
        node.drift_of(&format!("p{number} {long}"), kind, &file(&format!("/{number}")));
    }
    // A source with two drifts has a series, although others come before it by name, and a config may have any name.
    for path in ["/y", "/z"] {
        node.drift_of("others", SourceKind::MachineConfig, &file(path));
    }
    let series = by_source(&node.metrics);
    assert_eq!(series.len(), by_source::MOST + 1, "{series:?}");
    assert!(series.contains(&"{source=\"machine-config\",name=\"others\"} 2".to_owned()), "{series:?}");
    assert!(series.contains(&"{source=\"others\",name=\"others\"} 41".to_owned()), "{series:?}");
    assert!(series.iter().all(|line| line.chars().count() < 250), "{series:?}");
}

#[test]
fn a_drift_of_a_log_without_the_kind_of_its_source_has_a_series() {
    let node = Shown::new();
    let mut last = Record::new(RecordKind::Drift, String::new(), String::new(), 0);
    last.set_name(file("/etc/a"));
    last.source = Some("99-a \"b\" \\".to_owned());
    let open = forensic::LoggedDrift { since: at(1).to_string(), last };
    node.picture.borrow_mut().open(DaemonFacts::default(), [(file("/etc/a"), open)].into(), &node.metrics);
    assert_eq!(by_source(&node.metrics), [r#"{source="unknown",name="99-a \"b\" \\"} 1"#]);
}

#[test]
fn drifts_that_were_open_before_a_restart_are_shown_and_cleared_but_not_counted() {
    let node = Shown::new();
    let open = |path: &str, second| {
        let mut last = Record::new(RecordKind::Drift, String::new(), String::new(), 0);
        last.set_name(file(path));
        last.differences = vec![difference(DifferenceKind::Missing)];
        (file(path), forensic::LoggedDrift { since: at(second).to_string(), last })
    };
    let drifts = [open("/etc/a", 5), open("/etc/b", 7)].into();
    node.picture.borrow_mut().open(DaemonFacts::default(), drifts, &node.metrics);
    assert_eq!(value(&node.metrics, "mcd_config_drift").unwrap(), at(7).as_second().to_string());
    assert_eq!(value(&node.metrics, "holdfast_node_drift{kind=\"missing\"}").unwrap(), "2");
    // The records of an older daemon do not have the kind of the source.
    let of_source =
        |source| value(&node.metrics, &format!("holdfast_drifted_things{{source=\"{source}\"}}")).unwrap();
    assert_eq!((of_source("unknown"), of_source("machine-config")), ("2".to_owned(), "0".to_owned()));
    // The first full verification finds that one drift is open and the other is over.
    node.drift(&file("/etc/a"), &[difference(DifferenceKind::Missing)], None, 100);
    node.recovered(&file("/etc/b"));
    assert_eq!((of_source("unknown"), of_source("machine-config")), ("0".to_owned(), "1".to_owned()));
    assert_eq!(value(&node.metrics, "mcd_config_drift").unwrap(), at(7).as_second().to_string());
    assert!(
        !node.metrics.page().unwrap().contains("holdfast_drift_detected_total{"),
        "nothing new was detected"
    );
    node.recovered(&file("/etc/a"));
    assert_eq!(value(&node.metrics, "mcd_config_drift").unwrap(), "0");
}

#[test]
fn an_actor_has_its_most_specific_class() {
    let login = Actor { login_uid: Some(1000), unit: Some("session-1.scope".to_owned()), ..Actor::default() };
    let container = Actor { container_id: Some("c".to_owned()), ..login.clone() };
    let unit = Actor { unit: Some("chronyd.service".to_owned()), ..Actor::default() };
    for (actor, class) in [
        (Some(Actor { holdfast: true, ..container.clone() }), "holdfast"),
        (Some(container), "container"),
        (Some(login), "login"),
        (Some(unit), "unit"),
        (Some(Actor::default()), "process"),
        (None, "unknown"),
    ] {
        assert_eq!(ActorClass::of(actor.as_ref()).as_str(), class);
    }
}

#[test]
fn a_scan_shows_how_far_its_round_is_and_what_it_found() {
    let metrics = metrics();
    let shown = |metrics: &Metrics| {
        ["progress_ratio", "differing", "unreadable", "sealed"]
            .map(|name| value(metrics, &format!("holdfast_image_scan_{name}")).unwrap())
    };
    let mut progress = ScanProgress::default();
    let mut round = progress.due("digest", 8, 100, Duration::from_hours(1)).unwrap();
    round.passed = 2;
    round.unreadable = 1;
    round.sealed = 3;
    round.differing = ["/usr/bin/a".to_owned(), "/usr/bin/b".to_owned()].into();
    progress.round = Some(round.clone());
    metrics.image_scan(&progress, 4_000);
    assert_eq!(shown(&metrics), ["0.25", "2", "1", "3"]);
    progress.end(&round, 200);
    metrics.image_scan(&progress, 5_000);
    assert_eq!(shown(&metrics), ["0.0", "2", "1", "3"]);
    assert_eq!(value(&metrics, "holdfast_image_scan_ended_timestamp_seconds").unwrap(), "5000");
}
