//! Soft reboots: the kernel with its pinned programs stays, and everything else starts again.
//!
//! In: a guest with systemd 254 or later, which runs the daemon as its service. Out: checks in three userspaces. The first soft
//! reboot starts another root directory, whose inodes are all new but those of `/var`, as on an ostree host. An apply asks for
//! the second one, which keeps the root directory.

pub(super) mod node;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::apply::{history, holdfast, result};
use crate::guest::forensic::{find_record, read_records};
use crate::guest::{Context, run, shell, status, wait};
use node::{
    CONFIGS, DENIED, EARLY, EDITED, KEPT, LOG, OLD_ROOT, SPARED, SWAPPED, another_root, configure, manifest,
    other_files, page,
};

/// The progress of the scenario, in `/var`: the number of soft reboots before, and the number of records in the log then.
const STAGE: &str = "/var/lib/holdfast-scenario";
/// How long starting and reporting may take in an emulated guest.
const LIMIT: Duration = Duration::from_mins(1);

/// The scenario, in all userspaces.
pub(super) fn systemd(context: &mut Context) -> Result<()> {
    wait::for_systemd()?;
    let stage = fs::read_to_string(STAGE).unwrap_or_default();
    let mut stage = stage.split(' ');
    let (soft_reboots, boot) = (stage.next().unwrap_or_default(), stage.next().unwrap_or_default());
    let before: usize = stage.next().and_then(|number| number.parse().ok()).unwrap_or_default();
    match soft_reboots {
        "" => {
            configure()?;
            context.check("systemd", has_soft_reboots());
            context.check("before", before_it());
            another_root(other_files)?;
            soft_reboot(context, 1, || run("systemctl", &["--no-block", "soft-reboot"]).map(drop))
        }
        "1" => {
            context.check(
                "another_root",
                another_userspace(boot, 1, "Enrolled the managed paths of a new root directory"),
            );
            context.check("programs_live_on", adopted(before, &["new-root"]));
            context.check("edits_around_it", edits_around_it(before));
            context.check("new_inodes", new_inodes());
            context.check("old_inodes", old_inodes());
            context.check("deny_rule", deny_rule());
            context.check("nothing_else", nothing_else(before));
            context.check("recovered", recovered());
            soft_reboot(context, 2, reboot_by_apply)
        }
        _ => {
            context.check(
                "same_root",
                another_userspace(boot, 2, "The pinned kernel programs watch this root directory"),
            );
            context.check("apply_done", apply_done());
            context.check("programs_live_on_again", adopted(before, &[]));
            context.check("compliant", compliant(before));
            Ok(())
        }
    }
}

/// Notes the progress, asks for a soft reboot, and waits for the end of this userspace.
fn soft_reboot(context: &mut Context, number: u32, ask: impl FnOnce() -> Result<()>) -> Result<()> {
    fs::write(STAGE, format!("{number} {} {}", boot_id()?, records()?.len()))?;
    if let Err(error) = ask() {
        bail!("{error:#}\n{}", journal());
    }
    context.note(format!("soft reboot {number}"));
    loop {
        // The userspace ends here. If it does not, the host's time limit ends the scenario.
        std::thread::park();
    }
}

fn boot_id() -> Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn records() -> Result<Vec<Value>> {
    read_records(Path::new(LOG))
}

fn journal() -> String {
    run("journalctl", &["-n", "60", "--no-pager", "-o", "cat"]).unwrap_or_default()
}

fn count() -> Result<String> {
    Ok(run("systemctl", &["show", "--value", "-p", "SoftRebootsCount"])?.trim().to_owned())
}

/// Waits for a record after the first `skip` ones that `wanted` accepts.
fn wait_for(what: &str, skip: usize, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let found = wait::until(what, LIMIT, || find_record(Path::new(LOG), skip, &wanted));
    found.with_context(|| {
        let new: Vec<String> =
            records().unwrap_or_default().iter().skip(skip).map(Value::to_string).collect();
        format!("records since: {}\n{}", new.join("\n"), journal())
    })
}

