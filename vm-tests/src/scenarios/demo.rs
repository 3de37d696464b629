//! The main use case as a story: a node, a login, an edit, and everything that Holdfast does about it.
//!
//! In: a node with the daemon as its service. Out: notes that `cargo xtask demo` shows to a person, and a check for
//! each step, so that the story is a test as well. In a note a line that starts with `## ` is a heading, one with `$ `
//! a command, and all others are its output.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::guest::service::{CONFIG, CONFIG_NAME, Node, as_alice};
use crate::guest::{Context, run};

/// The file that alice edits.
const FILE: &str = "/etc/chrony.conf";
/// Her edit.
const EDIT: &str = "sudo sed -i s/time1.example.com/time.attacker.example/ /etc/chrony.conf";
/// The repair.
const REPAIR: &[&str] = &["repair", "--yes", "/etc/chrony.conf"];
/// The node's config, its next config, and the administrator's policy for it.
const OLD: &str = "/etc/holdfast/machine-configs/99-worker-baseline.yaml";
const NEW: &str = "/root/99-worker-baseline.yaml";
const POLICY: &str = "/root/disruption.yaml";
/// The new config limits the number of login attempts, in a file that ssh's service reads at a reload.
const SETTING: (&str, &str) = ("X11Forwarding%20no%0A", "X11Forwarding%20no%0AMaxAuthTries%203%0A");
const DISRUPTION: &str = "apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\n\
    metadata: {name: cluster}\nspec:\n  nodeDisruptionPolicy:\n    files:\n    - path: /etc/ssh/sshd_config.d\n      \
    actions:\n      - {type: Reload, reload: {serviceName: ssh.service}}\n";

/// The scenario.
pub(super) fn systemd(context: &mut Context) -> Result<()> {
    let node = Node::start(&[])?;
    step(context, "start", started(&node))?;
    let before = node.records()?.len();
    step(context, "edit", edited())?;
    step(context, "drift", drifted(&node))?;
    let record = node.wait_for("the drift record", before, |record| is(record, "drift"))?;
    step(context, "login_behind_sudo", attributed(&record, "/sed"))?;
    step(context, "metric", measured(&node))?;
    step(context, "repair", repaired(&node, before))?;
    step(context, "recovery", recovered(&node))?;
    step(context, "plan", planned(&node))?;
    let before = node.records()?.len();
    step(context, "apply", applied(&node, before))
}

/// Shows a step and reports it. The first failing step ends the story.
pub(super) fn step(context: &mut Context, name: &str, shown: Result<String>) -> Result<()> {
    context.note(shown?);
    context.check(name, Ok(String::new()));
    Ok(())
}

fn is(record: &Value, kind: &str) -> bool {
    record["kind"] == kind && record["path"] == FILE
}

fn started(node: &Node) -> Result<String> {
    let status = node.wait_for_verdict("compliant")?;
    ensure!(node.property("Type")? == "notify" && node.property("ActiveState")? == "active", "not running");
    ensure!(status["drifted"].as_array().is_some_and(Vec::is_empty), "{status}");
    ensure!(status["sources"][0] == CONFIG_NAME, "{status}");
    Ok(format!(
        "## A node and its configuration\n\
         The node runs Debian with systemd. The MachineConfig {CONFIG_NAME} declares its time servers, ssh keys and\n\
         settings, kernel settings, and a service. Holdfast runs as a systemd service.\n\
         $ systemctl show -p ActiveState,SubState,MainPID holdfast\n\
         ActiveState={} SubState={} MainPID={}\n\
         Holdfast manages {} things, and all are compliant. It receives changes from {} hooks in the kernel.",
        node.property("ActiveState")?,
        node.property("SubState")?,
        node.property("MainPID")?,
        status["counters"]["managed"],
        status["backend"].as_str().unwrap_or_default(),
    ))
}

fn edited() -> Result<String> {
    as_alice(EDIT)?;
    Ok(format!(
        "## A user logs in and changes a managed file\n\
         alice logs in by ssh with her key. As root she replaces a time server by her own.\n\
         $ ssh alice@node {EDIT}"
    ))
}

fn drifted(node: &Node) -> Result<String> {
    let status = node.wait_for_verdict("drifted")?;
    let drifted = &status["drifted"][0];
    ensure!(drifted["path"] == FILE && drifted["source"] == CONFIG_NAME, "{status}");
    ensure!(status["degraded"] == true, "{status}");
    let printed = node.holdfast(1, &["status"])?;
    ensure!(printed.contains(FILE), "{printed}");
    Ok(format!("## What drifted\n$ holdfast status\n{printed}"))
}

