//! Image mode as a story: an ostree host, a program of its image that a login replaces, and everything that Holdfast knows about it.
//!
//! In: a host that booted an ostree commit, with the daemon as its service. Out: notes that `cargo xtask demo --image` shows to a person,
//! and a check for each step.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::demo::{attributed, step};
use crate::guest::ostree::{IMAGE, LAYERS};
use crate::guest::service::{Node, as_alice};
use crate::guest::{Context, run, wait};

/// The program that alice replaces.
const FILE: &str = "/usr/bin/nproc";
/// What she does. `/usr` of an ostree host is read-only.
const EDIT: &str = "sudo sh -c 'mount -o remount,rw /usr && printf \"#!/bin/sh\\necho 64\\n\" > /usr/bin/nproc.new && \
                    chmod 755 /usr/bin/nproc.new && mv /usr/bin/nproc.new /usr/bin/nproc'";
/// The rules about the image.
const POLICY: &str = include_str!("../../../policies/drift/image.yaml");
const PLACE: &str = "/etc/holdfast/policies/image.yaml";

/// The scenario.
pub(super) fn ostree(context: &mut Context) -> Result<()> {
    let node = Node::start(&[])?;
    step(context, "index", indexed(&node))?;
    step(context, "policy", watched(&node))?;
    let before = node.records()?.len();
    step(context, "edit", edited())?;
    let record = node.wait_for("the drift record", before, |record| is(record, "drift"))?;
    step(context, "layer", blamed(&node, &record))?;
    step(context, "login_behind_sudo", attributed(&record, "/mv"))?;
    step(context, "execution", executed(&node, before))?;
    step(context, "explain", explained(&node))?;
    step(context, "recovery", recovered(&node, before))
}

fn is(record: &Value, kind: &str) -> bool {
    record["kind"] == kind && record["path"] == FILE
}

fn indexed(node: &Node) -> Result<String> {
    let status = run("ostree", &["admin", "status"])?;
    let printed = node.holdfast(0, &["image", "index", "--ostree"])?;
    Ok(format!(
        "## A host that booted an image\n\
         The host runs Debian from an ostree commit, which was made from a container image. Holdfast runs as a systemd service.\n\
         $ ostree admin status\n{}\n\
         Holdfast reads from the host's own repository what the commit has at each path, and verifies each object.\n\
         $ holdfast image index --ostree\n{printed}",
        status.trim_end()
    ))
}

fn watched(node: &Node) -> Result<String> {
    let managed = |status: &Value| status["counters"]["managed"].as_u64().unwrap_or(0);
    let before = managed(&node.wait_for_verdict("compliant")?);
    fs::write(PLACE, POLICY)?;
    run("systemctl", &["reload", "holdfast.service"])?;
    let now = wait::until("the image's programs to be watched", std::time::Duration::from_mins(2), || {
        let status = node.status()?;
        Ok((managed(&status) > before && status["verdict"] == "compliant").then(|| managed(&status)))
    })
    .with_context(|| format!("status: {}", node.status().unwrap_or_default()))?;
    ensure!(now > before + 100, "{before} things before, {now} now");
    Ok(format!(
        "## A policy about the image\n\
         The shipped policy policies/drift/image.yaml expects at /usr/bin, /usr/sbin, /usr/lib/systemd and other directories what\n\
         the commit has there.\n\
         $ cp image.yaml {PLACE} && systemctl reload holdfast\n\
         Holdfast managed {before} things, and now {now}. All are compliant."
    ))
}

fn edited() -> Result<String> {
    as_alice(EDIT)?;
    Ok(format!(
        "## A login replaces a program of the image\n\
         alice logs in by ssh. As root she opens /usr and replaces a program, which no MachineConfig declares.\n\
         $ ssh alice@node {EDIT}"
    ))
}

fn blamed(node: &Node, record: &Value) -> Result<String> {
    let source = record["source"].as_str().unwrap_or_default();
    ensure!(source.starts_with("layer 1 of 2, sha256:") && source.contains(LAYERS[0][2]), "{record}");
    node.wait_for_verdict("drifted")?;
    let printed = node.holdfast(1, &["status"])?;
    ensure!(printed.contains(FILE), "{printed}");
    Ok(format!("## What drifted, and which layer put it there\n$ holdfast status\n{printed}"))
}

/// The replaced program is run: the log says by whom, and that it is not the image's.
fn executed(node: &Node, before: usize) -> Result<String> {
    let printed = as_alice("nproc")?;
    ensure!(printed.trim() == "64", "{printed}");
    let record = node.wait_for("the execution", before, |record| {
        is(record, "exec") && record["verdict"] == "drifted" && record["actor"]["login_user"] == "alice"
    })?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    ensure!(text(&record["source"]).starts_with("layer 1 of 2, "), "{record}");
    Ok(format!(
        "## What ran it\n\
         $ ssh alice@node nproc\n{}\n\
         The forensic log has each execution of a program that differs from the image.\n\
         when      {}\n\
         what      {FILE}, which is {}\n\
         from      {}\n\
         program   {}, {}\n\
         login     {} (uid {}), {}",
        printed.trim_end(),
        text(&record["time"]),
        text(&record["verdict"]),
        text(&record["source"]),
        text(&record["actor"]["exe"]),
        record["actor"]["argv"],
        text(&record["actor"]["login_user"]),
        record["actor"]["login_uid"],
        text(&record["actor"]["unit"]),
    ))
}

fn explained(node: &Node) -> Result<String> {
    let printed = node.holdfast(1, &["explain", FILE])?;
    for part in ["ostree commit", IMAGE, LAYERS[0][2], "sha256 of an ostree object", "content mismatch"] {
        ensure!(printed.contains(part), "no {part}: {printed}");
    }
    // The execution came later, and is no change.
    let last = printed.split("last change:").nth(1).unwrap_or_default();
    ensure!(last.contains("drift by rename-over"), "the last change is another one: {printed}");
    Ok(format!("## What should be there\n$ holdfast explain {FILE}\n{printed}"))
}

/// The commit's object is put back.
fn recovered(node: &Node, before: usize) -> Result<String> {
    let listed = run("ostree", &["ls", "-C", "os/v1", FILE])?;
    let checksum = listed.split_whitespace().find(|word| word.len() == 64).context("no checksum")?;
    let object = format!("/ostree/repo/objects/{}/{}.file", &checksum[..2], &checksum[2..]);
    let restore = format!("cp -a --remove-destination {object} {FILE}");
    crate::guest::shell(&format!("{restore} && mount -o remount,bind,ro /usr"))?;
    node.wait_for("the recovery record", before, |record| is(record, "recovered"))?;
    node.wait_for_verdict("compliant")?;
    let status = node.holdfast(0, &["status"])?;
    Ok(format!(
        "## The recovery\n\
         The commit's own object is put back. The verdict is compliant again.\n\
         $ {restore}\n\
         $ holdfast status\n{status}"
    ))
}
