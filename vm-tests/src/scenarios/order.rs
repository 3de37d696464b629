//! An apply in the mode `manage` whose sensor ends, once by a rollout and once by a crash, while the apply works. Then drift under a
//! `revert` rule.
//!
//! In: a guest with systemd, without a kubelet. The scenario plays the kubelet, which starts the sensor again, and the reporter. Out:
//! a check for each step. The apply restarts a unit that waits for a reader of a pipe, so it works for as long as the scenario wants.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::fcntl::OFlag;
use serde_json::{Value, json};

use super::apply::history;
use super::pod::{USER, ask_as_reporter};
use crate::guest::agent::RunningDaemon;
use crate::guest::{Context, run, status, wait};

const LIMIT: Duration = Duration::from_mins(1);
const FILE: &str = "/etc/order/file";
/// The file under a `revert` rule.
const REVERTED: &str = "/etc/order/reverted";
/// The directory that a `revert` rule closes.
const CLOSED: &str = "/etc/order-closed";
const POLICY: &str = "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: order}\nspec:\n  rules:\n  \
    - {path: /etc/order/reverted, action: revert}\n  - {path: /etc/order-closed/, closed: true, action: revert}\n";
/// The pipe for which the unit waits while it exists.
const HOLD: &str = "/run/order-hold";
/// The unit writes a line here at each start.
const STARTS: &str = "/run/order-starts";
/// The unit that applies.
const APPLY: &str = "holdfast-apply.service";
/// The unit that writes back.
const REVERT: &str = "holdfast-revert.service";
const UNIT: &str = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh -c 'echo start >> /run/order-starts'\n\
    ExecStart=/bin/sh -c '! test -p /run/order-hold || cat /run/order-hold'\n";

/// Asks as the reporter of a host whose reporter is in no pod.
fn ask(method: &str, path: &str, body: &Value) -> Result<Value> {
    ask_as_reporter(None, method, path, body)
}

/// The scenario.
pub(super) fn systemd(context: &mut Context) -> Result<()> {
    wait::for_systemd()?;
    for folder in ["/etc/order", CLOSED, "/etc/holdfast/policies"] {
        fs::create_dir_all(folder)?;
    }
    fs::write("/etc/holdfast/policies/order.yaml", POLICY)?;
    fs::write("/etc/systemd/system/order.service", UNIT)?;
    run("systemctl", &["daemon-reload"])?;
    run("systemctl", &["start", "order.service"])?;
    let sensor = sensor()?;
    status::wait_for("compliant", LIMIT)?;
    context.check("a_node_without_a_config_gets_its_first_one", first());
    context.check("beside_the_operators_daemon_it_says_so", beside_operator());
    run("mkfifo", &[HOLD])?;
    order("two", &json!({ "type": "Restart", "restart": { "serviceName": "order.service" } }))?;
    // The unit waits as long as the pipe is open for writing.
    let (works, mut pipe) = works()?;
    context.check("in_mid_apply", running(&works).and_then(|_| patient()));
    sensor.stop()?;
    let sensor = self::sensor()?;
    context.check("a_sensor_replaced_in_mid_apply", running(&works));
    sensor.kill()?;
    let mut sensor = self::sensor()?;
    context.check("a_sensor_killed_in_mid_apply", running(&works));
    fs::remove_file(HOLD)?;
    writeln!(pipe, "continue")?;
    drop(pipe);
    context.check("the_apply_ends_as_without_that", done(&sensor));
    context.check("an_edit_under_a_revert_rule", reverted(&mut sensor));
    context.check("an_undeclared_file_under_a_revert_rule", quarantined(&mut sensor));
    context.check("the_sensor_has_no_capability_to_write", reduced(&sensor));
    sensor.stop()?;
    Ok(())
}

/// The sensor, as the kubelet starts it.
fn sensor() -> Result<RunningDaemon> {
    RunningDaemon::start(&["--mode", "manage", "--reporter-uid", &USER.to_string()])
}

/// A config that declares this content.
fn config(content: &str) -> Value {
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": { "name": format!("rendered-{content}"), "labels": { "machineconfiguration.openshift.io/role": "worker" } },
        "spec": { "config": {
            "ignition": { "version": "3.4.0" },
            "storage": { "files": [
                { "path": FILE, "mode": 0o644, "contents": { "source": format!("data:,{content}%0A") } },
                { "path": REVERTED, "mode": 0o644, "contents": { "source": "data:,declared%0A" } },
            ] },
        } },
    })
}

