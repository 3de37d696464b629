//! A Kubernetes node: containerd and kubelet in the guest, and the control plane on the host.
//!
//! In: kubeconfigs, container images and manifests that the host puts into the guest. Out: a node that the cluster knows as ready,
//! and answers of kubectl. The API server listens on the host's loopback, which the guest reaches through the emulator's gateway.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

pub use super::api::HOST;
use super::files::{MODULES, load_module};
pub use super::image::{ARCHIVE, DIGEST};
use super::{Context, api, image, run, shell, wait};

/// Where the host puts the kubeconfigs.
pub const ADMIN: &str = "/etc/kubernetes/admin.kubeconfig";
/// The kubeconfig of kubelet.
pub const KUBELET: &str = "/etc/kubernetes/kubelet.kubeconfig";
/// The file with the port of the API server on the host's loopback.
pub const PORT: &str = "/etc/kubernetes/port";
/// The file with the port of the audit log on the host's loopback.
pub const AUDIT: &str = "/etc/kubernetes/audit";
/// The port of the kubelet.
pub const KUBELET_PORT: u16 = 10250;
/// The folder of the container images beside the product's own, as archives.
pub const IMAGES: &str = "/opt/holdfast/images";
/// The folder of the manifests: that of `deploy/`.
pub const DEPLOY: &str = "/opt/holdfast/deploy";
/// The folder of the kustomization that the tests apply.
pub const OVERLAY: &str = "/opt/holdfast/deploy/kustomize/test";
/// The name of the node.
pub const NODE: &str = "node-1";
/// The address of the node: that of the guest in the emulator's network.
pub const ADDRESS: &str = "10.0.2.15";
/// The address of the service `kubernetes`: the first one of the range of services.
const SERVICE: &str = "10.96.0.1";
/// The first minor release of Kubernetes in which a token may read in the name of its node.
const IMPERSONATION: u32 = 36;
/// How long each step may take in an emulated guest. The host ends a guest that reports nothing for two minutes.
const LIMIT: Duration = Duration::from_secs(110);

/// Files of the node.
const FILES: &[(&str, &str)] = &[
    ("/etc/containerd/config.toml", include_str!("../../kube/containerd.toml")),
    ("/etc/systemd/system/containerd.service", include_str!("../../kube/containerd.service")),
    ("/etc/systemd/system/kubelet.service", include_str!("../../kube/kubelet.service")),
    ("/var/lib/kubelet/config.yaml", include_str!("../../kube/kubelet.yaml")),
    ("/etc/cni/net.d/10-pods.conflist", include_str!("../../kube/network.conflist")),
    ("/etc/resolv.conf", ""),
];

/// Starts containerd and kubelet, imports the images, and waits until the cluster knows the node as ready.
pub fn join(context: &mut Context) -> Result<()> {
    for (path, content) in FILES {
        if let Some(folder) = std::path::Path::new(path).parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, content).with_context(|| format!("cannot write {path}"))?;
    }
    run("systemctl", &["daemon-reload"])?;
    // A node has one daemon, and here it is the pod's, also after a reboot.
    run("systemctl", &["disable", "--quiet", "holdfast.service"])?;
    context.note("containerd starts");
    containerd()?;
    for entry in fs::read_dir(IMAGES).with_context(|| format!("cannot read {IMAGES}"))? {
        let path = entry?.path();
        run("ctr", &["-n", "k8s.io", "images", "import", &path.to_string_lossy()])?;
    }
    image::import()?;
    context.note("kubelet starts");
    kubelet()
}

/// The same after a reboot or a soft reboot: everything is on the disk.
pub fn rejoin() -> Result<()> {
    containerd()?;
    kubelet()
}

fn containerd() -> Result<()> {
    connect()?;
    run("systemctl", &["start", "containerd.service"]).map(drop)
}

fn kubelet() -> Result<()> {
    run("systemctl", &["start", "kubelet.service"])?;
    let ready = wait::until("the node to be ready", LIMIT, || {
        let Ok(node) = get("node", NODE) else { return Ok(None) };
        Ok((condition(&node, "Ready") == Some("True".to_owned())).then_some(()))
    });
    ready.with_context(|| journal("kubelet.service"))
}

