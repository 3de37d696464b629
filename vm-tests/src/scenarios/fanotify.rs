//! A kernel that loads no program: booted in lockdown for confidentiality, where no program may read kernel memory.
//!
//! In: a bare guest. Out: a check for each kind of change that fanotify reports, and a check that the daemon names its
//! backend everywhere.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::restarts;
use super::simple::{self, is_drift};
use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::disks::FileSystem;
use crate::guest::{Context, page, shell, status};

const MOUNT: &str = "/srv/fanotify";
const CONFIG: &str = "/run/fanotify.json";
const LIMIT: Duration = Duration::from_mins(1);

/// The scenario.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown")?;
    ensure!(lockdown.contains("[confidentiality]"), "lockdown is {lockdown}");
    FileSystem::Ext4.mount(Path::new(MOUNT))?;
    let files = simple::files(&Path::new(MOUNT).join("files"), 8, Path::new(CONFIG))?;
    let mut agent = start()?;
    status::wait_for("compliant", LIMIT)?;
    context.check("backend_is_named", names_backend(&agent));
    let changes = [
        ("write", "echo drift >> FILE", "content"),
        ("chmod", "chmod 600 FILE", "mode"),
        ("replace", "echo drift > FILE.new; chmod 644 FILE.new; mv FILE.new FILE", "content"),
        ("unlink", "rm FILE", "missing"),
        ("rename_away", "mv FILE FILE.away", "missing"),
        ("directory_away", "mv /srv/fanotify/files /srv/fanotify/away", "missing"),
    ];
    for (number, (name, command, kind)) in changes.into_iter().enumerate() {
        let file = &files[number];
        let found = changed(&mut agent, file, &command.replace("FILE", &file.display().to_string()), kind);
        context.check(name, found.and_then(|printed| restored(&mut agent, &files, file).map(|()| printed)));
    }
    let start_compliant = |_| {
        let agent = start()?;
        // The daemon finds changes before a file is watched without an actor.
        status::wait_for("compliant", LIMIT)?;
        Ok(agent)
    };
    let edit = |agent: &mut RunningDaemon, file: &Path| {
        changed(agent, file, &format!("echo drift >> {}", file.display()), "content").map(drop)
    };
    let (printed, agent) = restarts::three_times(agent, "fanotify", &files, start_compliant, edit)?;
    context.check("restarts", Ok(printed));
    context.check("found_at_the_next_start", stopped(agent, &files));
    Ok(())
}

fn start() -> Result<RunningDaemon> {
    RunningDaemon::start(&["--standalone", "--config", CONFIG, "--verify-every", "3600"])
}

/// The log, the metrics, the status and `doctor` name fanotify.
fn names_backend(agent: &RunningDaemon) -> Result<String> {
    let records = agent.records()?;
    let start = records.iter().find(|record| record["kind"] == "start").context("no start record")?;
    ensure!(start["detail"]["backend"] == "fanotify", "{start}");
    ensure!(status::read()?["backend"] == "fanotify", "{}", status::read()?);
    let page = page::metrics()?;
    let is_on = page.lines().any(|line| {
        line.starts_with("holdfast_backend{") && line.contains("fanotify") && line.ends_with(" 1")
    });
    ensure!(is_on, "the metric does not say so");
    let doctor = Command::new(HOLDFAST).arg("doctor").output()?;
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    ensure!(doctor.contains("fanotify"), "{doctor}");
    Ok(start["detail"].to_string())
}

/// A shell makes the change and stays until it is reported, because fanotify reports only process ids.
fn changed(agent: &mut RunningDaemon, file: &Path, command: &str, kind: &str) -> Result<String> {
    let skip = agent.records()?.len();
    let mut shell = Command::new("/bin/sh")
        .args(["-c", &format!("{{ {command}; }} && read line")])
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot start a shell")?;
    let pid = shell.id();
    let record = agent.wait_for("drift", skip, |record| is_drift(record, file));
    if let Some(mut input) = shell.stdin.take() {
        // The shell may have failed and ended.
        let _ = input.write_all(b"\n");
    }
    shell.wait()?;
    let record = record?;
    ensure!(record["differences"][0]["kind"] == kind, "{record}");
    if command.starts_with("echo drift >>") {
        // The shell itself made this change, and was still running. Of its children only the ids were left.
        ensure!(record["actor"]["pid"] == pid, "{pid} did it, but: {record}");
    }
    Ok(format!("{} by {}", record["operation"], record["actor"]["exe"]))
}

/// Restores everything; the drift ends.
fn restored(agent: &mut RunningDaemon, files: &[PathBuf], file: &Path) -> Result<()> {
    let skip = agent.records()?.len();
    shell(&format!(
        "if [ -d {MOUNT}/away ]; then mv {MOUNT}/away {MOUNT}/files; fi; rm -f {MOUNT}/files/*.away"
    ))?;
    for file in files {
        if fs::read_to_string(file).ok().as_deref() != Some(simple::CONTENT) {
            fs::write(file, simple::CONTENT)?;
        }
        shell(&format!("chmod 644 {}", file.display()))?;
    }
    agent.wait_for("recovery", skip, |record| {
        record["kind"] == "recovered" && record["path"].as_str() == file.to_str()
    })?;
    status::wait_for("compliant", LIMIT).map(drop)
}

/// The next daemon finds what happened while no daemon ran, without an actor.
fn stopped(agent: RunningDaemon, files: &[PathBuf]) -> Result<String> {
    let skip = agent.records()?.len();
    agent.stop()?;
    shell(&format!("echo drift >> {}", files[0].display()))?;
    let mut agent = start()?;
    let record = agent.wait_for("drift", skip, |record| is_drift(record, &files[0]))?;
    ensure!(record["actor"].is_null(), "{record}");
    agent.stop()?;
    Ok(String::new())
}
