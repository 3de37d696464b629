//! Paths to a managed thing beside its declared path: mounts over a link's target, directories that enable units, and
//! file systems that others write to.
//!
//! In: a bare guest. Out: a check for each. The full verification runs every ten minutes and would find all of them. A
//! report within a minute shows that the daemon received an event.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::mount::{MsFlags, mount, umount};
use serde_json::Value;

use crate::guest::agent::RunningDaemon;
use crate::guest::fuse::Foreign;
use crate::guest::{Context, shell, status, wait};

const LIMIT: Duration = Duration::from_mins(1);
const CONFIG: &str = "/run/ways.yaml";
const LINKED: &str = "/etc/linked/b";
const DEEP: &str = "/etc/linked/comes/later/d";
const OVER: &str = "/etc/ways/c";
const PLACE: &str = "/srv/foreign";
const FOREIGN: &str = "/srv/foreign/file";

fn config(files: &[&str], rest: &str) -> String {
    let mut text = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\n\
                    metadata: {name: 99-ways, labels: {machineconfiguration.openshift.io/role: worker}}\n\
                    spec:\n  config:\n    ignition: {version: 3.4.0}\n    storage:\n      files:\n"
        .to_owned();
    for file in files {
        text.extend(["      - {path: ", file, ", mode: 420, contents: {source: 'data:,one'}}\n"]);
    }
    text + rest
}

const UNIT: &str = "    systemd:\n      units:\n      - name: x.service\n        enabled: false\n        contents: |\n          \
                    [Service]\n          ExecStart=/bin/true\n          [Install]\n          WantedBy=multi-user.target\n";
const UNIT_FILE: &str = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n";

/// The scenario.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    // Holdfast follows a link only if no other user than root can create it.
    shell(
        "umask 022; mkdir -p /etc/ways /srv/real /etc/systemd/system && \
         chown 0:0 / /etc /etc/ways /srv /srv/real && chmod 755 / /etc /etc/ways /srv /srv/real && \
         ln -s /srv/real /etc/linked",
    )?;
    for path in [LINKED, OVER] {
        fs::write(path, "one")?;
        shell(&format!("chmod 644 {path}"))?;
    }
    fs::write("/etc/systemd/system/x.service", UNIT_FILE)?;
    shell("chmod 644 /etc/systemd/system/x.service")?;
    fs::write(CONFIG, config(&[LINKED, OVER], UNIT))?;
    let mut agent = RunningDaemon::start(&["--standalone", "--config", CONFIG])?;
    agent.wait_for("the first gap to close", 0, |record| record["detail"]["until"].is_string())?;
    status::wait_for("compliant", LIMIT)?;

    context.check("mount_over_the_real_path", mount_over_real(&mut agent));
    context.check("mount_point_that_is_no_text", no_text(&mut agent));
    context.check("unit_enabled_elsewhere", enabled_elsewhere(&mut agent));
    let before = agent.records()?.len();
    agent.stop()?;
    context.check("directories_that_come_behind_a_link", come_behind_a_link(before));
    context.check("foreign_file_system", foreign(before));
    Ok(())
}

fn drift(agent: &mut RunningDaemon, skip: usize, path: &str, kind: &str) -> Result<Value> {
    let record = agent.wait_for(&format!("drift of {path}"), skip, |record| {
        record["kind"] == "drift" && record["path"] == path
    })?;
    let mut kinds = record["differences"].as_array().into_iter().flatten();
    ensure!(kinds.any(|difference| difference["kind"] == kind), "{record}");
    Ok(record)
}

