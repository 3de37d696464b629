//! The `DaemonSet` on a real kubelet: a pod sees edits on its node, and the cluster shows who made them.
//!
//! In: a node that joins the control plane on the host, with the example config on its disk. Out: checks of the node's
//! `DriftReport` and conditions, as kubectl shows them, and of the alerts of Prometheus, while people and pods edit a file and
//! containers are killed. A second scenario has what people ask and allow, the refusals
//! beside the service, and the removal.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{kube_alerts, kube_apparmor, kube_people, kube_policy, kube_remove};
use crate::guest::kube::{self, NODE, kubectl};
use crate::guest::service::{CONFIG_NAME, CONFIGS, as_alice, prepare};
use crate::guest::{Context, capabilities, image, run, wait};

/// The file that is edited.
const FILE: &str = "/etc/chrony.conf";
/// How long a report may take in an emulated guest. The bench measures the time.
const LIMIT: Duration = Duration::from_mins(1);

/// The command lines of the containers' processes, for `pgrep -f`.
const SENSOR: &str = "^/holdfast agent";
const REPORTER: &str = "^/holdfast-cluster node";
/// The sensor's capabilities in the mode `observe`, by the numbers in `linux/capability.h`: `dac_read_search`, `sys_ptrace`, bpf.
pub(super) const KEPT: [u32; 3] = [2, 19, 39];

/// The edit and its repair.
const EDIT: &str = "sudo sed -i s/time1.example.com/time.attacker.example/ /etc/chrony.conf";
const REPAIR: &str = "sudo sed -i s/time.attacker.example/time1.example.com/ /etc/chrony.conf";

/// The scenario. Its notes are the story of `cargo xtask demo --cluster`, in the form that the scenario `demo` describes.
pub(super) fn kubelet(context: &mut Context) -> Result<()> {
    prepare(&[])?;
    store_as_operator()?;
    kube::join(context)?;
    context.check("node_is_ready", Ok(String::new()));
    kube::load_profile()?;
    let pod = kube::deploy(context, "overlays/vanilla")?;
    context.note(format!(
        "## A node of a cluster\n{}\n## Holdfast runs on it as a pod\n{}",
        shown(&["get", "nodes"])?,
        shown(&["-n", "holdfast-system", "get", "pods"])?
    ));
    context.check("pod_is_ready", Ok(pod.clone()));
    context.check("the_pod_runs_the_image_of_xtask_image", image::runs_in(&pod));
    context.check("sensor_runs_under_its_apparmor_profile", profile());
    context.check("that_profile_lets_it_read_all_and_write_only_its_own", kube_apparmor::profile_holds());
    context.check("sensor_keeps_three_capabilities_and_the_reporter_none", capabilities());
    context.check("the_quota_of_the_priority_counts_the_pod", quota());
    let report = state("InSync")?;
    context.note(format!("## The node matches its MachineConfig\n{}", shown(&["get", "driftreports"])?));
    context.check("report_says_in_sync", Ok(report["status"]["state"].to_string()));
    kube_alerts::healthy(context, &pod)?;
    context.note(format!("## alice logs in by ssh and edits a managed file\n$ ssh alice@{NODE} {EDIT}"));
    edit()?;
    let drifted = alice().with_context(kube::pods);
    context.note(format!(
        "## The cluster shows what drifted, and who did it\n{}",
        shown(&["get", "driftreports"])?
    ));
    context.check("report_names_path_and_login", drifted);
    let drifted = condition("True");
    context.note(format!("{}\n{}", shown(CONDITION)?, shown(EVENTS)?));
    context.check("condition_says_drift", drifted);
    context.check("prometheus_fires_the_alert_of_the_drift_alone", kube_alerts::drifted());
    context.check("prometheus_has_every_metric_of_the_alerts", kube_alerts::metrics());
    context.note(format!("## She restores the file\n$ ssh alice@{NODE} {REPAIR}"));
    repair()?;
    context.check("recovery_clears_the_report", in_sync());
    context.check("recovery_clears_the_condition", condition("False"));
    context.check("recovery_clears_the_alert", kube_alerts::cleared());
    context.note(format!("{}\n{}", shown(&["get", "driftreports"])?, shown(CONDITION)?));
    kube_people::plugin(context, FILE);
    kube::run_editor()?;
    let drifted = editor();
    context.note(format!(
        "## A pod of another team edits the file through a host path\n{}",
        shown(&["get", "driftreports"])?
    ));
    context.check("an_edit_from_another_pod_names_its_namespace_and_name", drifted);
    context.check("the_program_of_the_pod_repairs_the_file_on_the_node", repaired());
    context.check("recovery_clears_the_pods_edit", in_sync());
    for (container, program) in [("sensor", SENSOR), ("reporter", REPORTER)] {
        context.note(format!("## The container `{container}` is killed, and alice edits the file again"));
        let check = format!("a_killed_{container}_comes_back_and_an_edit_meanwhile_is_reported");
        let table = killed(container, program);
        if let Ok(table) = &table {
            context.note(format!("$ kubectl get driftreports\n{}", table.trim_end()));
        }
        context.check(&check, table);
    }
    kube_remove::taken_away(context);
    Ok(())
}

