//! The mode `manage` on a real kubelet: the `DaemonSet` applies what the annotations of its Node ask for. `processes` has the same applies without one.
//!
//! In: a node that joins the control plane on the host. The scenario plays the controllers: it makes MachineConfigs, writes
//! `desiredConfig`, and answers requests for a drain. Out: a check for an apply with a restart, one with a drain, one through a rollout
//! of the `DaemonSet`, and one with a reboot, which ends in the second boot; and checks of the plan that the cluster shows.

mod node;
mod planned;
pub(super) mod processes;
mod rollout;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::guest::kube::{self, DEPLOY, NODE};
use crate::guest::service::{CONFIG, CONFIG_NAME, prepare};
use crate::guest::{Context, api, image, run, wait};
use node::{
    DRAIN, LIMIT, REBOOT, RESTART, ROLLOUT, annotate, annotation, apply_object, configured, is_done, seen,
    until,
};
use planned::Asked;

/// The boot id of the first boot.
const NOTE: &str = "/var/lib/holdfast-scenario-boot";
/// The policy of the cluster: one file needs a restart, one a drain, and every other change a reboot.
const POLICY: &str = "apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\nmetadata: {name: cluster}\nspec:\n  \
     nodeDisruptionPolicy:\n    files:\n    - path: /etc/ssh/sshd_config.d/40-baseline.conf\n      actions:\n      - {type: Restart, \
     restart: {serviceName: ssh.service}}\n    - path: /etc/chrony.conf\n      actions:\n      - {type: Drain}\n";

/// The scenario, in both boots.
pub(super) fn kubelet(context: &mut Context) -> Result<()> {
    if let Some(before) = first_boot()? {
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
    begin()?;
    let pod = kube::deploy(context, "overlays/manage")?;
    context.check("the_pod_runs_the_image_of_xtask_image", image::runs_in(&pod));
    context.check("pod_is_ready", Ok(pod));
    context.check("the_first_config_is_compared_before_the_node_is_done", is_done(CONFIG_NAME));
    let manifest = configured(&applies(context, Asked::Node), &ROLLOUT);
    let survived = rollout::of_the_daemonset(&manifest);
    context.check("an_apply_survives_a_rollout_and_a_crash_and_the_new_pods_sensor_ends_it", survived);
    ends_in_reboot(&manifest)
}

/// The boot id of the first boot, in the second one.
fn first_boot() -> Result<Option<String>> {
    match fs::read_to_string(NOTE) {
        Ok(before) => Ok(Some(before)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context(NOTE),
    }
}

/// Makes the kinds of the operator, the policy of the cluster, and the config that the node should have.
fn begin() -> Result<()> {
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
    annotate("desiredConfig", CONFIG_NAME)
}

/// Applies without a reboot. Gives the manifest of the last config.
fn applies(context: &mut Context, asked: Asked) -> String {
    let manifest = configured(CONFIG, &RESTART);
    context.check("an_apply_with_a_restart", with_restart(&manifest));
    context
        .check("kubectl_holdfast_plan_says_that_nothing_is_planned", planned::nothing(RESTART.name, asked));
    let manifest = configured(&manifest, &DRAIN);
    let shown = planned::while_drift_blocks(&manifest, asked);
    context.check("kubectl_holdfast_plan_shows_the_plan_that_drift_blocks", shown);
    context.check("an_apply_with_a_drain", with_drain(&manifest, asked));
    manifest
}

/// An apply whose reboot ends this boot.
fn ends_in_reboot(manifest: &str) -> Result<()> {
    let manifest = configured(manifest, &REBOOT);
    fs::write(NOTE, fs::read_to_string("/proc/sys/kernel/random/boot_id")?)?;
    apply_object(&manifest)?;
    annotate("desiredConfig", REBOOT.name)?;
    drained(REBOOT.name).with_context(seen)?;
    loop {
        // The boot ends here. If it does not, the host's time limit ends the scenario.
        std::thread::park();
    }
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
fn with_drain(manifest: &str, asked: Asked) -> Result<String> {
    let before = fs::read_to_string("/etc/chrony.conf")?;
    apply_object(manifest)?;
    annotate("desiredConfig", DRAIN.name)?;
    until("desiredDrain", &format!("drain-{}", DRAIN.name))?;
    ensure!(fs::read_to_string("/etc/chrony.conf")? == before, "it wrote before the drain");
    planned::is_shown(DRAIN.name, &["drain", "write"], true, asked)
        .context("the plan of a node that is drained")?;
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