/// The host has no config, and the sensor has nothing to compare. The first config comes from the reporter.
fn first() -> Result<String> {
    let progress = ask("GET", "/v1/apply", &Value::Null)?;
    ensure!(progress["phase"] == "Idle" && progress["current"].is_null(), "{progress}");
    order("one", &json!({ "type": "None" }))?;
    let progress = wait::until("the end of the first apply", LIMIT, || {
        let progress = ask("GET", "/v1/apply", &Value::Null)?;
        Ok((progress["phase"] != "Running").then_some(progress))
    })?;
    ensure!(progress["phase"] == "Done" && progress["current"] == "rendered-one", "{progress}");
    ensure!(
        fs::read_to_string(FILE)? == "one\n" && fs::read_to_string(REVERTED)? == "declared\n",
        "the files"
    );
    status::wait_for("compliant", LIMIT)?;
    Ok(progress.to_string())
}

/// While a process of root with the name of the Machine Config Operator's daemon runs, the progress says so. The reporter then writes nothing.
fn beside_operator() -> Result<String> {
    let program = "/run/machine-config-daemon";
    fs::copy("/bin/sleep", program)?;
    let mut daemon = Command::new(program).arg("infinity").spawn()?;
    let found = wait::until("the sensor to see the daemon", LIMIT, || {
        let progress = ask("GET", "/v1/apply", &Value::Null)?;
        Ok((progress["is_managed_by_operator"] == true).then_some(progress))
    });
    daemon.kill()?;
    daemon.wait()?;
    let found = found?;
    wait::until("the sensor to see that it ended", LIMIT, || {
        Ok(ask("GET", "/v1/apply", &Value::Null)?["is_managed_by_operator"].is_null().then_some(()))
    })?;
    Ok(found.to_string())
}

/// Hands a config in, and orders it. A change of its first file needs this action.
fn order(content: &str, action: &Value) -> Result<()> {
    let file = |path: &str, action: &Value| json!({ "path": path, "actions": [action] });
    let policy = json!({
        "apiVersion": "operator.openshift.io/v1",
        "kind": "MachineConfiguration",
        "metadata": { "name": "cluster" },
        "spec": { "nodeDisruptionPolicy": { "files": [file(FILE, action), file(REVERTED, &json!({ "type": "None" }))] } },
    });
    let desired = json!({ "machine_config": config(content), "node_disruption": policy });
    let planned = ask("PUT", "/v1/config", &desired)?;
    ask("POST", "/v1/apply", &json!({ "id": planned["id"] })).map(drop)
}

/// Waits until the apply restarts the unit, and the unit waits for the pipe. Gives the process that applies, and the pipe.
fn works() -> Result<(String, File)> {
    let nonblocking = OFlag::O_NONBLOCK.bits();
    let reader = wait::until("the unit to be restarted", LIMIT, || {
        // Without a reader of the pipe this fails.
        Ok(OpenOptions::new().write(true).custom_flags(nonblocking).open(HOLD).ok())
    });
    match reader {
        Ok(pipe) => Ok((process()?, pipe)),
        Err(error) => bail!(
            "{error:#}\n{}\n{}",
            ask("GET", "/v1/apply", &Value::Null).unwrap_or_default(),
            run("journalctl", &["-n", "40", "--no-pager", "-o", "cat"]).unwrap_or_default()
        ),
    }
}

/// The process that applies.
fn process() -> Result<String> {
    let pid = property("MainPID")?;
    ensure!(pid != "0", "{APPLY} does not run");
    Ok(pid)
}

/// A property of its unit.
fn property(name: &str) -> Result<String> {
    Ok(run("systemctl", &["show", "--value", "-p", name, APPLY])?.trim().to_owned())
}

/// A shutdown waits for the apply.
fn patient() -> Result<String> {
    let limit = property("TimeoutStopUSec")?;
    ensure!(limit == "10min", "{limit}");
    Ok(limit)
}

/// The same process applies, and the sensor that runs now reports that.
fn running(works: &str) -> Result<String> {
    let progress = ask("GET", "/v1/apply", &Value::Null)?;
    ensure!(progress["phase"] == "Running" && progress["config"] == "rendered-two", "{progress}");
    ensure!(process()? == works, "process {works} is gone");
    Ok(progress["message"].to_string())
}

/// The node has the config, by one apply with one restart, and the sensor reports no drift.
fn done(sensor: &RunningDaemon) -> Result<String> {
    let progress = wait::until("the end of the apply", LIMIT, || {
        let progress = ask("GET", "/v1/apply", &Value::Null)?;
        Ok((progress["phase"] != "Running").then_some(progress))
    })?;
    ensure!(progress["phase"] == "Done" && progress["current"] == "rendered-two", "{progress}");
    let history = history()?;
    let applies = history["applies"].as_array().map_or(0, Vec::len);
    // The first one brought the first config.
    ensure!(history["applies"][0]["result"] == "done" && applies <= 2, "{history:#}");
    ensure!(fs::read_to_string(FILE)? == "two\n", "the file");
    ensure!(fs::read_to_string(STARTS)?.lines().count() == 2, "the unit was restarted again");
    status::wait_for("compliant", LIMIT)?;
    let drift = sensor.records()?.into_iter().find(|record| record["kind"] == "drift");
    ensure!(drift.is_none(), "{drift:?}");
    Ok(progress.to_string())
}

