//! The service and the pod on one node refuse each other, and the removal that docs/kubernetes.md describes leaves nothing: neither
//! objects nor a deny rule, which outlives a deleted `DaemonSet`.
//!
//! In: a node with the `DaemonSet`'s pod, and the installed service that does not run. Out: checks of the refusals, of the node and
//! of the API after each step of the removal.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::guest::kube::{self, ADMIN, NODE, OVERLAY, kubectl};
use crate::guest::{Context, image, run, shell, wait};

/// How long a rollout may take in an emulated guest.
const LIMIT: Duration = Duration::from_secs(110);
const SERVICE: &str = "holdfast.service";
const NAMESPACE: &str = "holdfast-system";
/// What a sensor leaves on a host: its pinned programs, and its run directory.
const LEFT: [&str; 2] = ["/sys/fs/bpf/holdfast", "/run/holdfast"];
/// The state directory. After the purge it has the note of the log's end alone.
const STATE: &str = "/var/lib/holdfast";
/// The forensic log, which stays.
const LOG: &str = "/var/log/holdfast/forensic.jsonl";

/// The last rollout, as docs/kubernetes.md tells admins to do it.
const REMOVE: &str = r#"
resources: [../base]
components: [../components/apparmor, ../components/COMPONENT]
images:
- {name: holdfast, newName: localhost/holdfast, digest: "sha256:DIGEST"}
patches:
- target: {kind: DaemonSet}
  patch: |
    - {op: add, path: /spec/template/spec/initContainers/0/imagePullPolicy, value: Never}
    - {op: add, path: /spec/template/spec/containers/0/imagePullPolicy, value: Never}
- target: {kind: Deployment}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/imagePullPolicy, value: Never}
"#;

/// What the kustomization of the tests gets, so that deny rules are in force. The sensor's mode `observe` refuses nothing.
pub(super) const MANAGE: &str = r"
- target: {kind: DaemonSet}
  patch: |
    - {op: test, path: /spec/template/spec/containers/0/args/2, value: observe}
    - {op: replace, path: /spec/template/spec/containers/0/args/2, value: manage}
";

/// A policy of the cluster that refuses changes of the file.
const DENY: &str = r"apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: deny-time}
spec:
  rules:
  - {path: /etc/chrony.conf, action: deny}
";

/// The edit that the rule refuses, and its repair.
const EDIT: &str = "sed -i s/time1.example.com/time.deny.example/ /etc/chrony.conf";
const REPAIR: &str = "sed -i s/time.deny.example/time1.example.com/ /etc/chrony.conf";

/// systemd starts the service while the pod's sensor runs. The service ends with an error that names the pod.
pub(super) fn service_beside_pod() -> Result<String> {
    let pods = kube::daemonset_pods()?;
    let uid = pods["items"][0]["metadata"]["uid"].as_str().context("no pod")?;
    let started = run("systemctl", &["start", SERVICE]);
    // It would be started again and again.
    run("systemctl", &["stop", SERVICE])?;
    ensure!(started.is_err(), "the service started beside the pod");
    // systemd sets the mode of the service's directory. The pod's reporter has to find the socket in it.
    let mode = fs::metadata(LEFT[1])?.permissions().mode() & 0o777;
    ensure!(mode == 0o711, "{} has the mode {mode:o}", LEFT[1]);
    let journal = run("journalctl", &["-u", SERVICE, "-n", "30", "--no-pager", "-o", "cat"])?;
    let wanted = format!("in the pod {uid}");
    let line = journal.lines().find(|line| line.contains(&wanted));
    line.map(str::to_owned).with_context(|| format!("no line with `{wanted}`:\n{journal}"))
}

/// A deny rule of the cluster is in force, and stays so without the `DaemonSet`.
pub(super) fn deny_rule(context: &mut Context, file: &str) {
    context.check("a_deny_rule_of_the_cluster_refuses_an_edit", in_force(file));
    context.check("a_deny_rule_outlives_the_deleted_daemonset", outlives(file));
}

