//! A soft reboot of a Kubernetes node into another root directory. No unit of the host enrols the new inodes: the pod's sensor does it.
//!
//! In: a node with systemd 254 or later, which joins the control plane on the host and runs the `DaemonSet`. Out: checks in the second
//! userspace, whose managed files all have other inodes. A person edits one file before kubelet starts the pod again, and another one
//! after that.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::kube::store_as_operator;
use super::soft_reboot::node::another_root;
use crate::guest::agent::HOLDFAST;
use crate::guest::forensic::read_records;
use crate::guest::kube::{self, NODE};
use crate::guest::programs;
use crate::guest::service::{as_alice, prepare};
use crate::guest::{Context, run, wait};

/// How long each step may take in an emulated guest.
const LIMIT: Duration = Duration::from_secs(110);
/// The command line of the pod's sensor, for `pgrep -f`.
const SENSOR: &str = "^/holdfast agent";
/// What the second userspace has to know, in `/var`.
const STAGE: &str = "/var/lib/holdfast-scenario";
const LOG: &str = "/var/log/holdfast/forensic.jsonl";
/// The file that is edited while no sensor runs.
const EARLY: &str = "/etc/sysctl.d/90-baseline.conf";
/// The file that is edited while the pod's sensor runs.
const EDITED: &str = "/etc/chrony.conf";

/// The kernel before the soft reboot.
#[derive(Debug, Serialize, Deserialize)]
struct Stage {
    boot: String,
    /// The number of records.
    records: usize,
    /// The numbers of the loaded programs.
    programs: BTreeSet<u32>,
}

/// The scenario, in both userspaces.
pub(super) fn kubelet(context: &mut Context) -> Result<()> {
    wait::for_systemd()?;
    if let Ok(stage) = fs::read(STAGE) {
        return after(context, &serde_json::from_slice(&stage)?);
    }
    prepare(&[])?;
    store_as_operator()?;
    kube::join(context)?;
    let pod = kube::deploy_kustomization(context, &kube::kustomization_as_shipped("base")?)?;
    context.check("pod_is_ready", Ok(pod));
    context.check("the_sensor_of_the_shipped_base_is_unconfined", unconfined());
    context.check("report_says_in_sync", in_sync());
    let stage = Stage { boot: boot_id()?, records: records()?.len(), programs: loaded()? };
    ensure!(soft_reboots()? == "0", "SoftRebootsCount is {}", soft_reboots()?);
    fs::write(STAGE, serde_json::to_vec(&stage)?)?;
    another_root(|_| Ok(()))?;
    run("systemctl", &["--no-block", "soft-reboot"])?;
    context.note("soft reboot");
    loop {
        // The userspace ends here. If it does not, the host's time limit ends the scenario.
        std::thread::park();
    }
}

/// The second userspace.
fn after(context: &mut Context, before: &Stage) -> Result<()> {
    context.check("another_root_directory_on_the_same_kernel", another_root_directory(before));
    context.check("pinned_programs_live_on_without_a_sensor", live_on(before));
    as_alice(&format!("sudo sed -i '$a # early' {EARLY}"))?;
    kube::rejoin()?;
    context.check("the_pods_sensor_takes_them_over", taken_over(before));
    context.check("an_edit_without_a_sensor_is_drift_without_an_actor", early());
    as_alice(&format!("sudo sed -i s/time1.example.com/time.attacker.example/ {EDITED}"))?;
    context.check("an_edit_of_a_new_inode_names_its_login_to_the_cluster", edited());
    context.check("nothing_else_drifted", nothing_else(before));
    as_alice(&format!("sudo sed -i '$d' {EARLY}"))?;
    as_alice(&format!("sudo sed -i s/time.attacker.example/time1.example.com/ {EDITED}"))?;
    context.check("recovery_clears_the_report", in_sync());
    context.check("the_log_is_one_chain", run(HOLDFAST, &["log", "verify"]));
    Ok(())
}

/// The base needs no profile on the node. No other scenario runs the pod without one.
fn unconfined() -> Result<String> {
    let found = run("pgrep", &["-f", SENSOR])?;
    let pid = found.lines().next().context("no sensor")?;
    let profile = fs::read_to_string(format!("/proc/{pid}/attr/current"))?;
    // Debian 13 has a profile for runc that confines nothing, and containers inherit it.
    ensure!(["unconfined", "runc (unconfined)"].contains(&profile.trim()), "{profile}");
    Ok(profile)
}