/// The records of a path and a kind after the first ones.
fn find(sensor: &mut RunningDaemon, before: usize, kind: &str, path: &str) -> Result<Value> {
    let found = sensor.wait_for(kind, before, |record| record["kind"] == kind && record["path"] == path);
    found.with_context(|| {
        run("journalctl", &["-u", REVERT, "-n", "40", "--no-pager", "-o", "cat"]).unwrap_or_default()
    })
}

/// Waits until the node is as declared and the unit is gone. The writes of the unit are no drift and no touch.
fn is_settled(sensor: &RunningDaemon, before: usize, path: &str) -> Result<()> {
    status::wait_for("compliant", LIMIT)?;
    wait::until("the unit to be gone", LIMIT, || {
        let state = run("systemctl", &["show", "--value", "-p", "ActiveState", REVERT])?;
        Ok((state.trim() == "inactive").then_some(()))
    })?;
    let records = sensor.records()?;
    let mut of_path = records.iter().skip(before).filter(|record| record["path"] == path);
    let touched = of_path.clone().find(|record| record["kind"] == "touched");
    ensure!(touched.is_none(), "{touched:?}");
    let drifts = of_path.clone().filter(|record| record["kind"] == "drift").count();
    ensure!(drifts == 1, "{drifts} drifts");
    let failed = of_path.find(|record| record["detail"]["error"].is_string());
    ensure!(failed.is_none(), "{failed:?}");
    for file in ["revert.json", "reverted.json"] {
        ensure!(!Path::new("/var/lib/holdfast/order").join(file).exists(), "{file} stays");
    }
    Ok(())
}

/// The unit writes the file back, and the sensor records it.
fn reverted(sensor: &mut RunningDaemon) -> Result<String> {
    let before = sensor.records()?.len();
    run("/bin/sh", &["-c", &format!("echo drift >> {REVERTED}")])?;
    let drift = find(sensor, before, "drift", REVERTED)?;
    ensure!(drift["actor"]["argv"][0] == "/bin/sh", "{drift}");
    let record = find(sensor, before, "reverted", REVERTED)?;
    ensure!(record["detail"]["actions"].as_array().is_some_and(|actions| !actions.is_empty()), "{record}");
    find(sensor, before, "recovered", REVERTED)?;
    ensure!(fs::read_to_string(REVERTED)? == "declared\n", "the content was not written back");
    is_settled(sensor, before, REVERTED)?;
    Ok(record["detail"]["actions"].to_string())
}

/// The unit moves the file to the quarantine. The record names the process that made it.
fn quarantined(sensor: &mut RunningDaemon) -> Result<String> {
    let before = sensor.records()?.len();
    let file = format!("{CLOSED}/undeclared");
    run("/bin/sh", &["-c", &format!("echo undeclared > {file}")])?;
    let record = find(sensor, before, "reverted", CLOSED)?;
    ensure!(record["detail"]["quarantined"][0]["path"] == file.as_str(), "{record}");
    ensure!(record["detail"]["made_by"][0]["argv"][0] == "/bin/sh", "{record}");
    ensure!(!Path::new(&file).exists(), "{file} stays");
    is_settled(sensor, before, CLOSED)?;
    Ok(record["detail"]["quarantined"].to_string())
}

/// Each thread of the sensor can only read: it has none of the capabilities that change files of others.
fn reduced(sensor: &RunningDaemon) -> Result<String> {
    /// `CAP_CHOWN`, `CAP_DAC_OVERRIDE`, `CAP_FOWNER`, `CAP_FSETID`, `CAP_LINUX_IMMUTABLE`, `CAP_SYS_ADMIN`.
    const TO_WRITE: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 9 | 1 << 21;
    let mut found = 0;
    for thread in fs::read_dir(format!("/proc/{}/task", sensor.pid()))? {
        let text = fs::read_to_string(thread?.path().join("status"))?;
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            let line = text.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(":\t"));
            let held = u64::from_str_radix(line.with_context(|| format!("no {set}"))?, 16)?;
            ensure!(held & TO_WRITE == 0, "{set} is {held:016x}");
            found |= held;
        }
    }
    ensure!(found != 0, "it has no capabilities at all");
    Ok(format!("{found:016x}"))
}
