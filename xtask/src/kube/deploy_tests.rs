//! The objects in `deploy`, with the API server: what an admin applies, and what the command `remove` takes away again.

use super::KubeAssets;
use super::assets::tested;
use super::control_plane::{ClientPlace, ControlPlane, Wanted};
use super::installed::NAMESPACE;
use crate::cache::Cache;
use crate::dist;
use crate::run::output;
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Longest time until the controllers have done something, on a machine that is busy with compilers.
const LIMIT: Duration = Duration::from_mins(2);

const MANAGER: &str = "--field-manager=holdfast-reporter";

struct Cluster {
    plane: ControlPlane,
    folder: TempDir,
}

impl Cluster {
    fn start(name: &str, apiserver: &[&str]) -> Self {
        let assets = KubeAssets::cached(&Cache::open().unwrap(), &tested()).unwrap();
        let wanted = Wanted { name, nodes: &[], apiserver };
        let plane = ControlPlane::start(&assets, wanted).unwrap();
        Self { plane, folder: tempfile::tempdir().unwrap() }
    }

    fn kubectl(&self, line: &str) -> Result<String> {
        output(self.plane.kubectl().args(line.split(' ')))
    }

    /// `kubectl` with these words and a file with the object.
    fn with(&self, line: &str, object: &Value) -> Result<String> {
        let file = self.folder.path().join("object.json");
        fs::write(&file, object.to_string())?;
        output(self.plane.kubectl().args(line.split(' ')).arg("-f").arg(file))
    }

    fn get(&self, line: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.kubectl(&format!("get {line} --output json"))?)?)
    }

    fn node(&self, name: &str) {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
        self.with("create", &node).unwrap();
    }
}

fn deploy(path: &str) -> PathBuf {
    dist::root().join("deploy").join(path)
}

/// A kind of another product. It accepts every field: its own rules are not ours.
pub(super) fn foreign(group: &str, version: &str, kind: &str, scope: &str) -> Value {
    let singular = kind.to_lowercase();
    let plural = if singular.ends_with('s') { singular.clone() } else { format!("{singular}s") };
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group,
            "scope": scope,
            "names": { "kind": kind, "plural": plural, "singular": singular },
            "versions": [{
                "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
            }],
        },
    })
}

