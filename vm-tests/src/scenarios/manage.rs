//! The mode `manage` on a real kubelet: the `DaemonSet` applies what the annotations of its Node ask for.
//!
//! In: a node that joins the control plane on the host. The scenario plays the controllers: it makes MachineConfigs, writes
//! `desiredConfig`, and answers requests for a drain. Out: a check for an apply with a restart, one with a drain, and one with a
//! reboot, which ends in the second boot.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::guest::kube::{self, DEPLOY, NODE};
use crate::guest::service::{CONFIG, CONFIG_NAME, prepare};
use crate::guest::{Context, api, run, wait};

/// How long one step of the handshake may take in an emulated guest.
const LIMIT: Duration = Duration::from_secs(100);
/// The prefix of the annotations.
const MCO: &str = "machineconfiguration.openshift.io";
/// The boot id of the first boot.
const NOTE: &str = "/var/lib/holdfast-scenario-boot";
/// The policy of the cluster: one file needs a restart, one a drain, and every other change a reboot.
const POLICY: &str = "apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\nmetadata: {name: cluster}\nspec:\n  \
     nodeDisruptionPolicy:\n    files:\n    - path: /etc/ssh/sshd_config.d/40-baseline.conf\n      actions:\n      - {type: Restart, \
     restart: {serviceName: ssh.service}}\n    - path: /etc/chrony.conf\n      actions:\n      - {type: Drain}\n";

/// A change of the example config: the name of the config, and what it replaces by what.
struct Change {
    name: &'static str,
    replaces: (&'static str, &'static str),
}

/// The configs, each with the changes of those before it.
const RESTART: Change = Change {
    name: "rendered-restart",
    replaces: ("X11Forwarding%20no%0A", "X11Forwarding%20no%0AMaxAuthTries%203%0A"),
};
const DRAIN: Change = Change { name: "rendered-drain", replaces: ("time2.example.com", "time3.example.com") };
const REBOOT: Change =
    Change { name: "rendered-reboot", replaces: ("kptr_restrict%20%3D%202", "kptr_restrict%20%3D%201") };

/// The scenario, in both boots.
pub(super) fn kubelet(context: &mut Context) -> Result<()> {
    if let Ok(before) = fs::read_to_string(NOTE) {
        wait::until("systemd to finish starting", LIMIT, || {
            let jobs = run("systemctl", &["list-jobs", "--no-legend"])?;
            Ok(jobs.lines().all(|line| line.contains("holdfast-guest")).then_some(()))
        })?;
        kube::load_profile()?;
        kube::rejoin()?;
        context.check("an_apply_with_a_reboot", after_reboot(&before));
        return Ok(());
    }
    prepare(&[])?;
    kube::join(context)?;
    kube::load_profile()?;
    let crds = format!("{DEPLOY}/crds/machineconfiguration");
    kube::kubectl(&["apply", "--server-side", "-k", &crds])?;
    wait::until("the kinds of the Machine Config Operator", LIMIT, || {
        let lists = [
            "machineconfiguration.openshift.io/v1/machineconfigs",
            "operator.openshift.io/v1/machineconfigurations",
        ];
        Ok(lists.iter().try_for_each(|list| api::get(&format!("/apis/{list}")).map(drop)).ok())
    })?;
    apply_object(POLICY)?;
    apply_object(CONFIG)?;
    annotate("desiredConfig", CONFIG_NAME)?;
    let pod = kube::deploy(context, "overlays/manage")?;
    context.check("pod_is_ready", Ok(pod));
    context.check("the_first_config_is_compared_before_the_node_is_done", is_done(CONFIG_NAME));
    let manifest = configured(CONFIG, &RESTART);
    context.check("an_apply_with_a_restart", with_restart(&manifest));
    let manifest = configured(&manifest, &DRAIN);
    context.check("an_apply_with_a_drain", with_drain(&manifest));
    let manifest = configured(&manifest, &REBOOT);
    fs::write(NOTE, fs::read_to_string("/proc/sys/kernel/random/boot_id")?)?;
    apply_object(&manifest)?;
    annotate("desiredConfig", REBOOT.name)?;
    drained(REBOOT.name).with_context(seen)?;
    loop {
        // The boot ends here. If it does not, the host's time limit ends the scenario.
        std::thread::park();
    }
}

/// A manifest with another name and a change.
fn configured(manifest: &str, change: &Change) -> String {
    let (before, after) = change.replaces;
    let name = manifest.lines().find_map(|line| line.strip_prefix("  name: ")).unwrap_or_default();
    manifest
        .replace(&format!("  name: {name}\n"), &format!("  name: {}\n", change.name))
        .replace(before, after)
}