fn in_force(file: &str) -> Result<String> {
    const MANIFEST: &str = "/run/deny.yaml";
    fs::write(MANIFEST, DENY)?;
    kubectl(&["apply", "-f", MANIFEST])?;
    let taken = wait::until("the policy to be in force", LIMIT, || {
        let report = kube::get("driftreport", NODE)?;
        let policies = &report["status"]["policies"];
        Ok((policies[0]["name"] == "deny-time" && policies[0]["state"] == "InForce").then_some(()))
    });
    taken.with_context(|| format!("{:?}\n{}", kube::get("driftreport", NODE), kube::pods()))?;
    // The sensor has accepted the policy, and writes the rule into the kernel's map in its next turn.
    wait::until("the kernel to refuse", LIMIT, || {
        let opened = OpenOptions::new().append(true).open(file);
        Ok(opened.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied).then_some(()))
    })?;
    refused(file)
}

fn outlives(file: &str) -> Result<String> {
    kubectl(&["-n", NAMESPACE, "delete", "daemonset", "holdfast"])?;
    wait::until("the DaemonSet's pod to be gone", LIMIT, || {
        let pods = kube::daemonset_pods()?;
        Ok(pods["items"].as_array().is_some_and(Vec::is_empty).then_some(()))
    })?;
    refused(file)
}

/// The kernel refuses the edit, and the file stays as it is.
fn refused(file: &str) -> Result<String> {
    let before = fs::read_to_string(file)?;
    let Err(error) = shell(EDIT) else { bail!("`{EDIT}` was not refused") };
    let text = format!("{error:#}");
    ensure!(text.contains("not permitted") && fs::read_to_string(file)? == before, "{text}");
    Ok(text)
}

/// Nothing refuses the edit any more.
fn edited(file: &str) -> Result<String> {
    shell(EDIT)?;
    ensure!(fs::read_to_string(file)?.contains("time.deny.example"), "{file} has not changed");
    shell(REPAIR)
}

/// The removal of a node that has a deny rule, and on which the service runs then.
pub(super) fn removed(context: &mut Context, file: &str) {
    context.check("the_component_remove_detaches_the_node_and_keeps_its_state", detached());
    context.check("the_removal_ends_the_deny_rule", edited(file));
    context.check("the_component_purge_deletes_the_state_of_a_detached_node", purged());
    context.check("the_command_remove_takes_back_what_the_reporter_wrote", taken_back());
    context.check("a_pod_beside_the_service_is_refused", pod_beside_service());
    context.check("the_deleted_manifests_leave_no_object", deleted());
}

/// The steps of the removal alone, in their order.
pub(super) fn taken_away(context: &mut Context) {
    context.check("the_component_purge_detaches_the_node_and_deletes_its_state", detached_and_purged());
    context.check("the_command_remove_takes_back_what_the_reporter_wrote", taken_back());
    context.check("the_deleted_manifests_leave_no_object", deleted());
}

/// The component `remove` replaces the sensor's pod by one that detaches.
fn detached() -> Result<String> {
    is_attached()?;
    let mut state = names(STATE)?;
    // The policies of the cluster are put aside.
    state.retain(|name| name != "cluster-policies.json");
    let log = last_rollout("remove")?;
    is_detached(&log)?;
    ensure!(log.contains("detached "), "{log}");
    let left = names(STATE)?;
    ensure!(state.iter().all(|name| left.contains(name)), "{left:?} of {state:?} in {STATE}: {log}");
    ensure!(left.iter().any(|name| name == "apply"), "{left:?} in {STATE}: {log}");
    Ok(log)
}

/// The component `purge`, which contains `remove`, on a node whose pod has detached.
fn purged() -> Result<String> {
    let log = last_rollout("purge")?;
    is_purged(&log)?;
    Ok(log)
}

/// The same on a node whose sensor runs.
fn detached_and_purged() -> Result<String> {
    is_attached()?;
    let log = purged()?;
    ensure!(log.contains("detached "), "{log}");
    Ok(log)
}