/// The folders below one of `deploy/kustomize`.
fn folders(of: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(deploy("kustomize").join(of))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn the_api_server_accepts_each_overlay_and_the_base_with_each_component() {
    let cluster = Cluster::start("overlays", &[]);
    for (group, version, kind, scope) in [
        ("security.openshift.io", "v1", "SecurityContextConstraints", "Cluster"),
        ("monitoring.coreos.com", "v1", "PodMonitor", "Namespaced"),
        ("monitoring.coreos.com", "v1", "PrometheusRule", "Namespaced"),
    ] {
        let object = foreign(group, version, kind, scope);
        cluster.with("create", &object).unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        cluster.kubectl(&format!("wait --for=condition=Established crd/{name} --timeout=120s")).unwrap();
    }
    // The definition of another product, whose own rules check our example.
    let definition = dist::root().join("cluster/tests/data/nodereadinessrules.yaml");
    cluster.kubectl(&format!("create -f {}", definition.display())).unwrap();
    let name = "crd/nodereadinessrules.readiness.node.x-k8s.io";
    cluster.kubectl(&format!("wait --for=condition=Established {name} --timeout=120s")).unwrap();
    let rule = deploy("examples/node-readiness-rule.yaml");
    let apply = "apply --server-side --dry-run=server --validate=strict";
    // The API server serves a new kind a moment after it is established.
    let accepted = || cluster.kubectl(&format!("{apply} -f {}", rule.display())).map(drop);
    cluster.plane.until(LIMIT, accepted).unwrap();
    // Nothing of a dry run stays, and objects in a namespace need it.
    cluster.kubectl(&format!("create namespace {NAMESPACE}")).unwrap();

    let overlays = folders("overlays");
    assert!(overlays.len() >= 3, "{overlays:?}");
    let mut all: Vec<PathBuf> = overlays.iter().map(|name| deploy("kustomize/overlays").join(name)).collect();
    all.push(deploy("kustomize/base"));
    // A component is no object by itself. Kustomize takes relative paths only.
    let work = tempfile::tempdir_in(deploy("kustomize")).unwrap();
    for name in folders("components") {
        let folder = work.path().join(&name);
        fs::create_dir(&folder).unwrap();
        let text = json!({ "resources": ["../../base"], "components": [format!("../../components/{name}")] });
        fs::write(folder.join("kustomization.yaml"), text.to_string()).unwrap();
        all.push(folder);
    }
    for folder in all {
        let mut kubectl = cluster.plane.kubectl();
        kubectl.args(["apply", "--server-side", "--dry-run=server", "--validate=strict", "-k"]).arg(&folder);
        let accepted = output(&mut kubectl).unwrap();
        assert!(accepted.contains("daemonset.apps/holdfast serverside-applied"), "{accepted}");
    }
    cluster.plane.check().unwrap();
}

/// The pod that the component `remove` makes of the sensor's pod detaches, and has neither a token nor the reporter.
#[test]
fn the_last_rollout_replaces_sensor_and_reporter_of_each_node() {
    let patch = fs::read_to_string(deploy("kustomize/components/remove/daemonset.yaml")).unwrap();
    assert_eq!(patch.matches("- $patch: replace").count(), 2, "containers and volumes");
    assert_eq!(patch.matches("\"detach\", \"--enter-host\"").count(), 2, "before and after the pod is ready");
    assert!(!patch.contains("token") && !patch.contains("reporter"), "{patch}");
}

/// The log is evidence, so no component deletes it.
#[test]
fn the_component_purge_deletes_the_state_but_not_the_log_in_both_runs_of_the_last_rollout() {
    let component = fs::read_to_string(deploy("kustomize/components/purge/kustomization.yaml")).unwrap();
    assert!(component.contains("components:\n- ../remove\n"), "{component}");
    assert_eq!(component.matches("args/-, value: --purge}").count(), 2, "before and after the pod is ready");
    assert!(!component.contains("--purge-log"), "{component}");
}

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn policies_from_files_guard_nodes_although_the_api_has_no_policy() {
    for policies in ["policies", "policies-manage"] {
        guards_from_files(policies);
    }
}

/// An API server takes the policies of this folder from files. They refuse a token without a node, and that of another node.
fn guards_from_files(policies: &str) {
    let folder = tempfile::tempdir().unwrap();
    let config = fs::read_to_string(deploy("admission/static/admission-configuration.yaml")).unwrap();
    let policies = deploy("admission/static").join(policies);
    let installed = "/etc/kubernetes/admission/holdfast";
    assert_eq!(config.matches(installed).count(), 1, "{config}");
    let file = folder.path().join("admission.yaml");
    fs::write(&file, config.replace(installed, policies.to_str().unwrap())).unwrap();
    let flag = format!("--admission-control-config-file={}", file.display());
    let cluster = Cluster::start("static-policies", &[&flag]);
    cluster.node("n1");
    cluster.node("n2");
    for name in ["namespace", "rbac"] {
        let file = deploy(&format!("kustomize/base/{name}.yaml"));
        cluster.kubectl(&format!("apply -f {}", file.display())).unwrap();
    }
    let status = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" },
        "status": { "conditions": [{ "type": "ConfigDrift", "status": "False", "reason": "X", "message": "x" }] },
    });
    let apply = format!("apply --server-side --subresource=status {MANAGER}");
    // The reporter without a pod, and so without a node.
    let account = format!("--as=system:serviceaccount:{NAMESPACE}:holdfast-reporter");
    let error = cluster.with(&format!("{apply} {account}"), &status).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("'holdfast-reporter-node.static.k8s.io'"), "{error}");
    assert!(error.contains("denied request: the reporter's token names no node"), "{error}");
    let mut pod = reporter("holdfast-x", Some("n1"));
    pod["spec"]["serviceAccountName"] = json!("holdfast-reporter");
    cluster.with("create", &pod).unwrap();
    let bound = "--bound-object-kind Pod --bound-object-name holdfast-x";
    let token = cluster.kubectl(&format!("create token holdfast-reporter --namespace {NAMESPACE} {bound}"));
    let config = cluster.plane.config_with("n1", token.unwrap().trim(), ClientPlace::Host).unwrap();
    let kubeconfig = folder.path().join("n1.kubeconfig");
    fs::write(&kubeconfig, config).unwrap();
    let by_reporter = |node: &str| {
        let mut object = status.clone();
        object["metadata"]["name"] = json!(node);
        let file = folder.path().join("status.json");
        fs::write(&file, object.to_string()).unwrap();
        output(
            cluster.plane.kubectl().env("KUBECONFIG", &kubeconfig).args(apply.split(' ')).arg("-f").arg(file),
        )
    };
    by_reporter("n1").unwrap();
    let error = format!("{:#}", by_reporter("n2").unwrap_err());
    assert!(error.contains("the reporter of n1 may not change the Node n2"), "{error}");
    // Everybody else is none of the policy's business.
    cluster.with(&apply, &status).unwrap();
    let policies = cluster.get("validatingadmissionpolicies").unwrap();
    assert_eq!(policies["items"], json!([]));
    cluster.plane.check().unwrap();
}

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn remove_takes_what_reporters_wrote_and_leaves_what_others_wrote() {
    let cluster = Cluster::start("remove", &[]);
    let crds = deploy("crds/driftreports.holdfast.dev.yaml");
    cluster.kubectl(&format!("apply -f {}", crds.display())).unwrap();
    cluster.kubectl("wait --for=condition=Established crd/driftreports.holdfast.dev --timeout=120s").unwrap();
    cluster.kubectl(&format!("create namespace {NAMESPACE}")).unwrap();
    for name in ["n1", "n2", "n3", "n4", "n5", "n6"] {
        cluster.node(name);
    }
    write_traces(&cluster);
    write_of_others(&cluster);

    // A reporter that still runs would write it again.
    cluster.plane.until(LIMIT, || cluster.with("create", &reporter("holdfast-x", None)).map(drop)).unwrap();
    let error = format!("{:#}", remove(&cluster).unwrap_err());
    assert!(error.contains("the reporter in the pod holdfast-x"), "{error}");
    assert!(condition(&cluster.get("node n1").unwrap(), "ConfigDrift").is_ok());
    cluster.kubectl(&format!("delete pod holdfast-x --namespace {NAMESPACE} --wait")).unwrap();

    // No kubelet of n5 confirms that this one has ended, and none has ever said that the Node is ready.
    cluster.with("create", &reporter("holdfast-y", Some("n5"))).unwrap();
    let error = format!("{:#}", remove(&cluster).unwrap_err());
    assert!(error.contains("the reporter in the pod holdfast-y on the node n5 still runs"), "{error}");
    cluster.kubectl(&format!("delete pod holdfast-y --namespace {NAMESPACE} --wait=false")).unwrap();

    let before = cluster.get("node n3").unwrap();
    let text = remove(&cluster).unwrap();
    assert!(
        text.starts_with("note: the node n5 is off, so the end of its pod holdfast-y is not confirmed"),
        "{text}"
    );
    cluster.kubectl(&format!("delete pod holdfast-y --namespace {NAMESPACE} --force")).unwrap();
    for line in [
        "Node n1: removed condition ConfigDrift, condition holdfast.dev/SensorReady",
        "Node n2: removed condition ConfigDrift, annotation holdfast.dev/state, taint holdfast.dev/drifted:NoSchedule",
        "Node n4: removed cordon, annotation machineconfiguration.openshift.io/desiredDrain",
        "Node n6: removed annotation holdfast.dev/plan",
        "Lease n1: removed",
        "DriftReport n1: removed",
    ] {
        assert!(text.lines().any(|found| found == line), "no line `{line}` in\n{text}");
    }
    nothing_is_left(&cluster).unwrap();
    others_are_left(&cluster).unwrap();
    the_operators_daemon_can_start(&cluster).unwrap();
    // Holdfast comes back, leads an update, and is removed again.
    cluster
        .with(&format!("apply --server-side --force-conflicts {MANAGER}"), &updated("rendered-c"))
        .unwrap();
    assert_eq!(remove(&cluster).unwrap(), "Node n6: removed annotation holdfast.dev/plan\n");
    let left = cluster.get("node n6").unwrap();
    assert_eq!(
        left["metadata"]["annotations"]["machineconfiguration.openshift.io/currentConfig"],
        "rendered-c"
    );
    assert_eq!(left["metadata"]["annotations"]["machineconfiguration.openshift.io/reason"], "");
    assert_eq!(cluster.get("node n4").unwrap()["spec"]["unschedulable"], Value::Null);
    assert_eq!(cluster.get("node n3").unwrap(), before, "a Node without traces is not written");
    let again = remove(&cluster).unwrap();
    assert_eq!(again, "Nothing of Holdfast was there.\n");
    cluster.plane.check().unwrap();
}