fn boot_id() -> Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn soft_reboots() -> Result<String> {
    Ok(run("systemctl", &["show", "--value", "-p", "SoftRebootsCount"])?.trim().to_owned())
}

fn records() -> Result<Vec<Value>> {
    read_records(Path::new(LOG))
}

fn loaded() -> Result<BTreeSet<u32>> {
    Ok(programs::loaded()?.iter().map(aya::programs::ProgramInfo::id).collect())
}

/// What people would look at.
fn seen() -> String {
    let report = kube::get("driftreport", NODE).unwrap_or_default();
    let records = records().unwrap_or_default();
    let last: Vec<String> = records.iter().rev().take(20).map(Value::to_string).collect();
    format!("report: {report}\nrecords, the newest first: {}\n{}", last.join("\n"), kube::pods())
}

/// Waits until the report is as wanted.
fn report(what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    kube::report(what, LIMIT, is_so, seen)
}

fn in_sync() -> Result<String> {
    let report = report("the report to say InSync", |status| status["state"] == "InSync")?;
    ensure!(report["status"]["count"] == 0, "{report}");
    Ok(String::new())
}

fn another_root_directory(before: &Stage) -> Result<String> {
    ensure!(boot_id()? == before.boot, "the kernel was started again");
    ensure!(soft_reboots()? == "1", "SoftRebootsCount is {}", soft_reboots()?);
    let kind = run("findmnt", &["-n", "-o", "FSTYPE", "/"])?;
    ensure!(kind.trim() == "overlay", "the root directory is the old one: {kind}");
    Ok(kind)
}

/// The programs of before are loaded, and no sensor runs.
fn live_on(before: &Stage) -> Result<String> {
    ensure!(run("pgrep", &["-f", SENSOR]).is_err(), "a sensor runs");
    ensure!(Path::new("/sys/fs/bpf/holdfast").exists(), "the pins are gone");
    let now = loaded()?;
    let pinned = before.programs.intersection(&now).count();
    // systemd loads programs of its own.
    ensure!(pinned > 20, "of {:?} there are {now:?}", before.programs);
    Ok(format!("{pinned} of {}", before.programs.len()))
}

/// The new sensor adopts the programs. It finds that they know no inode of this root directory, and verifies everything.
fn taken_over(before: &Stage) -> Result<String> {
    let new = || Ok::<_, anyhow::Error>(records()?.into_iter().skip(before.records));
    let start = wait::until("the start of the pod's sensor", LIMIT, || {
        Ok(new()?.find(|record| record["kind"] == "start"))
    });
    let start = start.with_context(seen)?;
    ensure!(start["detail"]["adopted"] == true, "{start}");
    let gap = |is_over: bool| {
        move |record: &Value| {
            let detail = &record["detail"];
            record["kind"] == "gap" && detail["reason"] == "new-root" && detail["until"].is_null() != is_over
        }
    };
    wait::until("the end of the gap", LIMIT, || Ok(new()?.find(gap(true)))).with_context(seen)?;
    ensure!(new()?.any(|record| gap(false)(&record)), "the gap has no beginning");
    Ok(start["detail"]["backend"].to_string())
}

/// Whether a report has the drift of a path, with its login or without an actor.
fn has(status: &Value, path: &str, login: Option<&str>) -> bool {
    let drifts = status["drifts"].as_array().into_iter().flatten();
    drifts.into_iter().any(|drift| drift["path"] == path && drift["by"]["loginUser"].as_str() == login)
}

fn early() -> Result<String> {
    let report = report("the report to have the early edit", |status| has(status, EARLY, None))?;
    let drifts = &report["status"]["drifts"];
    ensure!(drifts[0]["by"].is_null(), "nobody watched the edit: {drifts}");
    Ok(drifts.to_string())
}

fn edited() -> Result<String> {
    let report = report("the report to name the login", |status| has(status, EDITED, Some("alice")))?;
    ensure!(report["status"]["count"] == 2, "{report}");
    Ok(report["status"]["newest"].to_string())
}

fn nothing_else(before: &Stage) -> Result<String> {
    let others: Vec<Value> = records()?
        .into_iter()
        .skip(before.records)
        .filter(|record| record["kind"] == "drift" && record["path"] != EARLY && record["path"] != EDITED)
        .collect();
    ensure!(others.is_empty(), "{others:?}");
    Ok(String::new())
}
