//! Properties of a whole system: units, logins, services, containers' control groups, and editors.
//!
//! In: a node with the daemon as its systemd service. Out: one check for each way in which people and services change
//! such a node. Each shows drift of the right kind at the right path with the right actor, and recovery after it is
//! undone. If an editor or a tool writes the same content, there is no drift.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::duties;
use crate::guest::service::{Node, as_alice};
use crate::guest::{Context, run, shell};

/// Declares two units of the distribution, so that they can be masked.
const CONFIG: &str = machine_config!(
    "99-worker-trim",
    "      - path: /etc/alices/file
        mode: 420
        contents: {source: 'data:,content%0A'}
    systemd:
      units:
      - {name: fstrim.timer, enabled: true}
      - {name: apt-daily.timer, mask: true}
"
);

/// Only alice may change a file.
const POLICY: &str = "apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: alices}
spec:
  rules:
  - path: /etc/alices/file
    action: deny
    allowedActors: {users: [alice]}
";
const ALICES: &str = "/etc/alices/file";

const UNIT: &str = "/etc/systemd/system/node-inventory.service";
const TRIM: &str = "/etc/systemd/system/fstrim.timer";
const APT: &str = "/etc/systemd/system/apt-daily.timer";
const DROPINS: &str = "/etc/systemd/system/node-inventory.service.d";
const CHRONY: &str = "/etc/chrony.conf";
const SYSCTL: &str = "/etc/sysctl.d/90-baseline.conf";
const KEYS: &str = "/home/core/.ssh/authorized_keys";
/// Names in the form of containerd and the kubelet.
const CONTAINER: &str = "5a3f0c2e1b4d69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0";
const POD: &str = "01234567-89ab-cdef-0123-456789abcdef";

/// Makes each change to the node and undoes it.
pub(super) fn systemd(context: &mut Context) -> Result<()> {
    shell("systemctl enable --quiet fstrim.timer")?;
    shell("umask 022 && mkdir -p /etc/alices /etc/holdfast/policies && echo content > /etc/alices/file")?;
    fs::write("/etc/holdfast/policies/alices.yaml", POLICY)?;
    fs::write("/etc/holdfast/policies/closed.yaml", shipped_single_files()?)?;
    let node = Node::start(&[("99-worker-trim", CONFIG)])?;
    node.wait_for_verdict("compliant")?;

    context.check("login", login(&node));
    context.check("forged_login", forged_login(&node));
    context.check("unit_disabled", disabled(&node));
    context.check("unit_masked", masked(&node));
    context.check("unit_linked_away", linked_away(&node));
    context.check("drop_in_added", drop_in(&node));
    context.check("ssh_key_added", ssh_key(&node));
    context.check("file_where_nothing_may_be", single_file(&node));
    context.check("service", service(&node));
    context.check("a_group_that_a_user_made", delegated(&node));
    context.check("container", container(&node));
    context.check("editors_do_not_flap", editors(&node));
    context.check("capabilities", duties::capabilities(&node));
    context.check("reload", duties::reload(&node));
    context.check("revert", duties::revert(&node));
    context.check("killed_daemon", killed(&node));
    context.check("capabilities_after_a_restart", duties::capabilities(&node));
    context.check("revert_after_a_restart", duties::revert(&node));
    let status = node.wait_for_verdict("compliant")?;
    context.check("compliant_at_the_end", ended(&status));
    Ok(())
}

/// Makes a change and waits for its drift.
pub(super) fn drift(
    node: &Node,
    path: &str,
    kind: &str,
    change: impl FnOnce() -> Result<String>,
) -> Result<Value> {
    let before = node.records()?.len();
    change()?;
    let has = |record: &Value| {
        record["differences"].as_array().is_some_and(|all| all.iter().any(|one| one["kind"] == kind))
    };
    node.wait_for(&format!("drift ({kind}) of {path}"), before, |record| {
        record["kind"] == "drift" && record["path"] == path && has(record)
    })
}

