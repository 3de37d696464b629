//! The managed node of the scenario: its configs, its annotations, and what people would look at.
//!
//! In: a node that has joined the control plane. Out: objects and annotations that a controller writes, and waits for those of the
//! reporter.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::guest::kube::{self, NODE};
use crate::guest::{reporter, run, wait};

/// How long one step of the handshake may take in an emulated guest.
pub(super) const LIMIT: Duration = Duration::from_secs(100);
/// The prefix of the annotations.
pub(super) const MCO: &str = "machineconfiguration.openshift.io";
/// A change of the example config: the name of the config, and what it replaces by what.
pub(super) struct Change {
    pub(super) name: &'static str,
    pub(super) replaces: (&'static str, &'static str),
}

/// The configs, each with the changes of those before it.
pub(super) const RESTART: Change = Change {
    name: "rendered-restart",
    replaces: ("X11Forwarding%20no%0A", "X11Forwarding%20no%0AMaxAuthTries%203%0A"),
};
pub(super) const DRAIN: Change =
    Change { name: "rendered-drain", replaces: ("time2.example.com", "time3.example.com") };
pub(super) const ROLLOUT: Change =
    Change { name: "rendered-rollout", replaces: ("MaxAuthTries%203%0A", "MaxAuthTries%204%0A") };
pub(super) const REBOOT: Change =
    Change { name: "rendered-reboot", replaces: ("kptr_restrict%20%3D%202", "kptr_restrict%20%3D%201") };

/// A manifest with another name and a change.
pub(super) fn configured(manifest: &str, change: &Change) -> String {
    let (before, after) = change.replaces;
    let name = manifest.lines().find_map(|line| line.strip_prefix("  name: ")).unwrap_or_default();
    manifest
        .replace(&format!("  name: {name}\n"), &format!("  name: {}\n", change.name))
        .replace(before, after)
}

pub(super) fn apply_object(manifest: &str) -> Result<()> {
    fs::write("/run/object.yaml", manifest)?;
    kube::kubectl(&["apply", "--server-side", "-f", "/run/object.yaml"]).map(drop)
}

/// Writes an annotation as a controller does.
pub(super) fn annotate(name: &str, value: &str) -> Result<()> {
    kube::kubectl(&["annotate", "--overwrite", "node", NODE, &format!("{MCO}/{name}={value}")]).map(drop)
}

/// An annotation of the Node.
pub(super) fn annotation(name: &str) -> Result<Option<String>> {
    let node = kube::get("node", NODE)?;
    Ok(node["metadata"]["annotations"][format!("{MCO}/{name}")].as_str().map(str::to_owned))
}

pub(super) fn until(name: &str, wanted: &str) -> Result<()> {
    wait::until(&format!("the annotation {name} to be {wanted}"), LIMIT, || {
        Ok((annotation(name)?.as_deref() == Some(wanted)).then_some(()))
    })
    .with_context(seen)
}

/// What people would look at.
pub(super) fn seen() -> String {
    let node = kube::get("node", NODE).unwrap_or_default();
    let unit = run("journalctl", &["-u", "holdfast-apply.service", "-n", "60", "--no-pager", "-o", "cat"]);
    let pods = format!("{}\n{}", kube::pods(), reporter::printed());
    format!("{}\n{}\n{pods}", node["metadata"]["annotations"], unit.unwrap_or_default())
}

/// Waits until the report of the node is as wanted.
pub(super) fn reported(what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    kube::report(what, LIMIT, is_so, seen)
}

pub(super) fn is_done(config: &str) -> Result<String> {
    until("currentConfig", config)?;
    until("state", "Done")?;
    let report = reported("the report to say in sync", |status| status["state"] == "InSync")?;
    ensure!(report["status"]["plan"].is_null(), "the plan stays: {report}");
    Ok(config.to_owned())
}
