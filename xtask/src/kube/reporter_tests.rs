//! The reporter of a node, `holdfast-cluster node`, with the API server.
//!
//! The objects in `deploy` are installed as an admin installs them. The pods of the
//! `DaemonSet` are real but for a kubelet that starts them.
//! The reporter has the token of such a pod. The sensor's socket is the daemon's own, with a picture that the test makes: no kernel
//! program runs on this machine.

use super::KubeAssets;
use super::assets::{IMPERSONATION, is_tested_before, tested};
use super::control_plane::{ClientPlace, ControlPlane, Wanted};
use super::installed::{self, NAMESPACE};
use super::process::LoggedProcess;
use super::reads::{self, Reads};
use super::rights_tests::{
    no_other_right, no_other_right_of_other_accounts, only_events_of_the_own_name, only_the_own_reads,
};
use super::steady_tests::a_report_at_its_limits_is_accepted;
use crate::cache::Cache;
use crate::dist;
use crate::run::output;
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Longest time until a change is in the API, on a machine that is busy with compilers.
pub(super) const LIMIT: Duration = Duration::from_mins(2);

/// The sensor: an example program of the daemon's crate.
pub(super) struct PlayedSensor {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl PlayedSensor {
    pub(super) fn start(folder: &Path) -> Self {
        let user = fs::metadata(folder).unwrap().uid().to_string();
        let mut child = Command::new(dist::target_dir().join("debug/examples/played_sensor"))
            .arg(folder)
            .arg(user)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`cargo xtask test` builds it");
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    /// One turn of the loop.
    pub(super) fn turn(&mut self, line: &str) {
        assert_eq!(self.ask(line), "done", "{line}");
    }

    /// The answer to a line.
    pub(super) fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }
}

impl Drop for PlayedSensor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A cluster of two nodes with Holdfast installed.
pub(super) struct Cluster {
    pub(super) plane: ControlPlane,
    pub(super) folder: TempDir,
    reads: Reads,
}

impl Cluster {
    /// With this folder of `deploy/kustomize`. Its logs have this name.
    pub(super) fn start(name: &str, manifests: &str) -> Self {
        Self::start_with(name, manifests, &[])
    }

    /// With these flags of the API server.
    pub(super) fn start_with(name: &str, manifests: &str, apiserver: &[&str]) -> Self {
        let assets = KubeAssets::cached(&Cache::open().unwrap(), &tested()).unwrap();
        let wanted = Wanted { name, nodes: &[], apiserver };
        let plane = ControlPlane::start(&assets, wanted).unwrap();
        let reads = Reads::new(&plane.admin_config()).unwrap();
        let cluster = Self { plane, folder: tempfile::tempdir().unwrap(), reads };
        for name in ["n1", "n2"] {
            cluster.create(&installed::node(name));
        }
        installed::apply(&cluster.plane, manifests).unwrap();
        if is_tested_before(IMPERSONATION) {
            let rights = dist::root().join("deploy/kustomize/components/plain-reads/rbac.yaml");
            output(cluster.plane.kubectl().args(["apply", "-f"]).arg(rights)).unwrap();
        }
        cluster
    }

    pub(super) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    pub(super) fn create(&self, object: &Value) {
        let file = self.file("object.json", &object.to_string());
        output(self.plane.kubectl().args(["create", "-f"]).arg(file)).unwrap();
    }