/// Undoes the change and waits for the recovery.
pub(super) fn recovery(node: &Node, path: &str, change: impl FnOnce() -> Result<String>) -> Result<()> {
    let before = node.records()?.len();
    change()?;
    node.wait_for(&format!("recovery of {path}"), before, |record| {
        record["kind"] == "recovered" && record["path"] == path
    })?;
    Ok(())
}

/// Expects alice's login in a record, and the unit of its session; returns the actor in words.
pub(super) fn by_alice(record: &Value) -> Result<String> {
    let printed = logged_in(record)?;
    let actor = &record["actor"];
    ensure!(actor["unit"] == format!("session-{}.scope", actor["session"]), "{record}");
    Ok(printed)
}

/// Expects alice's login behind sudo in a record. If the session ended while no daemon ran, its control group is
/// removed, so the record has no unit.
fn logged_in(record: &Value) -> Result<String> {
    let actor = &record["actor"];
    ensure!(actor["login_user"] == "alice", "the login is not alice's: {record}");
    let session = actor["session"].as_u64().context("no session")?;
    let exes: Vec<&str> =
        actor["ancestors"].as_array().into_iter().flatten().filter_map(|one| one["exe"].as_str()).collect();
    ensure!(exes.iter().any(|exe| exe.ends_with("/sudo")), "no sudo: {record}");
    ensure!(exes.iter().any(|exe| exe.ends_with("/sshd")), "no sshd: {record}");
    Ok(format!("{} by alice, session {session}", record["operation"]))
}

fn login(node: &Node) -> Result<String> {
    let record = drift(node, CHRONY, "content", || as_alice(&format!("echo pool x | sudo tee -a {CHRONY}")))?;
    let who = by_alice(&record)?;
    recovery(node, CHRONY, || as_alice(&format!("sudo sed -i /pool/d {CHRONY}")))?;
    let record = drift(node, CHRONY, "mode", || as_alice(&format!("sudo chmod 666 {CHRONY}")))?;
    by_alice(&record)?;
    recovery(node, CHRONY, || as_alice(&format!("sudo chmod 644 {CHRONY}")))?;
    Ok(who)
}

/// A rule for alice accepts her logins with the scope that logind creates, and no process that only sets her login uid.
fn forged_login(node: &Node) -> Result<String> {
    let change = format!("chmod 600 {ALICES}");
    let line = format!("echo $(id -u alice) > /proc/self/loginuid && {change}");
    let before = node.records()?.len();
    let forged = run("systemd-run", &["--quiet", "--wait", "--unit=forger", "/bin/sh", "-c", &line]);
    ensure!(forged.is_err(), "the forged login was accepted");
    let record = node.wait_for("the refusal", before, |record| record["kind"] == "denied")?;
    let actor = &record["actor"];
    ensure!(actor["login_user"] == "alice" && actor["unit"] == "forger.service", "{record}");
    let record = drift(node, ALICES, "mode", || as_alice(&format!("sudo {change}")))?;
    let who = by_alice(&record)?;
    ensure!(record["detail"]["allowed"] == true, "{record}");
    recovery(node, ALICES, || as_alice(&format!("sudo chmod 644 {ALICES}")))?;
    Ok(who)
}

/// `systemctl` asks the manager, so the manager is the actor.
fn disabled(node: &Node) -> Result<String> {
    let record = drift(node, UNIT, "unit-enablement", || {
        as_alice("sudo systemctl disable --quiet node-inventory.service")
    })?;
    ensure!(record["actor"]["pid"] == 1, "{record}");
    recovery(node, UNIT, || as_alice("sudo systemctl enable --quiet node-inventory.service"))?;
    Ok(record["differences"][0]["text"].to_string())
}

/// Masked although declared enabled, and unmasked although declared masked.
fn masked(node: &Node) -> Result<String> {
    let record =
        drift(node, TRIM, "unit-enablement", || as_alice("sudo systemctl mask --quiet fstrim.timer"))?;
    ensure!(record["differences"][0]["found"] == "masked", "{record}");
    recovery(node, TRIM, || {
        as_alice("sudo systemctl unmask --quiet fstrim.timer; sudo systemctl enable --quiet fstrim.timer")
    })?;
    let record = drift(node, APT, "unit-mask", || as_alice("sudo systemctl unmask --quiet apt-daily.timer"))?;
    recovery(node, APT, || as_alice("sudo systemctl mask --quiet apt-daily.timer"))?;
    Ok(record["differences"][0]["text"].to_string())
}