fn drift(path: &str, skip: usize) -> Result<Value> {
    wait_for(&format!("drift of {path}"), skip, |record| record["kind"] == "drift" && record["path"] == path)
}

fn has_soft_reboots() -> Result<String> {
    ensure!(count()? == "0", "SoftRebootsCount is {}", count()?);
    Ok(run("systemctl", &["--version"])?.lines().next().unwrap_or_default().to_owned())
}

/// The daemon runs, and everything is as declared.
fn before_it() -> Result<String> {
    if let Err(error) = run("systemctl", &["start", "holdfast.service"]) {
        bail!("{error:#}\n{}", journal());
    }
    let status = status::wait_for("compliant", LIMIT)?;
    Ok(format!("{} things by {}", status["things"], status["backend"]))
}

/// The kernel is the same, systemd counts its soft reboots, and the early service wrote this.
fn another_userspace(boot: &str, number: u32, enrolled: &str) -> Result<String> {
    ensure!(boot_id()? == boot, "the kernel was started again");
    ensure!(count()? == number.to_string(), "SoftRebootsCount is {}", count()?);
    ensure!(
        run("findmnt", &["-n", "-o", "FSTYPE", "/"])?.trim() == "overlay",
        "the root directory is the old one"
    );
    let printed = run("journalctl", &["-u", "holdfast-enrol.service", "--no-pager", "-o", "cat"])?;
    ensure!(printed.contains(enrolled), "{printed}\n{}", journal());
    Ok(printed.lines().find(|line| line.contains(enrolled)).unwrap_or_default().to_owned())
}

/// The new daemon takes over the programs of the earlier one. Only these gaps opened, and all of them are closed.
fn adopted(before: usize, gaps: &[&str]) -> Result<String> {
    let start = wait_for("the daemon's start", before, |record| record["kind"] == "start")?;
    ensure!(start["detail"]["adopted"] == true, "{start}");
    status::wait_until("no gap", LIMIT, |status| status["gaps"].as_array().is_some_and(Vec::is_empty))?;
    let records = records()?;
    let opened: Vec<&str> = records
        .iter()
        .skip(before)
        .filter(|record| record["kind"] == "gap" && record["detail"]["until"].is_null())
        .filter_map(|record| record["detail"]["reason"].as_str())
        .collect();
    ensure!(opened == gaps, "{opened:?}");
    Ok(format!("{} {opened:?}", start["detail"]["backend"]))
}

/// The new root directory came with another content of one file, one unit edited a file while it stopped, and another one before
/// the daemon started.
fn edits_around_it(before: usize) -> Result<String> {
    let record = drift(SWAPPED, before)?;
    ensure!(record["actor"].is_null(), "nobody changed it in this root directory: {record}");
    let mut names = Vec::new();
    for (path, unit) in [(KEPT, "late-writer.service"), (EARLY, "early-writer.service")] {
        let record = drift(path, before)?;
        ensure!(record["actor"]["unit"] == unit, "{record}");
        names.push(format!("{path} by {unit}"));
    }
    Ok(names.join(", "))
}

/// An edit of a new inode is drift, with its actor.
fn new_inodes() -> Result<String> {
    let before = records()?.len();
    run(
        "systemd-run",
        &["--quiet", "--wait", "--unit=tuner", "/bin/sh", "-c", &format!("echo x >> {EDITED}")],
    )?;
    let record = drift(EDITED, before)?;
    ensure!(record["actor"]["unit"] == "tuner.service", "{record}");
    Ok(record["operation"].to_string())
}

