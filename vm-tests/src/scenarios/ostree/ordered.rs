//! The upgrade as a cluster orders it: through the sensor's socket.
//!
//! In: a host that booted version 1, with arguments that wait for a boot. Out: a check of the plan, and a reboot into the other image with other
//! kernel arguments. The sensor has the namespaces and the capabilities of its container in a pod, and its program is there alone. The apply runs
//! in a transient unit of the host, because the sensor itself can neither write nor open a network socket.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::node::STAGE;
use crate::guest::agent::RunningDaemon;
use crate::guest::pod::Sensor;
use crate::guest::{Context, run, shell, status, wait};
use crate::scenarios::pod::{OWN, USER, ask_as_reporter};

/// How long an emulated guest may take to stage a deployment.
const LIMIT: Duration = Duration::from_mins(5);

/// Notes the progress, orders this config, and waits for the end of this boot.
pub(super) fn reboots(context: &mut Context, next: &str, config: &Value) -> Result<()> {
    let user = USER.to_string();
    let arguments = ["--mode", "manage", "--enter-host", "--reporter-uid", &user];
    let container = Sensor { pod: OWN, arguments: &arguments, own_pids: false, without: None };
    // It lives as long as this boot.
    let _sensor = RunningDaemon::start_by(container.command()?)?;
    status::wait_for("compliant", Duration::from_mins(1))?;
    let planned = ask("PUT", "/v1/config", &json!({ "machine_config": config }))?;
    context.check("an_ordered_os_image_is_planned_with_a_reboot", rebooting(&planned));
    fs::write(STAGE, next)?;
    ask("POST", "/v1/apply", &json!({ "id": planned["id"] }))?;
    if let End::Applied(progress) = wait::until("the reboot", LIMIT, ended)? {
        let log = run("journalctl", &["-b", "-n", "40", "--no-pager", "-o", "cat"]).unwrap_or_default();
        bail!("{next}: the ordered apply ended without a reboot: {progress:#}\n{log}");
    }
    context.note(format!("reboots: {next}"));
    loop {
        // The boot ends here. If it does not, the host's time limit ends the scenario.
        std::thread::park();
    }
}

/// The plan changes the image and the arguments, and reboots.
fn rebooting(planned: &Value) -> Result<String> {
    let changes = planned["plan"]["changes"].as_array().context("no changes")?;
    for kind in ["os-image", "kernel-argument"] {
        ensure!(
            changes.iter().any(|change| change["kind"] == kind),
            "no change of the kind {kind}: {planned:#}"
        );
    }
    ensure!(planned["reboots"] == true, "{planned:#}");
    Ok(planned["plan"]["steps"].to_string())
}

/// Asks as the reporter of the sensor's pod.
fn ask(method: &str, path: &str, body: &Value) -> Result<Value> {
    ask_as_reporter(Some(OWN), method, path, body)
}

/// How an ordered apply ends.
#[derive(Debug)]
enum End {
    /// The host shuts down.
    Reboots,
    /// There is no reboot. The value is its progress.
    Applied(Value),
}

/// How the apply ended; `None` while it is under way.
fn ended() -> Result<Option<End>> {
    let reboots = || -> Result<Option<End>> {
        let state = shell("systemctl is-system-running || true")?;
        Ok((state.trim() == "stopping").then_some(End::Reboots))
    };
    match ask("GET", "/v1/apply", &Value::Null) {
        Ok(progress) if ["Done", "Failed"].iter().any(|phase| progress["phase"] == *phase) => {
            Ok(Some(End::Applied(progress)))
        }
        Ok(_) => reboots(),
        // The shutdown also ends the sensor.
        Err(error) => match reboots()? {
            None => Err(error),
            end => Ok(end),
        },
    }
}