/// Loads every module that the host gave the guest: the kernel cannot ask for them, since no modprobe finds them.
fn modules() -> Result<()> {
    let order = fs::read_to_string(format!("{MODULES}/order")).context("no kernel modules in this guest")?;
    order.lines().filter_map(|line| line.split_once(": ")).try_for_each(|(name, _)| load_module(name))
}

/// Gives a guest without containerd and kubelet the way to the API server.
pub fn connect() -> Result<()> {
    modules()?;
    network()
}

/// Gives the guest its address, and sends connections to the service `kubernetes` to the API server, as kube-proxy does.
fn network() -> Result<()> {
    let mut links =
        fs::read_dir("/sys/class/net")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let link = links.find(|name| name.starts_with('e')).context("the guest has no network card")?;
    let port = fs::read_to_string(PORT).with_context(|| format!("cannot read {PORT}"))?;
    let target = format!("{HOST}:{}", port.trim());
    shell(&format!(
        "ip link set {link} up && ip address replace {ADDRESS}/24 dev {link} && ip route replace default via {HOST} && \
         sysctl -q -w net.ipv4.ip_forward=1 && \
         iptables -t nat -A OUTPUT -d {SERVICE}/32 -p tcp --dport 443 -j DNAT --to-destination {target} && \
         iptables -t nat -A PREROUTING -d {SERVICE}/32 -p tcp --dport 443 -j DNAT --to-destination {target}"
    ))
    .map(drop)
}

/// Runs kubectl as the cluster's administrator.
pub fn kubectl(arguments: &[&str]) -> Result<String> {
    run("kubectl", &[&["--kubeconfig", ADMIN][..], arguments].concat())
}

/// An object of the cluster: a `node`, a `driftreport` or a `driftpolicy`.
pub fn get(kind: &str, name: &str) -> Result<Value> {
    let path = match kind {
        "node" => "api/v1/nodes",
        "driftreport" => "apis/holdfast.dev/v1alpha1/driftreports",
        "driftpolicy" => "apis/holdfast.dev/v1alpha1/driftpolicies",
        other => bail!("the path of {other} is not known here"),
    };
    api::get(&format!("/{path}/{name}"))
}

/// Waits until the status of the node's `DriftReport` is as wanted. `seen` gives what people would look at if it never is.
pub fn report(
    what: &str,
    limit: Duration,
    is_so: impl Fn(&Value) -> bool,
    seen: impl FnOnce() -> String,
) -> Result<Value> {
    let found = wait::until(what, limit, || {
        Ok(get("driftreport", NODE).ok().filter(|report| is_so(&report["status"])))
    });
    found.with_context(seen)
}

