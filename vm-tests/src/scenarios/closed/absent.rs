//! Paths where a drift policy expects nothing.

use super::results::{item_of, recovered};
use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::{shell, status};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The drift of a path after `before` records.
fn drift(agent: &mut RunningDaemon, before: usize, path: &str) -> Result<Value> {
    let record =
        agent.wait_for("drift", before, |record| record["kind"] == "drift" && record["path"] == path)?;
    ensure!(record["thing"] == "file" && record["source"] == path, "{record}");
    ensure!(record["differences"][0]["kind"] == "unexpected", "{record}");
    Ok(record)
}

/// An object of each type, made and renamed there, and one that was there before the daemon.
pub(super) fn single(agent: &mut RunningDaemon) -> Result<String> {
    let early = drift(agent, 0, "/etc/single.early")?;
    ensure!(early["actor"].is_null(), "{early}");
    shell("rm /etc/single.early")?;
    recovered(agent, "/etc/single.early")?;
    for (path, make) in [
        ("/etc/single", "echo x > /etc/single"),
        ("/etc/single", "mkdir /etc/single"),
        ("/etc/single", "ln -s /etc/passwd /etc/single"),
        ("/etc/single", "mkfifo /etc/single"),
        ("/etc/single", "touch /run/single && mv /run/single /etc/single"),
        ("/etc/missing/single", "mkdir /etc/missing && touch /etc/missing/single"),
    ] {
        let before = agent.records()?.len();
        shell(make)?;
        let record = drift(agent, before, path)?;
        ensure!(record["actor"]["argv"].is_array(), "nobody made it by `{make}`: {record}");
        if path == "/etc/single" {
            let explain = format!(
                "{HOLDFAST} explain {path} --config /run/closed.yaml --policy /run/policy.yaml 2>&1; echo \"ended with $?\""
            );
            let printed = shell(&explain)?;
            ensure!(printed.contains("must not exist by") && printed.contains("ended with 1"), "{printed}");
        }
        // A rename away ends the drift as a removal does.
        shell(&format!("mv {path} /run/away && rm -rf /run/away"))?;
        recovered(agent, path)?;
    }
    // The second content of the file has a record of its own.
    let before = agent.records()?.len();
    shell("touch /etc/single")?;
    drift(agent, before, "/etc/single")?;
    let before = agent.records()?.len();
    shell("echo /run/evil.so > /etc/single")?;
    let record = drift(agent, before, "/etc/single")?;
    shell("rm /etc/single")?;
    recovered(agent, "/etc/single")?;
    Ok(record["differences"][0].to_string())
}

pub(super) fn refused(agent: &mut RunningDaemon) -> Result<String> {
    let (path, before) = ("/etc/single.refused", agent.records()?.len());
    for command in ["touch X", "mkdir X", "ln -s /etc/passwd X", "touch /run/y && mv /run/y X"] {
        ensure!(shell(&command.replace('X', path)).is_err(), "`{command}` was not refused");
    }
    ensure!(fs::symlink_metadata(path).is_err(), "it was made");
    let record = agent.wait_for("the refusal", before, |record| record["kind"] == "denied")?;
    ensure!(record["path"] == path, "{record}");
    // Other names in the directory are free.
    shell("touch /etc/single.other && rm /etc/single.other")?;
    Ok(record["operation"].to_string())
}

pub(super) fn moved(agent: &mut RunningDaemon) -> Result<String> {
    let path = "/etc/single.moved";
    let before = agent.records()?.len();
    shell(&format!("echo content > {path}"))?;
    let record = agent.wait_for("the move", before, |record| {
        record["kind"] == "reverted" && record["path"] == path && record["detail"]["quarantined"].is_array()
    })?;
    ensure!(!Path::new(path).exists(), "{path} is still there");
    let item = item_of(path)?;
    ensure!(record["detail"]["quarantined"][0]["item"] == item["id"], "{record} {item}");
    ensure!(item["rule"] == path && item["actors"][0]["argv"].is_array(), "{item}");
    recovered(agent, path)?;
    Ok(item.to_string())
}

/// The rule is one with a forgotten `/` at its end.
pub(super) fn directory_stays(agent: &mut RunningDaemon) -> Result<String> {
    let path = "/etc/single.directory";
    let before = agent.records()?.len();
    shell(&format!("mkdir {path} && touch {path}/kept"))?;
    let record = agent.wait_for("the reason", before, |record| {
        record["kind"] == "reverted" && record["path"] == path && record["detail"]["error"].is_string()
    })?;
    let error = record["detail"]["error"].as_str().context("no error")?;
    ensure!(error.contains("closed: true") && Path::new(path).join("kept").exists(), "{record}");
    ensure!(item_of(path).is_err(), "the directory was moved");
    ensure!(status::read()?["degraded"] == true, "the node is not degraded");
    shell(&format!("rm -r {path}"))?;
    recovered(agent, path)?;
    Ok(error.to_owned())
}
