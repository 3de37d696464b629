//! An ostree host that is upgraded and rolled back by configs, each time by a real reboot.
//!
//! Comes in: a host that booted version 1, and may reboot. Goes out: a check for each step. Four reboots: to version 2,
//! back by `holdfast rollback`, to version 2 that is never made (the shutdown does not finish it), and to version 2 whose
//! boot loader loses an argument, from where it goes back by itself with a fifth.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::apply::{history, holdfast, result};
use crate::guest::agent::Agent;
use crate::guest::ostree::{LOST, VERSIONS};
use crate::guest::{Context, run, wait};

/// How far the scenario is; kept in `/var`, which all deployments share.
const STAGE: &str = "/var/lib/holdfast-scenario";
const FILE: &str = "/etc/demo/file";
/// A drop-in that keeps the staged deployment from being finished when the host goes down.
const UNFINISHED: &str = "/run/systemd/system/ostree-finalize-staged.service.d/unfinished.conf";

/// A config of this image, these kernel arguments, and this content of a file.
fn manifest(image: &str, arguments: &[&str], content: &str) -> String {
    format!(
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\n\
         metadata: {{name: 99-os, labels: {{machineconfiguration.openshift.io/role: worker}}}}\n\
         spec:\n  osImageURL: {image}\n  kernelArguments: {}\n  config:\n    ignition: {{version: 3.4.0}}\n    \
         storage:\n      files:\n      \
         - {{path: {FILE}, mode: 420, overwrite: true, contents: {{source: 'data:,{content}'}}}}\n",
        serde_json::json!(arguments)
    )
}

/// The scenario, in all boots.
pub(super) fn upgrade(context: &mut Context) -> Result<()> {
    wait::until("systemd to finish starting", Duration::from_secs(90), || {
        let jobs = run("systemctl", &["list-jobs", "--no-legend"])?;
        let others = jobs.lines().filter(|line| !line.contains("holdfast-guest")).count();
        Ok((others == 0).then_some(()))
    })?;
    let stage = fs::read_to_string(STAGE).unwrap_or_default();
    match stage.as_str() {
        "" => {
            context.check("host", host(0));
            context.check("first", first());
            reboots(context, "upgraded", || apply(VERSIONS[1].branch, &["demo=blue sky=\"a b\""], "two"))
        }
        "upgraded" => {
            context.check("upgraded", upgraded());
            context.check("daemon", daemon());
            reboots(context, "rolled back", || {
                holdfast(0, &["rollback", "-o", "json"]).and_then(|said| report(&said))
            })
        }
        "rolled back" => {
            context.check("rolled back", rolled_back());
            reboots(context, "not finished", || {
                let folder = UNFINISHED.rsplit_once('/').map_or("/", |(folder, _)| folder);
                fs::create_dir_all(folder)?;
                fs::write(UNFINISHED, "[Service]\nExecStop=\nExecStop=/bin/true\n")?;
                run("systemctl", &["daemon-reload"])?;
                apply(VERSIONS[1].branch, &["demo=blue"], "two")
            })
        }
        "not finished" => {
            context.check("not finished", not_finished());
            reboots(context, "lost", || {
                apply(VERSIONS[1].branch, &["demo=blue", &format!("{LOST}=1")], "three")
            })
        }
        "lost" => {
            context.check("argument lost", argument_lost());
            reboots(context, "back", || {
                holdfast(3, &["apply", "--resume", "-o", "json"]).and_then(|said| report(&said))
            })
        }
        _ => {
            context.check("back by itself", back_by_itself());
            Ok(())
        }
    }
}

fn report((said, error): &(String, String)) -> Result<Value> {
    serde_json::from_str(said).with_context(|| format!("no JSON: {said}{error}"))
}

fn apply(image: &str, arguments: &[&str], content: &str) -> Result<Value> {
    fs::write("/root/new.yaml", manifest(image, arguments, content))?;
    holdfast(0, &["apply", "/root/new.yaml", "-o", "json"]).and_then(|said| report(&said))
}

/// Notes how far it is, does what ends in a reboot, and awaits the end of this boot.
fn reboots(context: &mut Context, next: &str, act: impl FnOnce() -> Result<Value>) -> Result<()> {
    fs::write(STAGE, next)?;
    if let Err(error) = act().and_then(|report| result(&report, "rebooting")) {
        let status = run("ostree", &["admin", "status"]).unwrap_or_default();
        let log = run("journalctl", &["-b", "-n", "40", "--no-pager", "-o", "cat"]).unwrap_or_default();
        bail!("{next}: {error:#}\n{status}\n{log}");
    }
    context.note(format!("reboots: {next}"));
    loop {
        // The end of this boot; the host gives up where it never comes.
        std::thread::park();
    }
}

/// What runs is this version: by ostree's own mark, by its files, and by its kernel.
fn host(number: usize) -> Result<String> {
    let version = &VERSIONS[number];
    ensure!(fs::exists("/run/ostree-booted")?, "no /run/ostree-booted");
    let file = fs::read_to_string("/usr/lib/os-version")?;
    ensure!(file.trim() == version.name, "the tree says {file:?}");
    let status = run("ostree", &["admin", "status"])?;
    let booted = status.lines().skip_while(|line| !line.starts_with('*')).nth(1).unwrap_or_default();
    ensure!(booted.contains(&format!("origin refspec: {}", version.branch)), "{status}");
    let failed = run("systemctl", &["list-units", "--failed", "--no-legend", "--plain"])?;
    ensure!(failed.trim().is_empty(), "failed units: {failed}");
    let release = run("uname", &["-r"])?;
    Ok(format!("{} with kernel {}", version.name, release.trim()))
}

