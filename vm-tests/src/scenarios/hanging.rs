//! A file system whose server does not answer, while the daemon observes it: the daemon still detects everything else.
//!
//! In: a bare guest. Out: a check for each state in which this must hold.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::mount::umount;
use serde_json::{Value, json};

use super::simple::{CONTENT, is_drift};
use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::fuse::Foreign;
use crate::guest::{Context, page, shell, status, wait};

const CONFIG: &str = "/run/hanging.json";
const PLACE: &str = "/srv/hanging";
const HANGING: &str = "/srv/hanging/file";
const OVER: &str = "/etc/hanging/over";
const COVERED: &str = "/etc/hanging/over/file";
const LOCAL: &str = "/etc/hanging/local";
const REASON: &str = "file-system-hangs";
const LIMIT: Duration = Duration::from_mins(1);

/// The scenario.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    shell(&format!("mkdir -p {OVER}"))?;
    for path in [LOCAL, COVERED] {
        fs::write(path, CONTENT)?;
        shell(&format!("chmod 644 {path}"))?;
    }
    let files: Vec<Value> = [LOCAL, COVERED, HANGING]
        .iter()
        .map(|file| json!({ "path": file, "mode": 0o644, "contents": { "source": "data:,declared%0A" } }))
        .collect();
    let machine_config = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {
            "name": "99-worker-hanging",
            "labels": { "machineconfiguration.openshift.io/role": "worker" },
        },
        "spec": { "config": { "ignition": { "version": "3.4.0" }, "storage": { "files": files } } },
    });
    fs::write(CONFIG, machine_config.to_string())?;
    let foreign = Foreign::mount(Path::new(PLACE), CONTENT)?;
    let mut agent = agent()?;
    let result = hangs(&mut agent, &foreign);
    context.check("file_system_hangs", result);
    context.check("file_system_hangs_and_the_daemon_stops", stops(agent));
    let mut agent = self::agent()?;
    context.check("daemon_starts_while_it_hangs", starts(&mut agent));
    context.check("check_while_it_hangs", check());
    context.check("file_system_answers_again", answers(&mut agent, &foreign));
    context.check("change_from_this_node", from_here(&mut agent, &foreign));
    context.check("hanging_mount_over_a_directory", covered(&mut agent));
    agent.stop()?;
    foreign.end();
    umount(PLACE)?;
    Ok(())
}

fn agent() -> Result<RunningDaemon> {
    RunningDaemon::start(&["--standalone", "--config", CONFIG, "--canary-every", "1", "--verify-every", "3"])
}

/// Changes a file on the node's own disk and restores it: drift with its actor.
fn sees(agent: &mut RunningDaemon) -> Result<()> {
    let skip = agent.records()?.len();
    changed(agent, LOCAL)?;
    fs::write(LOCAL, CONTENT)?;
    agent.wait_for("recovery", skip, |record| record["kind"] == "recovered" && record["path"] == LOCAL)?;
    Ok(())
}

/// Changes a file by a shell: drift with that shell as its actor.
fn changed(agent: &mut RunningDaemon, path: &str) -> Result<()> {
    let skip = agent.records()?.len();
    let mut child = Command::new("/bin/sh").args(["-c", "echo drift >> \"$0\"", path]).spawn()?;
    let pid = child.id();
    ensure!(child.wait()?.success(), "the change failed");
    let record = agent.wait_for("drift", skip, |record| is_drift(record, Path::new(path)))?;
    ensure!(record["actor"]["pid"] == pid, "{pid} did it, but: {record}");
    Ok(())
}

/// The daemon reports changes by this kernel on such a file system, although another process observes it.
fn from_here(agent: &mut RunningDaemon, foreign: &Foreign) -> Result<String> {
    let skip = agent.records()?.len();
    changed(agent, HANGING)?;
    foreign.set(CONTENT);
    agent.wait_for("recovery", skip, |record| record["kind"] == "recovered" && record["path"] == HANGING)?;
    Ok("drift with its actor".to_owned())
}

