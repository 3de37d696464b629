//! Applies on a node with systemd and the daemon as its service: the apply's own units, drop-ins, keys and links are no
//! drift.
//!
//! In: a node that matches the example config. Out: a check for the apply and for the rollback.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::guest::service::{CONFIG, Node};
use crate::guest::{Context, run, wait};

const OLD: &str = "/etc/holdfast/machine-configs/99-worker-baseline.yaml";
const NEW: &str = "/root/new.yaml";
const POLICY: &str = "/root/policy.yaml";

/// No change of these needs a reboot.
const DISRUPTION: &str = "apiVersion: holdfast.dev/v1alpha1\nkind: DisruptionPolicy\nmetadata: {name: all}\nspec:\n  \
    files: [{path: /etc, actions: [{type: None}]}]\n  \
    units: [{name: '*.service', actions: [{type: DaemonReload}]}]\n  \
    sshkey: {actions: [{type: None}]}\n";

/// The new config also declares a key, a file in a new directory, a drop-in, an enabled unit and a masked one.
fn config() -> String {
    let key =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAqDlmSXCDxZYgp7FmqGdVRTgEDgNPZQSADQBy8tGzRb second@example";
    let unit = "        - name: second.service\n          enabled: true\n          contents: |\n            \
                [Service]\n            ExecStart=/bin/true\n            [Install]\n            WantedBy=multi-user.target\n\
                \x20       - name: never.service\n          mask: true\n";
    let file = "        - path: /etc/second/deep/file\n          contents: {source: 'data:,second'}\n";
    let text = CONFIG
        .replace("core@example\n", &format!("core@example\n            - {key}\n"))
        .replace("    systemd:\n", &format!("{file}    systemd:\n"))
        .replace("Take down what", "Write down what")
        .replace("                Nice=10\n", "                Nice=5\n            - name: 20-second.conf\n              contents: |\n                [Service]\n                LimitCORE=0\n");
    format!("{text}{unit}")
}

/// The scenario.
pub(super) fn systemd(context: &mut Context) -> Result<()> {
    let node = Node::start(&[])?;
    node.wait_for_verdict("compliant")?;
    fs::write(NEW, config())?;
    fs::write(POLICY, DISRUPTION)?;
    context.check("there", quiet(&node, &["apply", NEW, "--current", OLD, "--policy", POLICY]));
    context.check(
        "enabled",
        enabled("second.service", "enabled").and_then(|_| enabled("never.service", "masked")),
    );
    context.check("back", quiet(&node, &["apply", OLD, "--policy", POLICY]));
    Ok(())
}

fn enabled(unit: &str, wanted: &str) -> Result<String> {
    let state = run("systemctl", &["show", "--value", "-p", "UnitFileState", unit])?;
    ensure!(state.trim() == wanted, "{unit} is {state}");
    Ok(String::new())
}

/// Applies. Then the daemon uses the new config, and its log has no other entry about it.
fn quiet(node: &Node, arguments: &[&str]) -> Result<String> {
    let before = node.records()?.len();
    node.holdfast(0, arguments)?;
    node.wait_for("the daemon to begin again", before, |record| record["kind"] == "start")?;
    wait::until("everything to be verified", Duration::from_mins(1), || {
        let status = node.status()?;
        let gaps = status["gaps"].as_array().is_none_or(|gaps| !gaps.is_empty());
        Ok((status["verdict"] == "compliant" && !gaps && status["node"]["state"] == "Done").then_some(()))
    })?;
    let records = node.records()?.split_off(before);
    // At a reload systemd itself creates directories of units.
    let is_news = |record: &&Value| {
        let kind = record["kind"].as_str().unwrap_or_default();
        matches!(kind, "drift" | "denied") || (kind == "touched" && record["actor"]["pid"] != 1)
    };
    let record = records.iter().find(is_news);
    ensure!(record.is_none(), "the apply's own writes must have no record: {record:?}");
    let kinds: Vec<&str> = records.iter().filter_map(|record| record["kind"].as_str()).collect();
    Ok(kinds.join(" "))
}