fn has_argument(word: &str) -> Result<bool> {
    Ok(fs::read_to_string("/proc/cmdline")?.contains(word))
}

fn file() -> String {
    fs::read_to_string(FILE).unwrap_or_default()
}

/// The host is told what it is already: nothing is staged and nothing reboots.
fn first() -> Result<String> {
    fs::write("/root/new.yaml", manifest(VERSIONS[0].branch, &["rw"], "one"))?;
    let said = holdfast(0, &["apply", "/root/new.yaml", "--no-acts", "-o", "json"])?;
    result(&report(&said)?, "done")?;
    check(0, "")
}

/// `check` against the current config, and what it has to say.
fn check(code: i32, text: &str) -> Result<String> {
    let (said, error) = holdfast(code, &["check", "--config", "/var/lib/holdfast/apply/current"])?;
    ensure!(said.contains(text) && !said.contains("not checked"), "{said}{error}");
    Ok(said.trim().to_owned())
}

fn resumed(code: i32, wanted: &str) -> Result<Value> {
    let report = report(&holdfast(code, &["apply", "--resume", "-o", "json"])?)?;
    result(&report, wanted)?;
    Ok(report)
}

fn last(wanted: &str, state: &str) -> Result<String> {
    let history = history()?;
    let last = &history["applies"][0];
    ensure!(last["result"] == wanted && history["standing"]["state"] == state, "{history:#}");
    Ok(last["reason"].as_str().unwrap_or_default().to_owned())
}

fn upgraded() -> Result<String> {
    let runs = host(1)?;
    ensure!(has_argument("demo=blue sky=\"a b\"")?, "{}", fs::read_to_string("/proc/cmdline")?);
    ensure!(file() == "two", "the file says {:?}", file());
    resumed(0, "done")?;
    last("done", "Done")?;
    check(0, "")?;
    // Another image or argument than what is booted is drift, and told with what is booted instead.
    fs::write("/root/other.yaml", manifest(VERSIONS[0].branch, &["demo=red"], "two"))?;
    let (said, _) = holdfast(1, &["check", "--config", "/root/other.yaml"])?;
    for text in [
        "expected target osImageURL \"os/v1\", have \"os/v2\"",
        "missing expected kernel arguments: [demo=red]",
    ] {
        ensure!(said.contains(text), "{said}");
    }
    let (said, _) =
        holdfast(0, &["explain", "/proc/cmdline", "--config", "/var/lib/holdfast/apply/current"])?;
    ensure!(said.contains("demo=blue"), "{said}");
    Ok(runs)
}

/// The daemon finds the same, and tells it as drift of the things that a config declares.
fn daemon() -> Result<String> {
    let state = "/run/holdfast-scenario";
    let mut agent = Agent::start(&["--standalone", "--state", state, "--config", "/root/other.yaml"])?;
    let mut told = Vec::new();
    for (kind, path) in [("kernel-argument", "/proc/cmdline"), ("os-image", "/run/ostree-booted")] {
        let record = agent.wait_for(kind, 0, |record| {
            record["kind"] == "drift" && record["path"] == path && record["differences"][0]["kind"] == kind
        })?;
        told.push(record["differences"][0]["text"].as_str().unwrap_or_default().to_owned());
    }
    ensure!(agent.stop()?.success(), "it did not end well");
    Ok(told.join("; "))
}

fn rolled_back() -> Result<String> {
    let runs = host(0)?;
    ensure!(!has_argument("demo=blue")?, "the argument is still there");
    ensure!(file() == "one", "the file says {:?}", file());
    resumed(0, "done")?;
    last("done", "Done")?;
    check(0, "")?;
    Ok(runs)
}

/// Version 2 was staged and asked for, and version 1 came up again: never done, always told.
fn not_finished() -> Result<String> {
    host(0)?;
    let report = resumed(3, "rolled-back")?;
    let reason = report["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("expected target osImageURL \"os/v2\", have \"os/v1\""), "{report:#}");
    ensure!(file() == "one", "the file says {:?}", file());
    let status = run("ostree", &["admin", "status"])?;
    ensure!(
        !status.contains("(staged)") && !status.contains("(pending)"),
        "something waits for the next boot:\n{status}"
    );
    check(0, "")?;
    last("rolled-back", "Degraded")
}

/// Version 2 came up without one of its arguments.
fn argument_lost() -> Result<String> {
    let runs = host(1)?;
    ensure!(file() == "three", "the file says {:?}", file());
    ensure!(!has_argument(LOST)? && has_argument("demo=blue")?, "{}", fs::read_to_string("/proc/cmdline")?);
    Ok(runs)
}

/// From there it went back by itself, with another reboot.
fn back_by_itself() -> Result<String> {
    let runs = host(0)?;
    ensure!(!has_argument("demo=blue")?, "the argument is still there");
    ensure!(file() == "one", "the file says {:?}", file());
    let report = resumed(3, "rolled-back")?;
    ensure!(report["problems"].as_array().is_some_and(Vec::is_empty), "{report:#}");
    let reason = last("rolled-back", "Degraded")?;
    ensure!(reason.contains(&format!("missing expected kernel arguments: [{LOST}=1]")), "{reason}");
    check(0, "")?;
    Ok(format!("{runs}: {reason}"))
}