/// A pod of the `DaemonSet`.
fn reporter(name: &str, node: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "app.kubernetes.io/name": "holdfast" } },
        "spec": { "nodeName": node, "containers": [{ "name": "reporter", "image": "holdfast" }] },
    })
}

fn remove(cluster: &Cluster) -> Result<String> {
    let mut command = Command::new(dist::target_dir().join("debug/holdfast-cluster"));
    output(command.arg("remove").env("KUBECONFIG", cluster.plane.admin_config()).env_remove("RUST_LOG"))
}

fn conditions(kinds: &[&str]) -> Value {
    let condition = |kind: &&str| json!({ "type": kind, "status": "True", "reason": "X", "message": "x" });
    json!({ "conditions": kinds.iter().map(condition).collect::<Vec<_>>() })
}

/// What reporters write: on n1 by their applies, on n2 also without them, on n4 in the mode `manage` with a drain.
fn write_traces(cluster: &Cluster) {
    for (name, kinds) in [("n1", &["ConfigDrift", "holdfast.dev/SensorReady"][..]), ("n2", &["ConfigDrift"])]
    {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name }, "status": conditions(kinds),
        });
        cluster.with(&format!("apply --server-side --subresource=status {MANAGER}"), &node).unwrap();
    }
    // Another writer took the condition of n2 over.
    let taken = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n2" }, "status": conditions(&["ConfigDrift"]),
    });
    let apply = "apply --server-side --subresource=status --force-conflicts --field-manager=else";
    cluster.with(apply, &taken).unwrap();
    cluster.kubectl("annotate node n2 holdfast.dev/state=x").unwrap();
    cluster.kubectl("taint node n2 holdfast.dev/drifted=:NoSchedule").unwrap();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "n1", "namespace": NAMESPACE }, "spec": { "holderIdentity": "holdfast-x" },
    });
    cluster.with(&format!("apply --server-side {MANAGER}"), &lease).unwrap();
    let report = json!({
        "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftReport", "metadata": { "name": "n1" },
    });
    cluster.with(&format!("apply --server-side {MANAGER}"), &report).unwrap();
    let drained = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "n4", "annotations": { "machineconfiguration.openshift.io/desiredDrain": "drain-b" } },
    });
    cluster.with(&format!("apply --server-side {MANAGER}"), &drained).unwrap();
    cluster.kubectl("cordon n4").unwrap();
    // Holdfast has applied a config, and is the only one that wrote these annotations.
    cluster.with(&format!("apply --server-side {MANAGER}"), &updated("rendered-b")).unwrap();
    cluster.kubectl("annotate node n6 machineconfiguration.openshift.io/desiredConfig=rendered-b").unwrap();
}