/// `kubectl holdfast`, policies, users; a deny rule that outlives the `DaemonSet`; the service beside the pod, the pod beside the service, and the removal.
pub(super) fn people(context: &mut Context) -> Result<()> {
    prepare(&[])?;
    store_as_operator()?;
    kube::join(context)?;
    kube::load_profile()?;
    // The reporter observes. The sensor's mode is for the deny rule, and saves a rollout before it.
    let manifests = kube::kustomization("base")? + kube_remove::MANAGE;
    let pod = kube::deploy_kustomization(context, &manifests);
    context.check("pod_is_ready", pod);
    context.check("report_says_in_sync", in_sync());
    edit()?;
    context.check("report_names_path_and_login", alice());
    repair()?;
    context.check("recovery_clears_the_report", in_sync());
    kube_people::plugin(context, FILE);
    kube::run_editor()?;
    context.check("an_edit_from_another_pod_names_its_namespace_and_name", editor());
    kube_policy::allowed(context, FILE);
    repair()?;
    context.check("recovery_clears_the_pods_edit", in_sync());
    kube_people::exec(context, FILE);
    restore("time.exec.example")?;
    context.check("an_edit_from_an_ephemeral_container_names_it_and_its_user", kube_people::debug(FILE));
    restore("time.debug.example")?;
    context.check("an_edit_by_kubectl_debug_of_the_node_matches_its_user", kube_people::debug_node(FILE));
    restore("time.node.example")?;
    context.check("a_service_beside_the_pod_is_refused", kube_remove::service_beside_pod());
    context.check("the_refused_service_leaves_the_pod_at_work", still_reports());
    let message = kube_apparmor::default_profile(&manifests);
    context.check("under_the_runtimes_apparmor_profile_the_sensor_ends_with_an_error_that_names_it", message);
    context.check("the_profile_of_the_sensor_lets_it_work_again", still_reports());
    kube_remove::deny_rule(context, FILE);
    kube_remove::removed(context, FILE);
    Ok(())
}

/// An edit is reported, and its repair.
fn still_reports() -> Result<String> {
    edit()?;
    let table = alice()?;
    repair()?;
    in_sync()?;
    Ok(table)
}

/// Makes the example config the one that the Machine Config Operator's daemon stored: without `kind` and `apiVersion`, and with no
/// other config on the node.
pub(super) fn store_as_operator() -> Result<()> {
    let config = format!("{CONFIGS}/{CONFIG_NAME}.yaml");
    let text = fs::read_to_string(&config).with_context(|| format!("cannot read {config}"))?;
    let is_stored = |line: &&str| !["apiVersion:", "kind:"].iter().any(|key| line.starts_with(key));
    fs::create_dir_all("/etc/machine-config-daemon")?;
    fs::write(
        "/etc/machine-config-daemon/currentconfig",
        text.lines().filter(is_stored).collect::<Vec<_>>().join("\n"),
    )?;
    fs::remove_dir_all(CONFIGS).context("cannot remove the configs of the service")
}

/// The condition `ConfigDrift` of the node, for kubectl.
const CONDITION: &[&str] =
    &["get", "node", NODE, "-o", "jsonpath={.status.conditions[?(@.type==\"ConfigDrift\")].message}"];
/// The Events about the node that are ours, for kubectl.
const EVENTS: &[&str] = &[
    "get",
    "events",
    "--field-selector",
    "reportingComponent=holdfast.dev/reporter",
    "-o",
    "custom-columns=REASON:.reason,MESSAGE:.message",
];

/// A command of kubectl with its output, as a note.
fn shown(arguments: &[&str]) -> Result<String> {
    Ok(format!("$ kubectl {}\n{}", arguments.join(" "), kube::kubectl(arguments)?.trim_end()))
}

/// Alice changes the file.
fn edit() -> Result<()> {
    as_alice(EDIT).map(drop)
}