/// The kernel programs have no entry of an inode of the old root directory: a change there has no record. That of a new one has.
fn old_inodes() -> Result<String> {
    let count = || -> Result<f64> {
        let page = page("/metrics")?;
        let lines = page
            .lines()
            .filter(|line| line.starts_with("holdfast_events_total{") && line.contains("\"set-attributes\""));
        Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    };
    // The mode stays: of another one, the daemon could read it before a second change brings the declared one back.
    let touch = |path: &str| fs::set_permissions(path, fs::Permissions::from_mode(0o644));
    let first = count()?;
    for path in [EDITED, SPARED] {
        touch(&format!("{OLD_ROOT}{path}"))?;
    }
    // The record of this change comes after those.
    let before = records()?.len();
    touch(SPARED)?;
    wait_for("the touch", before, |record| record["kind"] == "touched" && record["path"] == SPARED)?;
    let own = count()? - first;
    ensure!((own - 1.0).abs() < 0.5, "{own} changes");
    Ok("one change, of the new inode".to_owned())
}

/// Rules in force before the soft reboot did not stop it, and are in force after it.
fn deny_rule() -> Result<String> {
    let before = records()?.len();
    ensure!(shell(&format!("echo x >> {DENIED}")).is_err(), "the change was accepted");
    let record = wait_for("the refusal", before, |record| record["kind"] == "denied")?;
    ensure!(record["path"] == DENIED, "{record}");
    Ok(record["operation"].to_string())
}

/// No other path drifted.
fn nothing_else(before: usize) -> Result<String> {
    let mut drifted = status::drifted()?;
    drifted.sort();
    let mut wanted = [EARLY, EDITED, KEPT, SWAPPED];
    wanted.sort_unstable();
    ensure!(drifted == wanted, "{drifted:?}");
    let others: Vec<String> = records()?
        .into_iter()
        .skip(before)
        .filter(|record| record["kind"] == "drift" && !wanted.iter().any(|path| record["path"] == *path))
        .map(|record| record.to_string())
        .collect();
    ensure!(others.is_empty(), "{others:?}");
    Ok(format!("{drifted:?}"))
}

/// The declared state comes back, and the log is one chain over both userspaces.
fn recovered() -> Result<String> {
    holdfast(0, &["repair", "--all", "--yes"])?;
    status::wait_for("compliant", LIMIT)?;
    holdfast(0, &["log", "verify"]).map(|(printed, _)| printed.trim().to_owned())
}

/// A change without an entry in the policy needs a reboot. A link makes systemd take a soft reboot for it.
fn reboot_by_apply() -> Result<()> {
    // This userspace can write neither `/` nor `/root`.
    const NEW: &str = "/run/new.yaml";
    fs::create_dir_all("/run/systemd/system")?;
    std::os::unix::fs::symlink(
        "/usr/lib/systemd/system/soft-reboot.target",
        "/run/systemd/system/reboot.target",
    )?;
    run("systemctl", &["daemon-reload"])?;
    fs::write(NEW, manifest("two"))?;
    let (printed, _) = holdfast(0, &["apply", NEW, "--current", CONFIGS, "-o", "json", "--yes", "--reboot"])?;
    result(&serde_json::from_str(&printed)?, "rebooting")
}

/// The soft reboot was the one that the apply waited for.
fn apply_done() -> Result<String> {
    let history = wait::until("the end of the apply", LIMIT, || {
        let history = history()?;
        Ok((history["applies"][0]["result"] == "done").then_some(history))
    })
    .with_context(|| history().map(|history| format!("{history:#}\n{}", journal())).unwrap_or_default())?;
    ensure!(history["standing"]["state"] == "Done", "{history:#}");
    ensure!(fs::read_to_string(EDITED)?.trim() == "two", "{EDITED} is the old one");
    Ok(history["standing"]["state"].to_string())
}

fn compliant(before: usize) -> Result<String> {
    status::wait_for("compliant", LIMIT)?;
    let drift = records()?.into_iter().skip(before).find(|record| record["kind"] == "drift");
    ensure!(drift.is_none(), "{drift:?}");
    holdfast(0, &["log", "verify"]).map(|(printed, _)| printed.trim().to_owned())
}