/// The table of mounts has the real path, and the config another one.
fn mount_over_real(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    mount(Some("tmpfs"), "/srv/real", Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    let record = drift(agent, before, LINKED, "missing")?;
    umount("/srv/real")?;
    status::wait_for("compliant", LIMIT)?;
    Ok(record.to_string())
}

/// A mount point that is not UTF-8, and then a mount over a managed thing.
fn no_text(agent: &mut RunningDaemon) -> Result<String> {
    let strange = Path::new(OsStr::from_bytes(b"/tmp/\xff"));
    fs::create_dir(strange)?;
    mount(Some("tmpfs"), strange, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    let before = agent.records()?.len();
    fs::write("/srv/other", "another")?;
    mount(Some("/srv/other"), OVER, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    let record = drift(agent, before, OVER, "mount-over")?;
    umount(OVER)?;
    umount(strange)?;
    status::wait_for("compliant", LIMIT)?;
    Ok(record.to_string())
}

/// A new undeclared directory with a link in it, and then another directory in its place.
fn enabled_elsewhere(agent: &mut RunningDaemon) -> Result<String> {
    let wants = "/etc/systemd/system/other.target.wants";
    let mut operations = Vec::new();
    for _ in 0..2 {
        let before = agent.records()?.len();
        fs::create_dir(wants)?;
        agent.wait_for("a look at the unit", before, |record| {
            record["kind"] == "touched"
                && record["thing"] == "unit"
                && record["operation"] == "make-directory"
        })?;
        let before = agent.records()?.len();
        symlink("/etc/systemd/system/x.service", format!("{wants}/x.service"))?;
        let record = agent.wait_for("drift of the unit", before, |record| {
            record["kind"] == "drift" && record["differences"][0]["kind"] == "unit-enablement"
        })?;
        ensure!(record["actor"]["exe"] == "/init", "{record}");
        operations.push(record["operation"].to_string());
        fs::remove_file(format!("{wants}/x.service"))?;
        agent.wait_for("the recovery", before, |record| {
            record["kind"] == "recovered" && record["thing"] == "unit"
        })?;
        fs::remove_dir(wants)?;
        status::wait_for("compliant", LIMIT)?;
    }
    Ok(operations.join(", "))
}

/// The path to a thing ends behind a link at a missing name. Then more of the path is created, and at last the thing.
fn come_behind_a_link(skip: usize) -> Result<String> {
    fs::write(CONFIG, config(&[LINKED, DEEP], ""))?;
    let mut agent = RunningDaemon::start(&["--standalone", "--config", CONFIG])?;
    drift(&mut agent, skip, DEEP, "missing")?;
    shell(&format!("umask 022; mkdir -p /srv/real/comes/later && printf one > {DEEP}"))?;
    let recovered = |record: &Value| record["kind"] == "recovered" && record["path"] == DEEP;
    agent.wait_for("the recovery", skip, recovered)?;
    let before = agent.records()?.len();
    fs::write(DEEP, "two")?;
    let record = drift(&mut agent, before, DEEP, "content")?;
    ensure!(record["actor"]["exe"] == "/init", "{record}");
    agent.stop()?;
    Ok(record.to_string())
}

/// Things on it are unknown under one gap, and the full verification finds drift.
fn foreign(skip: usize) -> Result<String> {
    let foreign = Foreign::mount(Path::new(PLACE), "one")?;
    fs::write(CONFIG, config(&[FOREIGN], ""))?;
    let mut agent = RunningDaemon::start(&["--standalone", "--config", CONFIG, "--verify-every", "3"])?;
    let is_gap =
        |record: &Value| record["kind"] == "gap" && record["detail"]["reason"] == "foreign-file-system";
    agent.wait_for("the gap", skip, is_gap)?;
    let known = wait::until("the node to be unknown", LIMIT, || {
        let status = status::read()?;
        Ok((status["verdict"] == "unknown" && status["counters"]["unknown"] == 1).then_some(status))
    })?;
    ensure!(known["gaps"][0]["reason"] == "foreign-file-system", "{known}");
    foreign.set("two");
    let record = drift(&mut agent, skip, FOREIGN, "content")?;
    foreign.set("one");
    agent.wait_for("the recovery", skip, |record| {
        record["kind"] == "recovered" && record["path"] == FOREIGN
    })?;
    status::wait_for("unknown", LIMIT)?;
    let gaps = agent.records()?.into_iter().skip(skip).filter(is_gap).count();
    ensure!(gaps == 1, "{gaps} records of the gap: it came and went");
    agent.stop()?;
    Ok(record.to_string())
}