fn is_gap(record: &Value, path: &str, is_over: bool) -> bool {
    record["detail"]["reason"] == REASON
        && record["path"] == path
        && record["detail"]["until"].is_string() == is_over
}

/// Waits for the gap of one path. No other thing may have one.
fn gap_of(agent: &mut RunningDaemon, skip: usize, path: &str) -> Result<()> {
    agent.wait_for("the gap", skip, |record| is_gap(record, path, false))?;
    let records = agent.records()?;
    let mut others = records.iter().skip(skip).filter(|record| record["detail"]["reason"] == REASON);
    ensure!(others.all(|record| record["path"] == path), "a gap of another thing: {records:?}");
    let gaps = wait::until("the gap in the status", LIMIT, || {
        let gaps = status::read()?["gaps"].clone();
        let is_told = gaps.as_array().into_iter().flatten().any(|gap| gap["path"] == path);
        Ok(is_told.then_some(gaps))
    })?;
    ensure!(status::verdict() == "unknown", "{gaps}");
    Ok(())
}

fn hangs(agent: &mut RunningDaemon, foreign: &Foreign) -> Result<String> {
    agent.wait_for("its verification", 0, |record| record["detail"]["reason"] == "foreign-file-system")?;
    status::wait_for("unknown", LIMIT)?;
    ensure!(!status::drifted()?.iter().any(|path| path == HANGING), "it was not read");
    let skip = agent.records()?.len();
    foreign.hang();
    sees(agent)?;
    gap_of(agent, skip, HANGING)?;
    sees(agent)?;
    Ok("the gap names it alone, and an edit elsewhere is seen with its actor".to_owned())
}

/// With a process that cannot be killed.
fn stops(agent: RunningDaemon) -> Result<String> {
    let status = agent.stop()?;
    ensure!(status.success(), "{status}");
    Ok(status.to_string())
}

fn starts(agent: &mut RunningDaemon) -> Result<String> {
    let starts = |record: &Value| record["kind"] == "start";
    let skip = agent.records()?.iter().rposition(starts).context("no start record")?;
    sees(agent)?;
    gap_of(agent, skip, HANGING)?;
    wait::until("the daemon to be ready", LIMIT, || Ok(page::is_ready().then_some(())))?;
    Ok("ready, and seeing".to_owned())
}

/// A comparison without the daemon ends, too.
fn check() -> Result<String> {
    let output = Command::new(HOLDFAST).args(["check", "--config", CONFIG]).output()?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.code() == Some(3), "{}: {printed}", output.status);
    ensure!(printed.contains(HANGING) && printed.contains("does not answer"), "{printed}");
    Ok(printed.replace('\n', "; "))
}

fn answers(agent: &mut RunningDaemon, foreign: &Foreign) -> Result<String> {
    let skip = agent.records()?.len();
    foreign.set("two");
    foreign.answer();
    agent.wait_for("the gap to close", skip, |record| is_gap(record, HANGING, true))?;
    agent.wait_for("what changed meanwhile", skip, |record| is_drift(record, Path::new(HANGING)))?;
    foreign.set(CONTENT);
    agent.wait_for("recovery", skip, |record| record["kind"] == "recovered" && record["path"] == HANGING)?;
    Ok("the gap closed, and what changed meanwhile was found".to_owned())
}

fn covered(agent: &mut RunningDaemon) -> Result<String> {
    let skip = agent.records()?.len();
    let over = PathBuf::from(OVER);
    let foreign = Foreign::mount_hanging(&over)?;
    gap_of(agent, skip, COVERED)?;
    sees(agent)?;
    let skip = agent.records()?.len();
    foreign.end();
    agent.wait_for("the gap to close", skip, |record| is_gap(record, COVERED, true))?;
    let record =
        agent.wait_for("that it cannot be read", skip, |record| is_drift(record, Path::new(COVERED)))?;
    ensure!(record["differences"][0]["kind"] == "unreadable", "{record}");
    umount(OVER)?;
    agent.wait_for("recovery", skip, |record| record["kind"] == "recovered" && record["path"] == COVERED)?;
    Ok("a gap of it alone while it hangs, unreadable without a server, and as declared below it".to_owned())
}