/// The same result as masking a unit that has a file of its own.
fn linked_away(node: &Node) -> Result<String> {
    let record = drift(node, UNIT, "type", || {
        as_alice(&format!("sudo cp {UNIT} /run/unit; sudo ln -sf /dev/null {UNIT}"))
    })?;
    let who = by_alice(&record)?;
    recovery(node, UNIT, || {
        as_alice(&format!(
            "sudo rm {UNIT}; sudo install -m 644 /run/unit {UNIT}; sudo systemctl daemon-reload"
        ))
    })?;
    Ok(who)
}

fn drop_in(node: &Node) -> Result<String> {
    let path = format!("{DROPINS}/99-other.conf");
    let record = drift(node, DROPINS, "unexpected", || {
        as_alice(&format!("printf '[Service]\\nUser=alice\\n' | sudo tee {path}"))
    })?;
    let who = by_alice(&record)?;
    ensure!(record["differences"][0]["found"] == path, "{record}");
    recovery(node, DROPINS, || as_alice(&format!("sudo rm {path}")))?;
    Ok(who)
}

fn ssh_key(node: &Node) -> Result<String> {
    let record = drift(node, KEYS, "ssh-key", || {
        as_alice(&format!("sudo tee -a {KEYS} < /home/alice/.ssh/authorized_keys"))
    })?;
    let who = by_alice(&record)?;
    recovery(node, KEYS, || as_alice(&format!("sudo rm {KEYS}")))?;
    Ok(who)
}

/// The shipped rules about single files. Those about directories would report what this host has and nothing declares.
fn shipped_single_files() -> Result<String> {
    let (head, rules) = include_str!("../../../policies/drift/closed.yaml")
        .split_once("  rules:\n")
        .context("closed.yaml has no rules")?;
    let (_, rules) = rules.split_once("    # Single files.\n").context("closed.yaml has no single files")?;
    ensure!(!rules.contains("closed: true"), "rules about directories are among the single files");
    Ok(format!("{head}  rules:\n{rules}"))
}

/// The shipped rules only observe. An empty `/etc/ld.so.preload` changes no program.
fn single_file(node: &Node) -> Result<String> {
    let mut who = String::new();
    for path in ["/etc/ld.so.preload", "/etc/rc.local", "/etc/ssh/sshrc"] {
        let record = drift(node, path, "unexpected", || as_alice(&format!("sudo touch {path}")))?;
        who = by_alice(&record)?;
        ensure!(record["source"] == path && record["detail"]["source_kind"] == "policy", "{record}");
        recovery(node, path, || as_alice(&format!("sudo rm {path}")))?;
    }
    Ok(who)
}

/// The unit of a service is in the record, and no login.
fn service(node: &Node) -> Result<String> {
    let line = format!("cp {SYSCTL} /run/sysctl && echo kernel.panic = 1 >> {SYSCTL}");
    let record = drift(node, SYSCTL, "content", || {
        run("systemd-run", &["--quiet", "--wait", "--unit=tuner", "/bin/sh", "-c", &line])
    })?;
    let actor = &record["actor"];
    ensure!(actor["unit"] == "tuner.service" && actor["slice"] == "system.slice", "{record}");
    ensure!(actor["login_user"].is_null() && actor["session"].is_null(), "{record}");
    recovery(node, SYSCTL, || shell(&format!("cp /run/sysctl {SYSCTL}")))?;
    Ok(actor["unit"].to_string())
}

/// If a user creates a group in a service's delegated tree, the unit is that service, whatever the group's name.
fn delegated(node: &Node) -> Result<String> {
    let made = "/sys/fs/cgroup/system.slice/tenant.service/tuner.service";
    let line = format!(
        "mkdir {made} && echo 0 > {made}/cgroup.procs && echo kernel.panic = 1 | sudo tee -a {SYSCTL} > /dev/null"
    );
    let record = drift(node, SYSCTL, "content", || {
        let arguments = ["--quiet", "--wait", "--unit=tenant", "-p", "Delegate=yes", "-p", "User=alice"];
        run("systemd-run", &[&arguments[..], &["/bin/sh", "-c", &line]].concat())
    })?;
    let actor = &record["actor"];
    ensure!(actor["unit"] == "tenant.service" && actor["slice"] == "system.slice", "{record}");
    recovery(node, SYSCTL, || shell(&format!("cp /run/sysctl {SYSCTL}")))?;
    Ok(actor["unit"].to_string())
}