    /// The API's answer to `kubectl get` with these arguments. Objects may have `managedFields`.
    pub(super) fn get(&self, arguments: &[&str]) -> Result<Value> {
        if let Some(path) = reads::path(arguments) {
            return self.reads.get(&path);
        }
        let text = output(self.plane.kubectl().arg("get").args(arguments).args(["--output", "json"]))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// A pod of the `DaemonSet` on a node, and the token that the kubelet would put into it.
    pub(super) fn reporter_token(&self, node: &str) -> Result<(String, String)> {
        installed::pod_and_token(&self.plane, node)
    }

    /// The config of the reporter on a node.
    pub(super) fn reporter_config(&self, node: &str) -> Result<PathBuf> {
        let (_, token) = self.reporter_token(node)?;
        let config = self.plane.config_with(node, &token, ClientPlace::Host)?;
        Ok(self.file(&format!("{node}.kubeconfig"), &config))
    }

    /// The same once the controllers have made the pod.
    pub(super) fn until_reporter_config(&self, node: &str) -> PathBuf {
        let mut config = None;
        self.plane
            .until(LIMIT, || {
                config = Some(self.reporter_config(node)?);
                Ok(())
            })
            .unwrap();
        config.unwrap()
    }

    /// Starts the reporter of n1, once the sensor has this socket.
    pub(super) fn start_reporter(
        &self,
        socket: &str,
        config: &Path,
        more: &[&str],
        log: &Path,
    ) -> LoggedProcess {
        let socket = self.folder.path().join("run").join(socket);
        self.plane
            .until(LIMIT, || {
                ensure!(socket.exists(), "the sensor has no socket yet");
                Ok(())
            })
            .unwrap();
        let mut command = Command::new(dist::target_dir().join("debug/holdfast-cluster"));
        command
            .args(["node", "--node-name", "n1", "--namespace", NAMESPACE, "--probes", "127.0.0.1:0"])
            .args(["--secure", "127.0.0.1:0", "--socket"])
            .arg(&socket)
            .args(more)
            .env("KUBECONFIG", config);
        LoggedProcess::start("holdfast-cluster", &mut command, log).unwrap()
    }

    /// `kubectl` with the token of a node's reporter.
    pub(super) fn kubectl_as(&self, config: &Path, arguments: &[&str]) -> Result<String> {
        output(self.plane.kubectl().env("KUBECONFIG", config).args(arguments))
    }

    /// The report and the condition `ConfigDrift` of a node, if the report has this state and the condition this status.
    pub(super) fn state(&self, node: &str, state: &str, status: &str) -> Result<(Value, Value)> {
        let report = self.get(&["driftreport", node])?;
        ensure!(report["status"]["state"] == state, "{report}");
        let node = self.get(&["node", node])?;
        let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        let condition = conditions
            .find(|condition| condition["type"] == "ConfigDrift")
            .context("the Node has no condition ConfigDrift")?;
        ensure!(condition["status"] == status, "{condition}");
        ensure!(report["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"], "{report}");
        Ok((report["status"].clone(), condition.clone()))
    }

    /// The notes of a node's Events with this reason, once there are so many. More of them is a failure for good.
    pub(super) fn notes(&self, reason: &str, count: usize) -> Result<Vec<String>> {
        let uid = self.get(&["node", "n1"])?["metadata"]["uid"].clone();
        let selector = format!("involvedObject.kind=Node,involvedObject.name=n1,reason={reason}");
        let events = self.get(&["events", "--namespace", "default", "--field-selector", &selector])?;
        let events = events["items"].as_array().context("no list of Events")?;
        assert!(events.len() <= count, "{events:?}");
        ensure!(events.len() == count, "{} Events", events.len());
        assert!(events.iter().all(|event| event["involvedObject"]["uid"] == uid), "{events:?}");
        Ok(events.iter().filter_map(|event| event["message"].as_str().map(str::to_owned)).collect())
    }

    /// The successful requests of this kind since the API server's start.
    fn requests(&self, labels: &[&str]) -> u64 {
        let page = output(self.plane.kubectl().args(["get", "--raw", "/metrics"])).unwrap();
        page.lines()
            .filter(|line| line.starts_with("apiserver_request_total{") && line.contains("code=\"20"))
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }
}

/// Fails unless a policy refused it for this reason.
pub(super) fn refused(result: Result<String>, reason: &str) -> Result<()> {
    match result {
        Err(error) if format!("{error:#}").contains(reason) => Ok(()),
        other => bail!("not refused with `{reason}`: {other:?}"),
    }
}

/// A Node with one condition.
fn node(name: &str, condition: &str) -> Value {
    let condition = json!({ "type": condition, "status": "False", "reason": "X", "message": "x" });
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name },
        "status": { "conditions": [condition] },
    })
}

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn a_drift_is_in_the_api_until_it_recovers_and_is_reported_once_after_the_api_server_was_away() {
    let mut cluster = Cluster::start("reporter", "base");
    let mut sensor = PlayedSensor::start(cluster.folder.path());
    let config = cluster.until_reporter_config("n1");
    let log = cluster.plane.log("reporter");
    let reporter = cluster.start_reporter("reporter.sock", &config, &[], &log);

    // Nothing differs.
    reporter.until(LIMIT, || cluster.state("n1", "InSync", "False").map(drop)).unwrap();

    // A login edits a file.
    sensor.turn("drift /etc/chrony.conf alice");
    let mut found = None;
    reporter
        .until(LIMIT, || {
            found = Some(cluster.state("n1", "Drifted", "True")?);
            Ok(())
        })
        .unwrap();
    let (report, drift) = found.take().unwrap();
    assert_eq!(report["drifts"][0]["path"], "/etc/chrony.conf");
    assert_eq!(report["drifts"][0]["by"]["loginUser"], "alice");
    assert_eq!(report["log"]["hash"].as_str().map(str::len), Some(64), "{report}");
    let message = drift["message"].as_str().unwrap();
    assert!(message.contains("/etc/chrony.conf (content) by root login alice via vi"), "{message}");
    let table = output(cluster.plane.kubectl().args(["get", "driftreports"])).unwrap();
    assert!(table.contains("/etc/chrony.conf   root login alice via vi"), "{table}");
    reporter
        .until(LIMIT, || {
            let notes = cluster.notes("ConfigDriftDetected", 1)?;
            assert!(notes[0].contains("/etc/chrony.conf"), "{notes:?}");
            Ok(())
        })
        .unwrap();

    // The file is as declared again.
    sensor.turn("recover /etc/chrony.conf");
    reporter.until(LIMIT, || cluster.state("n1", "InSync", "False").map(drop)).unwrap();
    reporter.until(LIMIT, || cluster.notes("ConfigDriftRecovered", 1).map(drop)).unwrap();

    only_a_stranger_drifts_during_an_update(&cluster, &mut sensor, &reporter);

    // What happens while the API server is away is reported once, as it is afterwards.
    cluster.plane.kill_apiserver();
    sensor.turn("drift /etc/passing bob");
    sensor.turn("recover /etc/passing");
    sensor.turn("drift /etc/hosts carol");
    cluster.plane.restart_apiserver().unwrap();
    reporter
        .until(LIMIT, || {
            let (report, _) = cluster.state("n1", "Drifted", "True")?;
            assert_eq!((&report["count"], &report["newest"]["path"]), (&json!(1), &json!("/etc/hosts")));
            let mut notes = cluster.notes("ConfigDriftDetected", 2)?;
            notes.retain(|note| note.contains("/etc/hosts") && note.contains("login carol"));
            assert_eq!(notes.len(), 1);
            Ok(())
        })
        .unwrap();
    cluster.notes("ConfigDriftRecovered", 1).unwrap();
    let status = "subresource=\"status\"";
    assert_eq!(cluster.requests(&["resource=\"driftreports\"", status, "verb=\"APPLY\""]), 1);
    assert_eq!(cluster.requests(&["resource=\"nodes\"", status, "verb=\"APPLY\""]), 1);

    a_report_at_its_limits_is_accepted(&cluster, &mut sensor, &reporter);
    only_the_own_node(&cluster, &config);
    only_the_own_reads(&cluster, &config);
    no_other_right(&cluster, &config, &[]);
    no_other_right_of_other_accounts(&cluster);
    only_events_of_the_own_name(&cluster, &config);
    cluster.plane.check().unwrap();
    reporter.check().unwrap();
}