/// The Node n6 after an update to this config by a reporter.
fn updated(config: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "n6", "annotations": {
            "machineconfiguration.openshift.io/currentConfig": config, "machineconfiguration.openshift.io/state": "Done",
            "machineconfiguration.openshift.io/reason": "", "holdfast.dev/plan": "{}",
        } },
    })
}

/// What others write beside it.
fn write_of_others(cluster: &Cluster) {
    for name in ["n1", "n2"] {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name }, "status": conditions(&["Ready"]),
        });
        cluster.with("apply --server-side --subresource=status --field-manager=kubelet", &node).unwrap();
        cluster.kubectl(&format!("annotate node {name} example.com/note=mine")).unwrap();
        cluster.kubectl(&format!("label node {name} holdfast.dev/pool=mine")).unwrap();
        cluster.kubectl(&format!("taint node {name} example.com/dedicated=x:NoSchedule")).unwrap();
    }
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "election", "namespace": NAMESPACE }, "spec": { "holderIdentity": "x" },
    });
    cluster.with("apply --server-side --field-manager=else", &lease).unwrap();
}

fn condition<'a>(node: &'a Value, kind: &str) -> Result<&'a Value> {
    let mut all = node["status"]["conditions"].as_array().into_iter().flatten();
    all.find(|condition| condition["type"] == kind).with_context(|| format!("no condition {kind}"))
}

