//! The shortest path through everything: one file, one edit, one record.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::guest::agent::RunningDaemon;
use crate::guest::{Context, files, page, shell, status};

const CONFIG: &str = machine_config!(
    "99-worker-thread",
    r#"      - path: /etc/thread/managed.conf
        mode: 420
        contents: {source: "data:,content%0A"}
"#
);

/// It closes a directory, so that everything that should be in it is known.
const POLICY: &str = r"apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: thread}
spec:
  rules:
  - {path: /etc/thread.d/, closed: true, action: observe}
";

const FILE: &str = "/etc/thread/managed.conf";

/// Edits, restores, replaces and touches one managed file.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    shell(&format!("mkdir -p /etc/thread /etc/thread.d && echo content > {FILE} && chmod 644 {FILE}"))?;
    fs::write("/run/thread.yaml", CONFIG)?;
    fs::write("/run/thread-policy.yaml", POLICY)?;
    let arguments = ["--standalone", "--config", "/run/thread.yaml", "--policy", "/run/thread-policy.yaml"];
    let mut agent = RunningDaemon::start(&arguments)?;
    agent.wait_for("the first gap to close", 0, |record| record["detail"]["until"].is_string())?;

    context.check("edit", edit(&mut agent));
    context.check("restore", restore(&mut agent));
    context.check("replace_with_same", replace(&mut agent));
    context.check("chmod", change(&mut agent, "chmod 600", "mode", "set-attributes"));
    shell(&format!("chmod 644 {FILE}"))?;
    context.check("unlink", change(&mut agent, "rm", "missing", "unlink"));
    shell(&format!("echo content > {FILE} && chmod 644 {FILE}"))?;
    status::wait_for("compliant", Duration::from_mins(1))?;
    context.check("all_actors", all_actors(&mut agent));
    context.check("refused_attempt", refused_attempt(&mut agent));
    context.check("unknown_executable", unknown_executable(&mut agent));
    context.check("unknown_library", unknown_library(&mut agent));
    context.check("metrics", edit(&mut agent).and_then(|_| metrics()));
    agent.stop()?;
    Ok(())
}

fn find(agent: &mut RunningDaemon, skip: usize, kind: &str) -> Result<Value> {
    agent.wait_for(kind, skip, |record| record["kind"] == kind && record["path"] == FILE)
}

fn edit(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    shell(&format!("echo drift >> {FILE}"))?;
    let record = find(agent, before, "drift")?;
    ensure!(record["differences"][0]["kind"] == "content", "{record}");
    ensure!(record["actor"]["argv"][0] == "/bin/sh", "{record}");
    ensure!(record["source"] == "99-worker-thread", "{record}");
    Ok(record.to_string())
}

fn restore(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    shell(&format!("echo content > {FILE}"))?;
    Ok(find(agent, before, "recovered")?.to_string())
}

fn replace(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    shell(&format!("echo content > {FILE}.new && chmod 644 {FILE}.new && mv {FILE}.new {FILE}"))?;
    let record = find(agent, before, "touched")?;
    let drifted = agent.records()?.into_iter().skip(before).any(|record| record["kind"] == "drift");
    ensure!(!drifted, "an atomic replacement by the same content was called drift");
    Ok(record.to_string())
}

fn change(agent: &mut RunningDaemon, command: &str, kind: &str, operation: &str) -> Result<String> {
    let before = agent.records()?.len();
    shell(&format!("{command} {FILE}"))?;
    let record = find(agent, before, "drift")?;
    ensure!(record["differences"][0]["kind"] == kind, "{record}");
    ensure!(record["operation"] == operation, "{record}");
    ensure!(record["actor"].is_object(), "{record}");
    Ok(record.to_string())
}