/// While the Machine Config Operator's daemon updates the node, a change by its pod is no drift, and there is no Event about it.
fn only_a_stranger_drifts_during_an_update(
    cluster: &Cluster,
    sensor: &mut PlayedSensor,
    reporter: &LoggedProcess,
) {
    let namespace = "openshift-machine-config-operator";
    output(cluster.plane.kubectl().args(["create", "namespace", namespace])).unwrap();
    let daemon = json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "machine-config-daemon", "namespace": namespace },
        "spec": { "nodeName": "n1", "automountServiceAccountToken": false, "containers": [{ "name": "daemon", "image": "daemon" }] },
    });
    // The namespace's account is made a moment after the namespace.
    let account = ["serviceaccount", "default", "--namespace", namespace];
    cluster.plane.until(LIMIT, || cluster.get(&account).map(drop)).unwrap();
    cluster.create(&daemon);
    let pod = cluster.get(&["pod", "machine-config-daemon", "--namespace", namespace]).unwrap();
    let state = |change: &str| {
        let state = format!("machineconfiguration.openshift.io/state{change}");
        output(cluster.plane.kubectl().args(["annotate", "--overwrite", "node", "n1", &state])).unwrap();
    };
    state("=Working");
    sensor.turn(&format!("drift /etc/chrony.conf pod {}", pod["metadata"]["uid"].as_str().unwrap()));
    reporter
        .until(LIMIT, || {
            let (_, condition) = cluster.state("n1", "Updating", "Unknown")?;
            ensure!(condition["reason"] == "Updating", "{condition}");
            Ok(())
        })
        .unwrap();
    sensor.turn("recover /etc/chrony.conf");
    reporter.until(LIMIT, || cluster.state("n1", "InSync", "False").map(drop)).unwrap();
    state("-");
    cluster.notes("ConfigDriftDetected", 1).unwrap();
    cluster.notes("ConfigDriftRecovered", 1).unwrap();
}