/// Alice restores the file.
fn repair() -> Result<()> {
    as_alice(REPAIR).map(drop)
}

/// Alice restores the file after another edit.
fn restore(value: &str) -> Result<()> {
    as_alice(&format!("sudo sed -i s/{value}/time1.example.com/ {FILE}"))?;
    in_sync().map(drop)
}

/// Waits until the report is as wanted.
fn report(what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    kube::report(what, LIMIT, is_so, || {
        let last = kube::get("driftreport", NODE).unwrap_or_default();
        format!("report: {last}\n{}", kube::pods())
    })
}

fn state(state: &str) -> Result<Value> {
    report(&format!("the report to say {state}"), |status| status["state"] == state)
}

fn in_sync() -> Result<String> {
    let report = state("InSync")?;
    ensure!(report["status"]["count"] == 0, "{report}");
    Ok(String::new())
}

/// The report names the path, the login and the config; kubectl's table shows them.
fn alice() -> Result<String> {
    let report = report("the report to name the login", |status| {
        status["state"] == "Drifted" && status["drifts"][0]["by"]["loginUser"] == "alice"
    })?;
    let drift = &report["status"]["drifts"][0];
    ensure!(drift["path"] == FILE && drift["source"] == CONFIG_NAME, "{report}");
    table(&[FILE, "alice"])
}

/// The report names the pod that made the change, and no login.
fn editor() -> Result<String> {
    let report = report("the report to name the pod", |status| {
        status["state"] == "Drifted" && status["drifts"][0]["by"]["podName"] == "editor"
    })?;
    let by = &report["status"]["drifts"][0]["by"];
    ensure!(by["podNamespace"] == "team" && by["loginUser"].is_null(), "{report}");
    table(&[FILE, "team/editor"])
}

/// The table that kubectl prints, which has all of these texts.
fn table(texts: &[&str]) -> Result<String> {
    let table = kube::kubectl(&["get", "driftreports"])?;
    ensure!(table.contains(NODE) && texts.iter().all(|text| table.contains(text)), "{table}");
    Ok(table)
}

/// Waits until the node's condition has this status.
fn condition(wanted: &str) -> Result<String> {
    wait::until(&format!("the condition ConfigDrift to be {wanted}"), LIMIT, || {
        let node = kube::get("node", NODE)?;
        Ok((kube::condition(&node, "ConfigDrift").as_deref() == Some(wanted)).then_some(wanted.to_owned()))
    })
}

/// The profile under which the sensor runs.
fn profile() -> Result<String> {
    let pid = process(SENSOR)?;
    let profile = fs::read_to_string(format!("/proc/{pid}/attr/current"))?;
    ensure!(profile.trim() == "holdfast-sensor (enforce)", "{profile}");
    Ok(profile)
}

/// Both containers' processes have the capabilities that the docs name.
fn capabilities() -> Result<String> {
    let sensor = capabilities::are_exactly(&process(SENSOR)?, &KEPT).context("sensor")?;
    let reporter = capabilities::are_exactly(&process(REPORTER)?, &[]).context("reporter")?;
    Ok(format!("{sensor}; {reporter}"))
}

/// The quota of the overlay `vanilla` lets the pod have its priority, and counts it.
fn quota() -> Result<String> {
    wait::until("the quota to count the pod", LIMIT, || {
        let quota = kubectl(&["-n", "holdfast-system", "get", "resourcequota", "holdfast", "-o", "json"])?;
        let quota: Value = serde_json::from_str(&quota)?;
        Ok((quota["status"]["used"]["pods"] == "1").then(|| quota["status"].to_string()))
    })
}

/// The first process with this command line.
fn process(pattern: &str) -> Result<String> {
    let found = run("pgrep", &["-f", pattern])?;
    Ok(found.lines().next().with_context(|| format!("no process {pattern}"))?.to_owned())
}

/// Root on the node runs the program of the container, which the node itself does not have.
fn repaired() -> Result<String> {
    run(&format!("/proc/{}/exe", process(SENSOR)?), &["repair", "--yes", FILE])
}

/// Kills a container's program, and edits the file. kubelet starts the container again, and the report names the login.
fn killed(container: &str, program: &str) -> Result<String> {
    let before = kube::restarts(container)?;
    run("pkill", &["-KILL", "-f", program])?;
    edit()?;
    wait::until("the container to be started again", LIMIT, || {
        Ok((kube::restarts(container)? > before).then_some(()))
    })?;
    let table = alice()?;
    repair()?;
    in_sync()?;
    Ok(table)
}