/// Applies the manifests with a component, and waits for the pod that it makes. Gives the log of that pod.
fn last_rollout(component: &str) -> Result<String> {
    kube::apply(&image::in_kustomization(&REMOVE.replace("COMPONENT", component))?)?;
    let is_wanted = |pod: &Value| {
        let purges = pod["spec"]["initContainers"][0]["args"].to_string().contains("--purge");
        pod["spec"]["containers"][0]["name"] == "done" && purges == (component == "purge")
    };
    let log = wait::until("the pod that detaches to be ready", LIMIT, || {
        let pods = kube::daemonset_pods()?;
        let ready = |pod: &&Value| kube::condition(pod, "Ready") == Some("True".to_owned());
        let mut wanted = pods["items"].as_array().into_iter().flatten().filter(|pod| is_wanted(pod));
        let name = wanted.find(ready).and_then(|pod| pod["metadata"]["name"].as_str());
        name.map(|name| kubectl(&["-n", NAMESPACE, "logs", name, "-c", "detach"])).transpose()
    });
    log.with_context(kube::pods)
}

fn is_attached() -> Result<()> {
    for path in LEFT {
        ensure!(Path::new(path).exists(), "{path} does not exist before the removal");
    }
    Ok(())
}

fn is_detached(log: &str) -> Result<()> {
    for path in LEFT {
        ensure!(!Path::new(path).exists(), "{path} is left: {log}");
    }
    Ok(())
}

fn is_purged(log: &str) -> Result<()> {
    is_detached(log)?;
    let left = names(STATE)?;
    ensure!(left == ["forensic-end.json"], "{left:?} in {STATE}: {log}");
    ensure!(Path::new(LOG).exists(), "{LOG} is gone: {log}");
    Ok(())
}

/// The names in a directory.
fn names(directory: &str) -> Result<Vec<OsString>> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect()
}

/// `holdfast-cluster remove` removes conditions, report and Lease.
fn taken_back() -> Result<String> {
    let printed = shell(&format!("KUBECONFIG={ADMIN} {}/holdfast-cluster remove", image::files()?))?;
    let node = kube::get("node", NODE)?;
    for kind in ["ConfigDrift", "holdfast.dev/SensorReady"] {
        ensure!(kube::condition(&node, kind).is_none(), "the Node still has {kind}: {printed}");
    }
    for (kind, namespace) in [("driftreports", "default"), ("leases", NAMESPACE)] {
        let left = kubectl(&["-n", namespace, "get", kind, "-o", "name"])?;
        ensure!(left.trim().is_empty(), "left: {left}");
    }
    Ok(printed)
}

/// The service runs; the pod's sensor ends with an error that names it, and `kubectl describe pod` shows the error.
fn pod_beside_service() -> Result<String> {
    // The purge removed the configs that Holdfast had kept, so the service reads that of the operator's daemon.
    run("systemctl", &["start", SERVICE])?;
    kube::apply(&kube::kustomization("base")?)?;
    let message = kube::error_of_sensor(|_| true);
    let is_active = run("systemctl", &["is-active", SERVICE]);
    run("systemctl", &["stop", SERVICE])?;
    let message = message?;
    is_active.context("the service does not run any more")?;
    ensure!(message.contains(&format!("of {SERVICE}")), "{message}");
    Ok(message)
}

/// `kubectl delete -k` removes the rest.
fn deleted() -> Result<String> {
    kubectl(&["delete", "-k", OVERLAY, "--timeout=240s"])?;
    let ours = "crd,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,namespaces";
    let left = kubectl(&["get", ours, "-A", "-o", "name"])?;
    if let Some(object) = left.lines().find(|object| is_left(object)) {
        bail!("left: {object}");
    }
    Ok(String::new())
}

/// Whether an object is of the manifests. The scenario itself binds the right to read metrics to Prometheus.
fn is_left(object: &str) -> bool {
    object.contains("holdfast") && !object.ends_with("/holdfast-metrics")
}