fn nothing_is_left(cluster: &Cluster) -> Result<()> {
    for name in ["n1", "n2"] {
        let node = cluster.get(&format!("node {name} --show-managed-fields"))?;
        for kind in ["ConfigDrift", "holdfast.dev/SensorReady"] {
            ensure!(condition(&node, kind).is_err(), "{name} has the condition {kind}");
        }
        let annotations = node["metadata"]["annotations"].as_object().context("no annotations")?;
        ensure!(!annotations.keys().any(|key| key.starts_with("holdfast.dev/")), "{annotations:?}");
        let taints = node["spec"]["taints"].as_array().context("no taints")?;
        let ours = |taint: &Value| taint["key"].as_str().is_some_and(|key| key.starts_with("holdfast.dev/"));
        ensure!(!taints.iter().any(ours), "{taints:?}");
        let managers = node["metadata"]["managedFields"].to_string();
        ensure!(!managers.contains("holdfast-reporter"), "{managers}");
    }
    if cluster.get("driftreports")?["items"] != json!([]) {
        bail!("a DriftReport is left");
    }
    ensure!(cluster.get(&format!("lease n1 --namespace {NAMESPACE}")).is_err(), "the Lease is left");
    Ok(())
}

/// The daemon of the Machine Config Operator does not start on a node without these annotations.
fn the_operators_daemon_can_start(cluster: &Cluster) -> Result<()> {
    let node = cluster.get("node n6 --show-managed-fields")?;
    let annotations = &node["metadata"]["annotations"];
    for (name, value) in [("currentConfig", "rendered-b"), ("state", "Done"), ("desiredConfig", "rendered-b")]
    {
        ensure!(
            annotations[format!("machineconfiguration.openshift.io/{name}")] == value,
            "{name}: {annotations}"
        );
    }
    ensure!(annotations["holdfast.dev/plan"].is_null(), "{annotations}");
    ensure!(!node["metadata"]["managedFields"].to_string().contains("holdfast-reporter"), "{node}");
    Ok(())
}

fn others_are_left(cluster: &Cluster) -> Result<()> {
    for name in ["n1", "n2"] {
        let node = cluster.get(&format!("node {name}"))?;
        ensure!(condition(&node, "Ready")?["status"] == "True", "{node}");
        ensure!(node["metadata"]["annotations"]["example.com/note"] == "mine", "{node}");
        ensure!(node["metadata"]["labels"]["holdfast.dev/pool"] == "mine", "a label is an admin's: {node}");
        let taints = node["spec"]["taints"].as_array().context("no taints")?;
        ensure!(taints.iter().any(|taint| taint["key"] == "example.com/dedicated"), "{taints:?}");
    }
    cluster.get(&format!("lease election --namespace {NAMESPACE}")).map(drop)
}
