//! The plan of a config that waits: the node, its report and `kubectl holdfast plan` say the same.
//!
//! In: a node in the mode `manage` whose desired config is not applied yet. Out: checks while drift blocks the config, and while the
//! node is drained.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::node::{DRAIN, LIMIT, RESTART, annotate, annotation, apply_object, is_done, seen, until};
use crate::guest::kube::{self, NODE};
use crate::guest::wait;
use crate::scenarios::kube_people;

/// The exit code of `kubectl holdfast plan` while something is planned.
const PLANNED: i32 = 1;
/// A file that the config does not change.
const OTHER: &str = "/etc/sysctl.d/90-baseline.conf";

/// Whom `kubectl holdfast plan` can ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// The node, through its pod.
    Node,
    /// The report alone: no kubelet leads a connection to the reporter.
    Report,
}

/// `kubectl holdfast plan` shows the plan that the report has: these steps for this config. Gives what it prints.
pub(super) fn is_shown(config: &str, actions: &[&str], drains: bool, asked: Asked) -> Result<String> {
    if asked == Asked::Node {
        is_shown_by_node(config)?;
    }
    let printed = kube_people::holdfast(PLANNED, &["plan", NODE, "--report", "-o", "json"])?;
    let answer: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
    let report = kube::get("driftreport", NODE)?;
    let plan = &report["status"]["plan"];
    ensure!(answer["plan"] == *plan, "the command has {answer}, and the report {plan}");
    let wanted = json!({ "config": config, "actions": actions, "drain": drains, "reboot": false });
    for (name, value) in wanted.as_object().into_iter().flatten() {
        ensure!(plan[name] == *value, "{name} is not {value}: {plan}");
    }
    let printed = kube_people::holdfast(PLANNED, &["plan", NODE, "--report"])?;
    let steps = actions.iter().enumerate().map(|(number, action)| format!("{:>3}. {action}", number + 1));
    let heading = format!("node {NODE} gets the MachineConfig {config}");
    let end = if drains { "workloads leave the node, no reboot" } else { "no drain, no reboot" };
    let lines: Vec<String> = [heading].into_iter().chain(steps).chain([end.to_owned()]).collect();
    ensure!(printed.lines().eq(lines.iter()), "no {lines:?} in {printed}");
    Ok(printed)
}

/// The node itself shows the plan, with its changes, and that the apply has not begun.
fn is_shown_by_node(config: &str) -> Result<()> {
    let printed = kube_people::holdfast(PLANNED, &["plan", NODE, "-o", "json"])?;
    let answer: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
    let planned = &answer["planned"];
    let is_whole = planned["config"] == config
        && planned["plan"]["changes"].as_array().is_some_and(|all| !all.is_empty())
        && answer["progress"]["current"].is_string();
    ensure!(is_whole, "the node's own plan is not in {answer}");
    let plan = &kube::get("driftreport", NODE)?["status"]["plan"];
    ensure!(answer["plan"] == *plan, "the node has {answer}, and the report {plan}");
    let printed = kube_people::holdfast(PLANNED, &["plan", NODE])?;
    let is_shown =
        ["it has not begun", "because of ", "DECLARED BY"].iter().all(|text| printed.contains(text));
    ensure!(is_shown, "{printed}");
    Ok(())
}

/// Drift of another file blocks the config: its plan is shown, no drain is asked for, and nothing is written.
pub(super) fn while_drift_blocks(manifest: &str, asked: Asked) -> Result<String> {
    let chrony = fs::read_to_string("/etc/chrony.conf")?;
    let before = fs::read_to_string(OTHER)?;
    fs::write(OTHER, format!("{before}# drift\n"))?;
    until("state", "Degraded")?;
    apply_object(manifest)?;
    annotate("desiredConfig", DRAIN.name)?;
    let text = format!(
        "unexpected on-disk state validating against {}: content mismatch for file \"{OTHER}\"",
        RESTART.name
    );
    until("reason", &text)?;
    let published = wait::until("the plan in the report", LIMIT, || {
        let report = kube::get("driftreport", NODE)?;
        Ok((report["status"]["plan"]["config"] == DRAIN.name).then_some(()))
    });
    published.with_context(seen)?;
    let shown = is_shown(DRAIN.name, &["drain", "write"], true, asked);
    let drain = annotation("desiredDrain")?;
    let is_untouched = fs::read_to_string("/etc/chrony.conf")? == chrony;
    fs::write(OTHER, before)?;
    ensure!(drain.is_none(), "a drifted node is drained: {drain:?}");
    ensure!(is_untouched, "a drifted node is written to");
    shown
}

/// Without a config that waits, nothing is planned.
pub(super) fn nothing(config: &str, asked: Asked) -> Result<String> {
    is_done(config)?;
    let printed = match asked {
        Asked::Node => kube_people::holdfast(0, &["plan", NODE])?,
        Asked::Report => kube_people::holdfast(0, &["plan", NODE, "--report"])?,
    };
    ensure!(printed.contains("applies nothing at present"), "{printed}");
    Ok(printed)
}
