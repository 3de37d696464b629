//! A forensic log that root on the node writes anew, with the API server.

use super::process::LoggedProcess;
use super::reporter_tests::{Cluster, LIMIT, PlayedSensor};
use anyhow::ensure;
use serde_json::Value;
use std::fs;

/// The report of n1, once it has this state.
fn report(cluster: &Cluster, reporter: &LoggedProcess, state: &str, status: &str) -> Value {
    let mut report = Value::Null;
    reporter
        .until(LIMIT, || {
            (report, _) = cluster.state("n1", state, status)?;
            Ok(())
        })
        .unwrap();
    report
}

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn a_log_that_was_written_anew_without_a_reporter_is_in_the_report_and_in_one_event() {
    let cluster = Cluster::start("log", "base");
    let folder = cluster.folder.path();
    let config = cluster.until_reporter_config("n1");
    let log = cluster.plane.log("reporter");
    let start = || cluster.start_reporter("reporter.sock", &config, &[], &log);

    let mut sensor = PlayedSensor::start(folder);
    let reporter = start();
    report(&cluster, &reporter, "InSync", "False");
    sensor.turn("drift /etc/chrony.conf alice");
    let kept = report(&cluster, &reporter, "Drifted", "True")["log"].clone();
    assert!(kept["sequence"].as_i64() > Some(1), "{kept}");
    sensor.turn("recover /etc/chrony.conf");
    report(&cluster, &reporter, "InSync", "False");
    drop(reporter);
    let kept = cluster.get(&["driftreport", "n1"]).unwrap()["status"]["log"].clone();
    drop(sensor);

    // Root removes the log, and the note of its end. The next start of the sensor begins another one.
    fs::remove_dir_all(folder.join("log")).unwrap();
    fs::remove_file(folder.join("state/forensic-end.json")).unwrap();
    // The played sensor does not replace its own second socket.
    fs::remove_file(folder.join("run/manage.sock")).unwrap();
    let mut sensor = PlayedSensor::start(folder);
    let reporter = start();
    let rewritten = |reporter: &LoggedProcess| {
        reporter
            .until(LIMIT, || {
                let report = cluster.get(&["driftreport", "n1"])?;
                let rewritten = &report["status"]["logRewritten"];
                ensure!(rewritten["hash"] == kept["hash"], "{report}");
                ensure!(rewritten["sequence"] == kept["sequence"], "{report}");
                ensure!(report["status"]["log"]["hash"] != kept["hash"], "{report}");
                let notes = cluster.notes("ForensicLogRewritten", 1)?;
                ensure!(notes[0].contains("was written anew"), "{notes:?}");
                Ok(())
            })
            .unwrap();
    };
    rewritten(&reporter);

    // The next reporter keeps it, and tells it no second time.
    drop(reporter);
    let reporter = start();
    sensor.turn("drift /etc/hosts bob");
    report(&cluster, &reporter, "Drifted", "True");
    rewritten(&reporter);
    cluster.plane.check().unwrap();
    reporter.check().unwrap();
}
