//! A node whose clock is wrong, so that its reporter believes no certificate of the API server.
//!
//! In: sensor and reporter as units, with TLS to a real API server whose certificate is valid from an hour before its start, for a
//! year. Out: the proof that detection and the log go on, and that the cluster gets the present state once when the clock is right
//! again. The scenario reads the API through the host, without TLS.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::node::{FILE, LIMIT, REPORTER, drifted, edit, in_sync, repair, seen};
use crate::guest::kube::{self, NODE};
use crate::guest::reporter::OUTPUT;
use crate::guest::service::Node;
use crate::guest::{api, run, wait};

const DAY: i64 = 24 * 60 * 60;
/// The Events about the node are here.
const EVENTS: &str = "/api/v1/namespaces/default/events";
/// The reports, for a watch.
const REPORTS: &str = "/apis/holdfast.dev/v1alpha1/driftreports";

/// The certificate has expired long ago.
pub(super) fn two_years_fast(node: &Node) -> Result<String> {
    through(node, 730 * DAY, "certificate expired")
}

/// The certificate is not valid yet.
pub(super) fn a_day_slow(node: &Node) -> Result<String> {
    through(node, -DAY, "certificate not valid yet")
}

/// Moves the clock, and changes the file three times while the reporter cannot reach the API server. Then the clock is right again.
fn through(node: &Node, seconds: i64, error: &str) -> Result<String> {
    let events = Events::now()?;
    move_clock(seconds)?;
    let untold = while_wrong(node, error);
    move_clock(-seconds)?;
    let untold = untold?;
    let report = drifted()?;
    ensure!(report["status"]["count"] == 1, "{report}");
    repair()?;
    in_sync()?;
    events.and_one_of_each()?;
    let written = states_since(&untold)?;
    ensure!(written == ["Drifted 1", "InSync 0"], "the reports since: {written:?}");
    Ok(format!("{written:?}"))
}

/// What happens while the clock is wrong. Gives the version that the report had all the time.
fn while_wrong(node: &Node, error: &str) -> Result<String> {
    let printed = fs::read_to_string(OUTPUT)?.len();
    // A connection that is open is not verified again.
    run("systemctl", &["restart", REPORTER])?;
    wait::until("the reporter to reject the certificate", LIMIT, || {
        let output = fs::read_to_string(OUTPUT)?;
        Ok(output.get(printed..).is_some_and(|output| output.contains(error)).then_some(()))
    })
    .with_context(seen)?;
    let (before, records) = (version()?, node.records()?.len());
    let logged = |what: &str, skip: usize, kind: &str| {
        node.wait_for(what, skip, |record| record["kind"] == kind && record["path"] == FILE)
    };
    edit("time.first.example")?;
    let first = logged("the first drift", records, "drift")?;
    ensure!(first["actor"]["login_user"] == "alice", "{first}");
    repair()?;
    logged("the recovery", records, "recovered")?;
    let records = node.records()?.len();
    edit("time.second.example")?;
    logged("the second drift", records, "drift")?;
    node.wait_for_verdict("drifted")?;
    let after = version()?;
    ensure!(after == before, "the report was written with a wrong clock: {after}, and before {before}");
    Ok(before)
}

/// Moves the clock by some seconds, against itself.
fn move_clock(seconds: i64) -> Result<()> {
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?;
    run("date", &["-s", &format!("@{}", now + seconds)]).map(drop)
}

/// The version of the node's report.
fn version() -> Result<String> {
    let report = kube::get("driftreport", NODE)?;
    report["metadata"]["resourceVersion"].as_str().map(str::to_owned).context("no version")
}

/// The states of all versions of the report after this one, each with its number of drifts. Equal ones in a row are one.
fn states_since(version: &str) -> Result<Vec<String>> {
    let changes = api::watch(&format!("{REPORTS}?watch=1&timeoutSeconds=1&resourceVersion={version}"))?;
    let mut states: Vec<String> = changes
        .iter()
        .map(|change| &change["object"]["status"])
        .map(|status| format!("{} {}", status["state"].as_str().unwrap_or_default(), status["count"]))
        .collect();
    states.dedup();
    Ok(states)
}

/// How many Events tell of a drift of the node, and of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Events {
    pub(super) drifts: usize,
    pub(super) recoveries: usize,
}

impl Events {
    pub(super) fn now() -> Result<Self> {
        let list = api::get(EVENTS)?;
        let count = |reason: &str| {
            let events = list["items"].as_array().into_iter().flatten();
            let is_so = |event: &&Value| event["reason"] == reason && event["involvedObject"]["name"] == NODE;
            events.filter(is_so).count()
        };
        Ok(Self { drifts: count("ConfigDriftDetected"), recoveries: count("ConfigDriftRecovered") })
    }

    /// Waits for one more of each, and fails if there are more.
    pub(super) fn and_one_of_each(self) -> Result<()> {
        let wanted = Self { drifts: self.drifts + 1, recoveries: self.recoveries + 1 };
        wait::until("the Event of the recovery", LIMIT, || {
            Ok(Some(Self::now()?).filter(|now| now.recoveries >= wanted.recoveries))
        })
        .with_context(seen)?;
        let now = Self::now()?;
        ensure!(now == wanted, "{now:?} and not {wanted:?}\n{}", seen());
        Ok(())
    }
}