/// A token of one node's reporter changes nothing of another one, and of the own one nothing but our conditions.
fn only_the_own_node(cluster: &Cluster, own: &Path) {
    let other = cluster.reporter_config("n2").unwrap();
    let apply = |config: &Path, object: &Value| {
        let file = cluster.file("status.json", &object.to_string());
        let server_side = ["apply", "--server-side", "--subresource=status", "--force-conflicts"];
        let mut arguments = server_side.to_vec();
        arguments.extend(["--field-manager=holdfast-reporter", "-f", file.to_str().context("no text")?]);
        cluster.kubectl_as(config, &arguments)
    };
    apply(&other, &node("n2", "ConfigDrift")).unwrap();
    refused(apply(&other, &node("n1", "ConfigDrift")), "the reporter of n2 may not change the Node n1")
        .unwrap();
    let report = json!({
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "DriftReport",
        "metadata": { "name": "n1" },
        "status": { "state": "InSync", "count": 0 },
    });
    refused(apply(&other, &report), "the reporter of n2 may not write n1").unwrap();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": "n1", "namespace": NAMESPACE },
    });
    let lease = cluster.file("lease.json", &lease.to_string());
    let create = ["create", "-f", lease.to_str().unwrap()];
    refused(cluster.kubectl_as(&other, &create), "the reporter of n2 may not write n1").unwrap();
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": "n1.1", "namespace": "default" },
        "regarding": { "apiVersion": "v1", "kind": "Node", "name": "n1" },
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reason": "X", "action": "X", "note": "x", "type": "Normal",
        "reportingController": "holdfast.dev/reporter", "reportingInstance": "n2",
    });
    let event = cluster.file("event.json", &event.to_string());
    let create = ["create", "-f", event.to_str().unwrap()];
    refused(cluster.kubectl_as(&other, &create), "may not write Events about other objects").unwrap();
    refused(apply(own, &node("n1", "Ready")), "a reporter changes only the conditions").unwrap();
    let mut annotated = node("n1", "ConfigDrift");
    annotated["metadata"]["annotations"] = json!({ "machineconfiguration.openshift.io/state": "Done" });
    refused(apply(own, &annotated), "a reporter changes no annotation of a Node").unwrap();
    let annotate = ["annotate", "node", "n1", "machineconfiguration.openshift.io/state=Done"];
    refused(cluster.kubectl_as(own, &annotate), "nodes \"n1\" is forbidden").unwrap();
    let mut labelled = node("n1", "ConfigDrift");
    labelled["metadata"]["labels"] = json!({ "x": "y" });
    refused(apply(own, &labelled), "a reporter changes no label of a Node").unwrap();
    no_other_field_of_the_own_node(cluster, own, &apply);
    // The state of before is still there.
    cluster.state("n1", "Drifted", "True").unwrap();
}

/// An apply with a token.
type Apply<'a> = dyn Fn(&Path, &Value) -> Result<String> + 'a;