/// A process in the control group of a pod's container. It keeps running, like a container: if the group is removed
/// before the daemon asks for its name, the record has no name.
fn container(node: &Node) -> Result<String> {
    let slice = format!("--slice=kubepods-besteffort-pod{}.slice", POD.replace('-', "_"));
    let scope = format!("cri-containerd-{CONTAINER}.scope");
    let line = format!("cp {SYSCTL} /run/sysctl; echo kernel.panic = 1 >> {SYSCTL}; exec sleep infinity");
    let record = drift(node, SYSCTL, "content", || {
        shell(&format!(
            "systemd-run --quiet --scope {slice} --unit={scope} /bin/sh -c '{line}' > /dev/null 2>&1 &"
        ))
    })?;
    let actor = &record["actor"];
    ensure!(actor["container_id"] == CONTAINER && actor["pod_uid"] == POD, "{record}");
    run("systemctl", &["stop", &scope])?;
    recovery(node, SYSCTL, || shell(&format!("cp /run/sysctl {SYSCTL}")))?;
    Ok(actor["container_id"].to_string())
}

/// Each of these writes the same content in its own way. None is drift.
fn editors(node: &Node) -> Result<String> {
    let before = node.records()?.len();
    for (editor, line) in [
        ("sed", format!("sudo sed -i s/rtcsync/rtcsync/ {CHRONY}")),
        // Writes the backup, then creates the file again, then removes the backup.
        ("vim", format!("sudo sh -c 'mv {CHRONY} {CHRONY}~ && cp -p {CHRONY}~ {CHRONY} && rm {CHRONY}~'")),
        // Truncates the file and writes it in place.
        ("nano", format!("sudo sh -c 'cp {CHRONY} /run/same && cat /run/same > {CHRONY}'")),
        ("install", format!("sudo sh -c 'cp {CHRONY} /run/same && install -m 644 /run/same {CHRONY}'")),
    ] {
        let skip = node.records()?.len();
        as_alice(&line)?;
        node.wait_for(&format!("the touch of {editor}"), skip, |record| {
            record["kind"] == "touched" && record["path"] == CHRONY
        })?;
    }
    let records = node.records()?;
    let drifted = records.iter().skip(before).find(|record| record["kind"] == "drift");
    ensure!(drifted.is_none(), "an edit that changed nothing was called drift: {drifted:?}");
    Ok(format!("{} touches", records.len() - before))
}

/// systemd restarts the daemon, which finds the changes made meanwhile, with their actors.
fn killed(node: &Node) -> Result<String> {
    let pid = node.property("MainPID")?;
    let before = duties::starts(node)?.len();
    let record = drift(node, CHRONY, "content", || {
        run("systemctl", &["kill", "--signal=KILL", "holdfast.service"])?;
        as_alice(&format!("echo pool x | sudo tee -a {CHRONY}"))
    })?;
    ensure!(node.property("MainPID")? != pid, "the daemon was not killed");
    let starts = duties::starts(node)?;
    let last = starts.last().context("no start record")?;
    ensure!(starts.len() == before + 1 && last["detail"]["adopted"] == true, "{starts:?}");
    let who = logged_in(&record)?;
    recovery(node, CHRONY, || as_alice(&format!("sudo sed -i /pool/d {CHRONY}")))?;
    Ok(who)
}

fn ended(status: &Value) -> Result<String> {
    ensure!(status["drifted"].as_array().is_some_and(Vec::is_empty), "{status}");
    ensure!(status["gaps"].as_array().is_some_and(Vec::is_empty), "{status}");
    fs::read_to_string("/run/node-inventory").context("the declared service did not run")
}