fn apply_object(manifest: &str) -> Result<()> {
    fs::write("/run/object.yaml", manifest)?;
    kube::kubectl(&["apply", "--server-side", "-f", "/run/object.yaml"]).map(drop)
}

/// Writes an annotation as a controller does.
fn annotate(name: &str, value: &str) -> Result<()> {
    kube::kubectl(&["annotate", "--overwrite", "node", NODE, &format!("{MCO}/{name}={value}")]).map(drop)
}

/// An annotation of the Node.
fn annotation(name: &str) -> Result<Option<String>> {
    let node = kube::get("node", NODE)?;
    Ok(node["metadata"]["annotations"][format!("{MCO}/{name}")].as_str().map(str::to_owned))
}

fn until(name: &str, wanted: &str) -> Result<()> {
    wait::until(&format!("the annotation {name} to be {wanted}"), LIMIT, || {
        Ok((annotation(name)?.as_deref() == Some(wanted)).then_some(()))
    })
    .with_context(seen)
}

/// What people would look at.
fn seen() -> String {
    let node = kube::get("node", NODE).unwrap_or_default();
    let unit = run("journalctl", &["-u", "holdfast-apply.service", "-n", "60", "--no-pager", "-o", "cat"]);
    format!("{}\n{}\n{}", node["metadata"]["annotations"], unit.unwrap_or_default(), kube::pods())
}

fn is_done(config: &str) -> Result<String> {
    until("currentConfig", config)?;
    until("state", "Done")?;
    let report = wait::until("the report to say in sync", LIMIT, || {
        Ok(kube::get("driftreport", NODE).ok().filter(|report| report["status"]["state"] == "InSync"))
    })?;
    ensure!(report["status"]["plan"].is_null(), "the plan stays: {report}");
    Ok(config.to_owned())
}

/// The service runs anew, and the file is the new one.
fn with_restart(manifest: &str) -> Result<String> {
    let invocation = || run("systemctl", &["show", "-P", "InvocationID", "ssh.service"]);
    let before = invocation()?;
    apply_object(manifest)?;
    annotate("desiredConfig", RESTART.name)?;
    is_done(RESTART.name)?;
    ensure!(
        fs::read_to_string("/etc/ssh/sshd_config.d/40-baseline.conf")?.contains("MaxAuthTries 3"),
        "the file"
    );
    ensure!(invocation()? != before, "ssh.service was not restarted");
    ensure!(annotation("desiredDrain")?.is_none(), "a drain was asked for");
    ensure!(!Path::new("/run/systemd/transient/holdfast-apply.service").exists(), "the unit stays");
    Ok(String::new())
}

/// Waits for the request for a drain, and answers it.
fn drained(config: &str) -> Result<Value> {
    until("desiredDrain", &format!("drain-{config}"))?;
    let report = kube::get("driftreport", NODE)?;
    ensure!(report["status"]["plan"]["config"] == config, "no plan in the report: {report}");
    annotate("lastAppliedDrain", &format!("drain-{config}"))?;
    Ok(report)
}

/// Nothing is written before the drain. Afterwards the reporter asks for the end of the cordon.
fn with_drain(manifest: &str) -> Result<String> {
    let before = fs::read_to_string("/etc/chrony.conf")?;
    apply_object(manifest)?;
    annotate("desiredConfig", DRAIN.name)?;
    until("desiredDrain", &format!("drain-{}", DRAIN.name))?;
    ensure!(fs::read_to_string("/etc/chrony.conf")? == before, "it wrote before the drain");
    let report = drained(DRAIN.name)?;
    is_done(DRAIN.name)?;
    until("desiredDrain", &format!("uncordon-{}", DRAIN.name))?;
    ensure!(fs::read_to_string("/etc/chrony.conf")?.contains("time3.example.com"), "the file");
    Ok(report["status"]["plan"].to_string())
}

/// The second boot: the sensor goes on with the apply, and proves the reboot.
fn after_reboot(before: &str) -> Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    ensure!(boot != before, "no reboot");
    is_done(REBOOT.name)?;
    until("desiredDrain", &format!("uncordon-{}", REBOOT.name))?;
    ensure!(fs::read_to_string("/etc/sysctl.d/90-baseline.conf")?.contains("kptr_restrict = 1"), "the file");
    Ok(String::new())
}
