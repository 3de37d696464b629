//! Holdfast in a control plane whose nodes have no kubelet.
//!
//! In: a running control plane. Out: a Node, the objects of `deploy/kustomize`, and the token that a kubelet would put into the
//! reporter's pod.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::ControlPlane;
use crate::dist;
use crate::run::output;

/// The namespace of Holdfast.
pub(crate) const NAMESPACE: &str = "holdfast-system";

/// A Node that has room for pods.
pub(crate) fn node(name: &str) -> Value {
    let room = json!({ "cpu": "2", "memory": "4Gi", "pods": "10" });
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name, "labels": { "kubernetes.io/os": "linux" } },
        "status": { "capacity": room, "allocatable": room },
    })
}

/// Installs what a folder of `deploy/kustomize` has.
pub(crate) fn apply(plane: &ControlPlane, manifests: &str) -> Result<()> {
    let folder = dist::root().join("deploy/kustomize").join(manifests);
    output(plane.kubectl().args(["apply", "-k"]).arg(folder)).map(drop)
}

/// The token of the reporter on a node, once the controllers have made its pod.
pub(crate) fn reporter_token(plane: &ControlPlane, node: &str) -> Result<String> {
    pod_and_token(plane, node).map(|(_, token)| token)
}

/// The same, after the name of the pod.
pub(crate) fn pod_and_token(plane: &ControlPlane, node: &str) -> Result<(String, String)> {
    // The controller's pod has another label.
    let mut kubectl = plane.kubectl();
    kubectl.args(["get", "pods", "--namespace", NAMESPACE, "--selector", "app.kubernetes.io/name=holdfast"]);
    let pods = output(kubectl.args(["--output", "json"]))?;
    let pods: Value = serde_json::from_str(&pods)?;
    let mut pods = pods["items"].as_array().context("no list of pods")?.iter();
    let pod = pods.find(|pod| pod["spec"]["nodeName"] == node).context("no pod on the node yet")?;
    let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
    let mut kubectl = plane.kubectl();
    kubectl.args(["create", "token", "holdfast-reporter", "--namespace", NAMESPACE]);
    let token = output(kubectl.args(["--bound-object-kind", "Pod", "--bound-object-name", name]))?;
    Ok((name.to_owned(), token.trim().to_owned()))
}