/// The record names the person, the session, and the processes from the login to the edit by `program`.
pub(super) fn attributed(record: &Value, program: &str) -> Result<String> {
    let actor = &record["actor"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    ensure!(record["differences"][0]["kind"] == "content", "{record}");
    ensure!(actor["login_user"] == "alice" && actor["uid"] == 0, "{record}");
    ensure!(text(&actor["exe"]).ends_with(program), "{record}");
    let unit = text(&actor["unit"]);
    let session = actor["session"].as_u64().context("no session")?;
    ensure!(unit == format!("session-{session}.scope"), "{record}");
    ensure!(text(&actor["tty"]).starts_with("pts/"), "{record}");
    let mut ancestors: Vec<String> =
        actor["ancestors"].as_array().into_iter().flatten().map(command).collect();
    // sudo keeps a process for the terminal beside the process that runs the command.
    ancestors.dedup();
    for program in ["sudo", "sshd"] {
        ensure!(
            ancestors.iter().any(|line| line.starts_with(program) || line.contains(&format!("/{program}"))),
            "no {program}: {record}"
        );
    }
    Ok(format!(
        "## Who did it\n\
         The forensic log has a record of it, chained by hashes to those before it.\n\
         when      {}\n\
         what      {} by {} (pid {}, uid {})\n\
         login     {} (uid {}), session {session}, {}, {unit}\n\
         through   {}\n\
         hash      {}",
        text(&record["time"]),
        text(&record["operation"]),
        command(actor),
        actor["pid"],
        actor["uid"],
        text(&actor["login_user"]),
        actor["login_uid"],
        text(&actor["tty"]),
        ancestors.join("\n          "),
        text(&record["hash"]),
    ))
}

/// The command line of a process.
fn command(actor: &Value) -> String {
    let words: Vec<&str> = actor["argv"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if words.is_empty() { actor["exe"].as_str().unwrap_or_default().to_owned() } else { words.join(" ") }
}

fn measured(node: &Node) -> Result<String> {
    let drift = node.metric("holdfast_node_drift{kind=\"content\"}")?;
    let since = node.metric("mcd_config_drift")?;
    ensure!(drift > 0.0 && since > 0.0, "drift {drift}, since {since}");
    Ok(format!(
        "## The metrics\n\
         $ curl http://127.0.0.1:9464/metrics\n\
         holdfast_node_drift{{kind=\"content\"}} {drift}\n\
         mcd_config_drift {since}"
    ))
}

fn repaired(node: &Node, before: usize) -> Result<String> {
    let printed = node.holdfast(0, REPAIR)?;
    node.wait_for("the recovery record", before, |record| is(record, "recovered"))?;
    Ok(format!("## The repair\n$ holdfast {}\n{printed}", REPAIR.join(" ")))
}

fn recovered(node: &Node) -> Result<String> {
    let status = node.wait_for_verdict("compliant")?;
    let drift = node.metric("holdfast_node_drift{kind=\"content\"}")?;
    let since = node.metric("mcd_config_drift")?;
    ensure!(drift == 0.0 && since == 0.0, "drift {drift}, since {since}: {status}");
    let (status, log) = (node.holdfast(0, &["status"])?, node.holdfast(0, &["log", "verify"])?);
    Ok(format!(
        "## The recovery\n\
         The verdict is compliant again and both metrics are 0, without a reboot or an annotation to edit.\n\
         $ holdfast status\n{status}\n$ holdfast log verify\n{log}"
    ))
}

/// What a new config would do to the node: without a policy and with one.
fn planned(node: &Node) -> Result<String> {
    ensure!(CONFIG.contains(SETTING.0), "the example does not say {}", SETTING.0);
    fs::write(NEW, CONFIG.replace(SETTING.0, SETTING.1))?;
    fs::write(POLICY, DISRUPTION)?;
    let bare: Value = serde_json::from_str(&node.holdfast(1, &["plan", OLD, NEW, "-o", "json"])?)?;
    ensure!(bare["reboot"] == true && bare["drain"] == true, "{bare}");
    let arguments = ["plan", OLD, NEW, "--policy", POLICY];
    let plan: Value = serde_json::from_str(&node.holdfast(1, &[&arguments[..], &["-o", "json"]].concat())?)?;
    ensure!(plan["reboot"] == false && plan["drain"] == false, "{plan}");
    ensure!(plan["steps"][1]["action"] == "reload", "{plan}");
    ensure!(plan["steps"][1]["target"] == "ssh.service", "{plan}");
    let printed = node.holdfast(1, &arguments)?;
    Ok(format!(
        "## The plan for a new config\n\
         The next version of the config allows fewer login attempts. Without a policy entry for the file, the change\n\
         drains and reboots the node. The administrator's policy says that a reload of ssh is enough.\n\
         $ holdfast {}\n{printed}",
        arguments.join(" ")
    ))
}

/// The config is applied: the setting is in effect, nothing was reported as drift, and the daemon expects the new
/// config.
fn applied(node: &Node, before: usize) -> Result<String> {
    let arguments = ["apply", NEW, "--current", "/etc/holdfast/machine-configs", "--policy", POLICY, "--yes"];
    let printed = node.holdfast(0, &arguments)?;
    ensure!(printed.starts_with("done"), "{printed}");
    let journal = run("journalctl", &["-u", "ssh.service", "-n", "20", "--no-pager", "-o", "cat"])?;
    ensure!(journal.contains("Received SIGHUP"), "ssh was not reloaded: {printed}\n{journal}");
    let settings = run("sshd", &["-T"])?;
    let setting =
        settings.lines().find(|line| line.starts_with("maxauthtries")).context("no such setting")?;
    ensure!(setting == "maxauthtries 3", "{setting}");
    as_alice("true")?;
    node.wait_for_verdict("compliant")?;
    let check = ["check", "--config", NEW];
    let checked = node.holdfast(0, &check)?;
    let drift: Vec<Value> =
        node.records()?.into_iter().skip(before).filter(|record| record["kind"] == "drift").collect();
    ensure!(drift.is_empty(), "{drift:#?}");
    let history = node.holdfast(0, &["history"])?;
    Ok(format!(
        "## The new config\n\
         Holdfast writes the config, reloads ssh and compares the node. The daemon reports none of these writes as drift.\n\
         $ holdfast {}\n{printed}\n$ sshd -T | grep maxauthtries\n{setting}\n\
         $ holdfast {}\n{checked}\n$ holdfast history\n{history}",
        arguments.join(" "),
        check.join(" "),
    ))
}