/// One process writes and keeps the file open, another appends: both are actors.
fn all_actors(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    let mut held = fs::OpenOptions::new().append(true).open(FILE)?;
    held.write_all(b"one\n")?;
    find(agent, before, "drift")?;
    shell(&format!("echo two >> {FILE}"))?;
    let ours = u64::from(std::process::id());
    let record = agent.wait_for("drift by both", before, |record| {
        let actors = record["actors"].as_array();
        record["kind"] == "drift" && actors.is_some_and(|actors| actors.len() == 2)
    })?;
    let pids: Vec<_> =
        record["actors"].as_array().into_iter().flatten().map(|actor| actor["pid"].clone()).collect();
    ensure!(pids.contains(&ours.into()) && record["actor"].is_object(), "{record}");
    drop(held);
    shell(&format!("echo content > {FILE}"))?;
    status::wait_for("compliant", Duration::from_mins(1))?;
    Ok(String::new())
}

/// A user's failed attempt beside root's edit does not make the user an actor, although the hooks run before the kernel
/// checks ownership.
fn refused_attempt(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    agent.signal(Signal::SIGSTOP)?;
    let done = fs::write(FILE, "drift\n").map_err(Into::into).and_then(|()| {
        let tried = Command::new("/bin/busybox").args(["chmod", "666", FILE]).uid(1000).gid(1000).output()?;
        ensure!(!tried.status.success(), "it was not refused");
        Ok(())
    });
    agent.signal(Signal::SIGCONT)?;
    done?;
    let record = find(agent, before, "drift")?;
    ensure!(record["actor"]["pid"] == std::process::id() && record["actors"].is_null(), "{record}");
    shell(&format!("echo content > {FILE}"))?;
    status::wait_for("compliant", Duration::from_mins(1))?;
    Ok(String::new())
}

/// A program and a script that nothing declares are executed: each has a record that names who did it.
fn unknown_executable(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    shell(
        "cd /etc/thread.d && cp /bin/busybox busybox && printf '#!/bin/sh\\n:\\n' > script && chmod 755 busybox script && \
         ./busybox true && ./script && rm busybox script",
    )?;
    let mut records = Vec::new();
    for path in ["/etc/thread.d/busybox", "/etc/thread.d/script"] {
        let record =
            agent.wait_for(path, before, |record| record["kind"] == "exec" && record["path"] == path)?;
        ensure!(record["detail"]["reason"] == "unknown-executable", "{record}");
        ensure!(record["operation"] == "exec" && record["actor"]["argv"][0] == "/bin/sh", "{record}");
        records.push(record.to_string());
    }
    // The kernel maps the program in the execution, before the record of the script.
    let all = agent.records()?;
    let executions = all.iter().skip(before).filter(|record| record["kind"] == "exec").count();
    ensure!(executions == records.len(), "{executions} executions");
    status::wait_for("compliant", Duration::from_mins(1))?;
    Ok(records.join("\n"))
}

/// A process maps a file that nothing declares to run code of it: the record names the process. A loader does the same with the program
/// that it is given (`ld.so program`). A file that the config declares has no such record, and neither has a mapping without code.
fn unknown_library(agent: &mut RunningDaemon) -> Result<String> {
    const LIBRARY: &str = "/etc/thread.d/unknown.so";
    let before = agent.records()?.len();
    files::map_as_library(FILE)?;
    shell(&format!("cp /bin/busybox {LIBRARY}"))?;
    files::map_as_library(LIBRARY)?;
    let record = agent.wait_for("the load", before, |record| record["kind"] == "exec")?;
    ensure!(record["operation"] == "load" && record["path"] == LIBRARY, "{record}");
    ensure!(record["detail"]["reason"] == "unknown-executable", "{record}");
    ensure!(record["actor"]["pid"] == std::process::id(), "{record}");
    shell(&format!("rm {LIBRARY}"))?;
    status::wait_for("compliant", Duration::from_mins(1))?;
    Ok(record.to_string())
}

fn metrics() -> Result<String> {
    let page = page::metrics()?;
    let line = page.lines().find(|line| line.starts_with("mcd_config_drift ")).context("no metric")?;
    ensure!(!line.ends_with(" 0"), "{line}");
    Ok(line.to_owned())
}