/// The reporter's token changes neither another field of its Node's status, nor finalizers and owners, nor a condition of the kubelet.
fn no_other_field_of_the_own_node(cluster: &Cluster, own: &Path, apply: &Apply<'_>) {
    let conditions_only = "of a Node's status a reporter changes conditions only";
    for (field, value) in [
        ("capacity", json!({ "cpu": "64" })),
        ("capacity", json!({ "example.com/gpu": "8" })),
        ("allocatable", json!({ "memory": "64Gi" })),
        ("addresses", json!([{ "type": "InternalIP", "address": "192.0.2.1" }])),
        ("nodeInfo", json!({ "kernelVersion": "1", "bootID": "x" })),
        ("daemonEndpoints", json!({ "kubeletEndpoint": { "Port": 1 } })),
        ("images", json!([{ "names": ["registry.example.com/x"], "sizeBytes": 1 }])),
        ("volumesInUse", json!(["x"])),
        ("volumesAttached", json!([{ "name": "x", "devicePath": "/dev/x" }])),
    ] {
        let mut object = node("n1", "ConfigDrift");
        object["status"][field] = value;
        refused(apply(own, &object), conditions_only).with_context(|| field.to_owned()).unwrap();
    }
    let uid = cluster.get(&["node", "n2"]).unwrap()["metadata"]["uid"].clone();
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": "n2", "uid": uid });
    for (field, value) in [("finalizers", json!(["example.com/keep"])), ("ownerReferences", json!([owner]))] {
        let mut object = node("n1", "ConfigDrift");
        object["metadata"][field] = value;
        let reason = "a reporter changes neither finalizers nor owners of a Node";
        refused(apply(own, &object), reason).with_context(|| field.to_owned()).unwrap();
    }

    // A condition that the kubelet writes, with each field changed.
    let ready = json!({ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let mut object = node("n1", "Ready");
    let pressure = json!({ "type": "MemoryPressure", "status": "True", "reason": "X", "message": "x",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    object["status"]["conditions"] = json!([ready, pressure]);
    let file = cluster.file("ready.json", &object.to_string());
    let kubelet = ["apply", "--server-side", "--subresource=status", "--field-manager=kubelet", "-f"];
    output(cluster.plane.kubectl().args(kubelet).arg(file)).unwrap();
    let ours = "a reporter changes only the conditions ConfigDrift and holdfast.dev/SensorReady";
    for (field, value) in [
        ("status", "False"),
        ("reason", "X"),
        ("message", "x"),
        ("lastHeartbeatTime", "2026-01-01T00:00:01Z"),
        ("lastTransitionTime", "2026-01-01T00:00:01Z"),
    ] {
        let mut changed = ready.clone();
        changed[field] = value.into();
        object["status"]["conditions"] = json!([changed]);
        refused(apply(own, &object), ours).with_context(|| field.to_owned()).unwrap();
    }
    let found = cluster.get(&["node", "n1"]).unwrap();
    let found = found["status"]["conditions"].as_array().unwrap();
    assert!(found.contains(&ready), "{found:?}");
    // The patch replaces a condition of the kubelet by a copy of another one, so the number and the kinds of the rest are as before.
    let at = |kind: &str| found.iter().position(|condition| condition["type"] == kind).unwrap();
    let others = ["ConfigDrift", "holdfast.dev/SensorReady"];
    let other =
        found.iter().find(|one| **one != ready && !others.iter().any(|ours| one["type"] == *ours)).unwrap();
    let copied =
        json!([{ "op": "replace", "path": format!("/status/conditions/{}", at("Ready")), "value": other }]);
    refused(reads::json_patch(own, "/api/v1/nodes/n1/status", &copied).map(|node| node.to_string()), ours)
        .unwrap();
    // A finalizer would block the removal of the kind.
    let kept = json!([{ "op": "add", "path": "/metadata/finalizers", "value": ["example.com/keep"] }]);
    let report = "/apis/holdfast.dev/v1alpha1/driftreports/n1";
    let answer = reads::json_patch(own, report, &kept).map(|report| report.to_string());
    refused(answer, "a reporter changes no finalizers").unwrap();
}