/// The status of a condition of an object.
pub fn condition(object: &Value, kind: &str) -> Option<String> {
    let conditions = object["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == kind)?;
    found["status"].as_str().map(str::to_owned)
}

/// Loads the `AppArmor` profile of the sensor, as the node's administrator does.
pub fn load_profile() -> Result<()> {
    run("apparmor_parser", &["-r", &format!("{DEPLOY}/apparmor/holdfast-sensor")]).map(drop)
}

/// Runs the pod `editor` of the namespace `team`, which edits a file of the node through a host path.
pub fn run_editor() -> Result<()> {
    const MANIFEST: &str = "/run/editor.yaml";
    fs::write(MANIFEST, include_str!("../../kube/editor.yaml"))?;
    kubectl(&["create", "namespace", "team"])?;
    // The API server accepts no pod before the namespace has this account.
    wait::until("the service account of the namespace", LIMIT, || {
        Ok(api::get("/api/v1/namespaces/team/serviceaccounts/default").ok())
    })?;
    kubectl(&["apply", "-f", MANIFEST]).map(drop)
}

/// The pods of the `DaemonSet`. The controller's pod has another label.
pub fn daemonset_pods() -> Result<Value> {
    api::get("/api/v1/namespaces/holdfast-system/pods?labelSelector=app.kubernetes.io%2Fname%3Dholdfast")
}

/// How often kubelet has started a container of Holdfast's pod again.
pub fn restarts(container: &str) -> Result<u64> {
    let pods = daemonset_pods()?;
    let statuses = pods["items"][0]["status"]["containerStatuses"].as_array().context("no containers")?;
    let status = statuses.iter().find(|status| status["name"] == container).context("no such container")?;
    status["restartCount"].as_u64().context("no number of restarts")
}

/// Waits until a sensor's container has ended with such an error, and gives the error as `kubectl describe pod` shows it.
pub fn error_of_sensor(is_wanted: impl Fn(&str) -> bool) -> Result<String> {
    let message = wait::until("the pod's sensor to end with an error", LIMIT, || {
        let pods = daemonset_pods()?;
        let statuses = pods["items"].as_array().into_iter().flatten();
        let statuses = statuses.filter_map(|pod| pod["status"]["containerStatuses"].as_array()).flatten();
        let mut states = statuses
            .filter(|status| status["name"] == "sensor")
            .flat_map(|status| [&status["state"], &status["lastState"]]);
        let message = states
            .find_map(|state| state["terminated"]["message"].as_str().filter(|message| is_wanted(message)));
        Ok(message.map(str::to_owned))
    });
    message.with_context(pods)
}

/// Applies the manifests of the product from a folder of `deploy/kustomize`, with a patch for images that are on the node already,
/// and waits until the pod of the `DaemonSet` is ready. It gives the pod's name.
pub fn deploy(context: &mut Context, from: &str) -> Result<String> {
    deploy_kustomization(context, &kustomization(from)?)
}

/// The same for a whole kustomization.
pub fn deploy_kustomization(context: &mut Context, kustomization: &str) -> Result<String> {
    apply(kustomization)?;
    context.note("the manifests are applied");
    ready()
}

/// Waits until the pod of the `DaemonSet` is ready. It gives the pod's name.
pub fn ready() -> Result<String> {
    let ready = wait::until("the DaemonSet's pod to be ready", LIMIT, || {
        let pods = daemonset_pods()?;
        let ready = pods["items"]
            .as_array()
            .and_then(|items| items.iter().find(|pod| condition(pod, "Ready") == Some("True".to_owned())));
        Ok(ready.and_then(|pod| pod["metadata"]["name"].as_str()).map(str::to_owned))
    });
    ready.with_context(pods)
}

/// The kustomization of the tests for a folder of `deploy/kustomize`, for the release of the control plane.
///
/// # Errors
/// The API server does not name its release.
pub fn kustomization(from: &str) -> Result<String> {
    const COMPONENTS: &str = "components: [";
    let kustomization =
        include_str!("../../kube/kustomization.yaml").replace("../base", &format!("../{from}"));
    let version = api::get("/version")?;
    let minor = version["minor"].as_str().context("the API server names no release")?;
    let is_impersonated = minor.trim_end_matches('+').parse::<u32>()? >= IMPERSONATION;
    let with_reads = format!("{COMPONENTS}../components/plain-reads, ");
    let kustomization =
        if is_impersonated { kustomization } else { kustomization.replace(COMPONENTS, &with_reads) };
    image::in_kustomization(&kustomization)
}

/// The same without the component `apparmor`: with the confinement of the sensor that the folder itself has.
///
/// # Errors
/// The API server does not name its release.
pub fn kustomization_as_shipped(from: &str) -> Result<String> {
    const APPARMOR: &str = "../components/apparmor";
    let confined = kustomization(from)?;
    let shipped = confined.replace(APPARMOR, "");
    ensure!(shipped != confined, "the tests' kustomization has no {APPARMOR}");
    Ok(shipped)
}

/// Applies a kustomization in the folder [`OVERLAY`].
pub fn apply(kustomization: &str) -> Result<()> {
    fs::create_dir_all(OVERLAY)?;
    fs::write(format!("{OVERLAY}/kustomization.yaml"), kustomization)?;
    kubectl(&["apply", "--server-side", "-k", OVERLAY]).map(drop)
}

/// What people would look at when a pod does not start.
pub fn pods() -> String {
    let of = |result: Result<String>| result.unwrap_or_else(|error| format!("{error:#}"));
    let described = of(kubectl(&["-n", "holdfast-system", "describe", "daemonsets,pods"]));
    let events = of(kubectl(&["-n", "holdfast-system", "get", "events"]));
    let logs = of(shell("for f in /var/log/pods/*/*/*.log; do echo \"== $f\"; tail -n 30 $f; done"));
    format!("{described}\n{events}\n{logs}\n{}", journal("kubelet.service"))
}

/// The last lines of a unit.
fn journal(unit: &str) -> String {
    run("journalctl", &["-u", unit, "-n", "30", "--no-pager", "-o", "cat"]).unwrap_or_default()
}
