//! What a reporter asks an API server for while nothing changes, in real time. Only a full run has ten minutes for it.

use super::process::LoggedProcess;
use super::reporter_tests::{Cluster, LIMIT, PlayedSensor};
use crate::vm::AuditLog;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longer than two watches may live.
const TWO_WATCHES: Duration = Duration::from_mins(15);

/// The requests by verb and resource, from the audit log in this folder.
fn requests(folder: &Path) -> Result<BTreeMap<String, u64>> {
    let mut counted = BTreeMap::new();
    for line in fs::read_to_string(folder.join("audit.log"))?.lines() {
        let event: Value = serde_json::from_str(line).context("a line of the audit log")?;
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let kind = format!("{} {}", word(&event["verb"]), word(&event["objectRef"]["resource"]));
        *counted.entry(kind).or_insert(0) += 1;
    }
    Ok(counted)
}

/// `cargo xtask test --full` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`, and ten minutes"]
fn a_watch_that_ended_by_its_age_begins_again_without_a_read_and_a_minute_has_fewer_than_two_requests() {
    let folder = tempfile::tempdir().unwrap();
    let audit = AuditLog::of_reporters(folder.path()).unwrap();
    let flags: Vec<&str> = audit.flags.iter().map(String::as_str).collect();
    let cluster = Cluster::start_with("steady", "base", &flags);
    let _sensor = PlayedSensor::start(cluster.folder.path());
    let config = cluster.until_reporter_config("n1");
    let log = cluster.plane.log("reporter");
    let reporter = cluster.start_reporter("reporter.sock", &config, &[], &log);
    let mut before = BTreeMap::new();
    reporter
        .until(LIMIT, || {
            cluster.state("n1", "InSync", "False")?;
            // The last line may be a part of one that the API server still writes.
            before = requests(folder.path())?;
            Ok(())
        })
        .unwrap();
    let start = Instant::now();
    let mut since = BTreeMap::new();
    reporter
        .until(TWO_WATCHES, || {
            since = requests(folder.path())?;
            for (kind, count) in &mut since {
                *count -= before.get(kind).copied().unwrap_or(0);
            }
            let watches = ["watch nodes", "watch driftpolicies"].map(|kind| since.get(kind).copied());
            ensure!(watches.iter().all(|count| count.is_some_and(|count| count >= 2)), "{since:?}");
            Ok(())
        })
        .unwrap();
    let reads = |kind: &str, count: u64| count > 0 && (kind.starts_with("get ") || kind.starts_with("list "));
    assert!(!since.iter().any(|(kind, count)| reads(kind, *count)), "{since:?}");
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    let all = u32::try_from(since.values().sum::<u64>()).unwrap();
    assert!(f64::from(all) < 2.0 * minutes, "{since:?} in {minutes:.1} minutes");
}

/// More things with long paths differ than a report lists.
pub(super) fn a_report_at_its_limits_is_accepted(
    cluster: &Cluster,
    sensor: &mut PlayedSensor,
    reporter: &LoggedProcess,
) {
    const DRIFTS: usize = 150;
    let path = |number: usize| format!("/etc/{number}{}", "x".repeat(1000));
    (0..DRIFTS).for_each(|number| sensor.turn(&format!("drift {} dave", path(number))));
    let is_whole = || {
        let (report, _) = cluster.state("n1", "Drifted", "True")?;
        let listed = report["drifts"].as_array().context("no list")?.len();
        let more = report["more"].as_u64().context("no count")?;
        // One more was there before.
        ensure!(
            report["count"] == DRIFTS + 1 && listed as u64 + more == DRIFTS as u64 + 1,
            "{listed} and {more}"
        );
        ensure!(listed > 50 && listed <= 100, "{listed} are listed");
        Ok(())
    };
    reporter.until(LIMIT, is_whole).unwrap();
    (0..DRIFTS).for_each(|number| sensor.turn(&format!("recover {}", path(number))));
    reporter
        .until(LIMIT, || {
            let (report, _) = cluster.state("n1", "Drifted", "True")?;
            ensure!(report["count"] == 1, "{}", report["count"]);
            Ok(())
        })
        .unwrap();
}
