//! The node of the scenario: sensor and reporter as units, the report that the cluster has, and the file that alice edits.
//!
//! In: a guest with systemd, which reaches the control plane on the host. Out: installed units, edits, and waits for the report.

use std::fs;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use crate::guest::kube::{self, NODE};
use crate::guest::reporter::{self, USER};
use crate::guest::run;
use crate::guest::service::as_alice;

/// How long each step may take in an emulated guest.
pub(super) const LIMIT: Duration = Duration::from_mins(1);
/// The reporter's unit.
pub(super) const REPORTER: &str = "holdfast-reporter.service";
/// The file that is edited.
pub(super) const FILE: &str = "/etc/chrony.conf";

/// Installs both units and what the cluster needs, with a token of the reporter's account that names the node.
pub(super) fn install() -> Result<()> {
    let user = USER.to_string();
    run("groupadd", &["--gid", &user, "holdfast-reporter"])?;
    let options = ["--uid", &user, "--gid", &user, "--no-create-home", "--shell", "/usr/sbin/nologin"];
    run("useradd", &[&options[..], &["holdfast-reporter"]].concat())?;
    fs::write(
        format!("/etc/systemd/system/{REPORTER}"),
        include_str!("../../../kube/holdfast-reporter.service"),
    )?;
    reporter::account(include_str!("../../../kube/without-pods.yaml"))
}

/// Gives the sensor the options for a reporter in this unit.
pub(super) fn sensor_for(unit: &str) -> Result<()> {
    const FOLDER: &str = "/etc/systemd/system/holdfast.service.d";
    let options = format!("--mode observe --reporter-uid {USER} --reporter-unit {unit}");
    fs::create_dir_all(FOLDER)?;
    let drop_in = format!("[Service]\nExecStart=\nExecStart=/usr/local/bin/holdfast agent {options}\n");
    fs::write(format!("{FOLDER}/10-reporter.conf"), drop_in).map_err(Into::into)
}

/// Waits until the report is as wanted.
fn report(what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    kube::report(what, LIMIT, is_so, seen)
}

/// What people would look at.
pub(super) fn seen() -> String {
    let report = kube::get("driftreport", NODE).unwrap_or_default();
    let sensor = run("journalctl", &["-u", "holdfast.service", "-n", "20", "--no-pager", "-o", "cat"]);
    format!("report: {report}\nsensor:\n{}\nreporter:\n{}", sensor.unwrap_or_default(), reporter::printed())
}

pub(super) fn in_sync() -> Result<String> {
    let report = report("the report to say InSync", |status| status["state"] == "InSync")?;
    Ok(report["status"]["observedAt"].to_string())
}

/// Alice writes this server into the first line of the file.
pub(super) fn edit(server: &str) -> Result<()> {
    as_alice(&format!("sudo sed -i '1s/.*/server {server} iburst/' {FILE}")).map(drop)
}

/// Alice restores the file.
pub(super) fn repair() -> Result<()> {
    edit("time1.example.com")
}

/// The report names the path and the login.
pub(super) fn drifted() -> Result<Value> {
    report("the report to name the login", |status| {
        let drift = &status["drifts"][0];
        status["state"] == "Drifted" && drift["path"] == FILE && drift["by"]["loginUser"] == "alice"
    })
}
