//! The reporter in mode `manage`, with the API server.
//!
//! The test plays the controllers: it sets the desired config, and answers requests for a drain. The sensor is `played_sensor`, which
//! takes configs and orders and applies nothing.

use super::installed::NAMESPACE;
use super::process::LoggedProcess;
use super::reporter_tests::{Cluster, LIMIT, PlayedSensor, refused};
use super::rights_tests::{MANAGE, no_other_right, only_the_own_watch};
use crate::dist;
use crate::run::output;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const PREFIX: &str = "machineconfiguration.openshift.io";

/// A managed node, and who plays around it.
struct Managed {
    cluster: Cluster,
    sensor: PlayedSensor,
    config: PathBuf,
    reporter: Option<LoggedProcess>,
}

impl Managed {
    /// A node that has and is to have `rendered-a`.
    fn start() -> Self {
        let cluster = Cluster::start("manage", "overlays/manage");
        let definitions = dist::root().join("deploy/crds/machineconfiguration");
        output(cluster.plane.kubectl().args(["apply", "-k"]).arg(definitions)).unwrap();
        let established = ["wait", "--for=condition=Established", "--timeout=120s", "crd", "--all"];
        output(cluster.plane.kubectl().args(established)).unwrap();
        for name in ["rendered-a", "rendered-b", "rendered-c", "rendered-d", "rendered-e"] {
            cluster.create(&json!({
                "apiVersion": "machineconfiguration.openshift.io/v1",
                "kind": "MachineConfig",
                "metadata": { "name": name },
                "spec": { "config": { "ignition": { "version": "3.5.0" } } },
            }));
        }
        let mut sensor = PlayedSensor::start(cluster.folder.path());
        sensor.turn("current rendered-a");
        let config = cluster.until_reporter_config("n1");
        let mut managed = Self { cluster, sensor, config, reporter: None };
        managed.annotate("n1", &[("currentConfig", "rendered-a"), ("desiredConfig", "rendered-a")]).unwrap();
        // The Machine Config Operator's daemon leaves this one behind. Nothing that the reporter applies removes it.
        managed.annotate("n1", &[("post-config-action", "")]).unwrap();
        managed.start_reporter();
        managed
    }

    fn start_reporter(&mut self) {
        let mut command = Command::new(dist::target_dir().join("debug/holdfast-cluster"));
        command
            .args(["node", "--mode", "manage", "--node-name", "n1", "--namespace", NAMESPACE])
            .args(["--probes", "127.0.0.1:0", "--socket"])
            .arg(self.cluster.folder.path().join("run/manage.sock"))
            .env("KUBECONFIG", &self.config);
        let log = self.cluster.plane.log("reporter");
        self.reporter = Some(LoggedProcess::start("holdfast-cluster", &mut command, &log).unwrap());
    }

    /// As a controller.
    fn annotate(&self, node: &str, annotations: &[(&str, &str)]) -> Result<String> {
        let mut kubectl = self.cluster.plane.kubectl();
        kubectl.args(["annotate", "--overwrite", "node", node]);
        kubectl.args(annotations.iter().map(|(name, value)| format!("{PREFIX}/{name}={value}")));
        output(&mut kubectl)
    }

    /// With the token of a reporter.
    fn apply_as(&self, config: &Path, node: &str, annotations: &Value, spec: &Value) -> Result<String> {
        let metadata = json!({ "name": node, "annotations": annotations });
        self.apply_node_as(config, &metadata, spec)
    }

    /// The same with these metadata.
    fn apply_node_as(&self, config: &Path, metadata: &Value, spec: &Value) -> Result<String> {
        let object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec });
        let file = self.cluster.file("annotations.json", &object.to_string());
        let mut arguments = vec!["apply", "--server-side", "--force-conflicts"];
        arguments.extend(["--field-manager=holdfast-reporter", "-f", file.to_str().context("no text")?]);
        self.cluster.kubectl_as(config, &arguments)
    }

    fn annotations(&self) -> Result<Value> {
        Ok(self.cluster.get(&["node", "n1"])?["metadata"]["annotations"].clone())
    }

    /// Waits until the Node has these annotations of the Machine Config Operator. Gives all.
    fn until(&self, wanted: &[(&str, &str)]) -> Value {
        let mut found = Value::Null;
        self.reporter
            .as_ref()
            .unwrap()
            .until(LIMIT, || {
                found = self.annotations()?;
                for (name, value) in wanted {
                    ensure!(found[format!("{PREFIX}/{name}")] == *value, "no {name}={value}: {found}");
                }
                Ok(())
            })
            .unwrap();
        found
    }

    /// Waits for an order, and says how it ends.
    fn ordered(&mut self, end: &str) {
        let sensor = &mut self.sensor;
        self.reporter
            .as_ref()
            .unwrap()
            .until(LIMIT, || {
                let answer = sensor.ask("ordered");
                ensure!(answer == "done", "{answer}");
                Ok(())
            })
            .unwrap();
        // The plan is in the cluster before anything is touched.
        let annotations = self.annotations().unwrap();
        let plan: Value = serde_json::from_str(annotations["holdfast.dev/plan"].as_str().unwrap()).unwrap();
        let report = self.cluster.get(&["driftreport", "n1"]).unwrap();
        assert_eq!(report["status"]["plan"], plan);
        assert_eq!(plan["config"], annotations[format!("{PREFIX}/desiredConfig")]);
        assert_eq!(plan["actions"], json!(["write"]));
        self.sensor.turn(end);
    }

    fn events(&self, reason: &str, count: usize) {
        self.reporter.as_ref().unwrap().until(LIMIT, || self.cluster.notes(reason, count).map(drop)).unwrap();
    }
}

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn a_managed_node_follows_its_desired_config_through_drain_drift_and_a_reporter_that_is_killed() {
    let mut node = Managed::start();
    node.until(&[("state", "Done"), ("reason", ""), ("currentConfig", "rendered-a")]);

    // An apply without a drain.
    node.annotate("n1", &[("desiredConfig", "rendered-b")]).unwrap();
    node.until(&[("state", "Working"), ("currentConfig", "rendered-a")]);
    node.ordered("finish");
    let done = node.until(&[("state", "Done"), ("reason", ""), ("currentConfig", "rendered-b")]);
    assert_eq!(
        (&done["holdfast.dev/plan"], &done[format!("{PREFIX}/desiredDrain")]),
        (&Value::Null, &Value::Null)
    );
    node.events("NodeDone", 1);

    // One with a drain. The reporter is killed before the drain is done.
    node.sensor.turn("drains yes");
    node.annotate("n1", &[("desiredConfig", "rendered-c")]).unwrap();
    node.until(&[("state", "Working"), ("desiredDrain", "drain-rendered-c")]);
    assert_eq!(node.sensor.ask("ordered"), "not ordered", "the drain is first");
    node.reporter = None;
    node.annotate("n1", &[("lastAppliedDrain", "drain-rendered-c")]).unwrap();
    node.start_reporter();
    node.ordered("finish");
    node.until(&[
        ("state", "Done"),
        ("currentConfig", "rendered-c"),
        ("desiredDrain", "uncordon-rendered-c"),
    ]);
    node.annotate("n1", &[("lastAppliedDrain", "uncordon-rendered-c")]).unwrap();
    node.events("NodeDone", 2);

    // Drift degrades the node, and blocks the next config until it is over.
    node.sensor.turn("drains no");
    node.sensor.turn("drift /etc/chrony.conf alice");
    let text = "content mismatch for file \"/etc/chrony.conf\"";
    node.until(&[("state", "Degraded"), ("reason", text)]);
    node.events("ConfigDriftDetected", 1);
    node.annotate("n1", &[("desiredConfig", "rendered-d")]).unwrap();
    node.ordered("fail-drift");
    let reason = format!("unexpected on-disk state validating against rendered-c: {text}");
    node.until(&[("state", "Degraded"), ("reason", &reason), ("currentConfig", "rendered-c")]);
    node.events("PreflightConfigDriftCheckFailed", 1);
    node.sensor.turn("recover /etc/chrony.conf");
    node.ordered("finish");
    node.until(&[("state", "Done"), ("reason", ""), ("currentConfig", "rendered-d")]);

    cordoned_by_somebody_else(&mut node);
    beside_the_operator(&mut node);
    only_the_own_annotations(&node);
    only_the_own_watch(&node.cluster, &node.config);
    no_other_right(&node.cluster, &node.config, &MANAGE);
    node.cluster.plane.check().unwrap();
    node.reporter.unwrap().check().unwrap();
}

/// An update of a node that somebody else cordoned asks for a drain, and afterwards for no end of the cordon.
fn cordoned_by_somebody_else(node: &mut Managed) {
    output(node.cluster.plane.kubectl().args(["cordon", "n1"])).unwrap();
    node.sensor.turn("drains yes");
    node.annotate("n1", &[("desiredConfig", "rendered-e")]).unwrap();
    let asked = node.until(&[("state", "Working"), ("desiredDrain", "drain-rendered-e")]);
    assert_eq!(asked["holdfast.dev/cordoned-before"], "true");
    node.annotate("n1", &[("lastAppliedDrain", "drain-rendered-e")]).unwrap();
    node.ordered("finish");
    node.until(&[("state", "Done"), ("currentConfig", "rendered-e"), ("desiredDrain", "drain-rendered-e")]);
    assert_eq!(node.cluster.get(&["node", "n1"]).unwrap()["spec"]["unschedulable"], true);
    output(node.cluster.plane.kubectl().args(["uncordon", "n1"])).unwrap();
    node.sensor.turn("drains no");
}

/// While the daemon of the Machine Config Operator runs on the node, a reporter in mode `manage` reports and writes no annotation.
fn beside_the_operator(node: &mut Managed) {
    let before = node.until(&[("state", "Done"), ("currentConfig", "rendered-e")]);
    // A reporter that starts knows it from its first answer on.
    node.reporter = None;
    node.sensor.turn("operator yes");
    node.sensor.turn("drift /etc/chrony.conf alice");
    node.start_reporter();
    let state = |node: &Managed, wanted: &str| {
        let reported = || {
            let found = node.cluster.get(&["driftreport", "n1"])?["status"]["state"].clone();
            ensure!(found == wanted, "no {wanted}: {found}");
            Ok(())
        };
        node.reporter.as_ref().unwrap().until(LIMIT, reported).unwrap();
    };
    state(node, "Drifted");
    node.sensor.turn("recover /etc/chrony.conf");
    state(node, "InSync");
    assert_eq!(node.annotations().unwrap(), before);
    // Without that daemon the drift is in the annotations.
    node.reporter = None;
    node.sensor.turn("operator no");
    node.sensor.turn("drift /etc/chrony.conf alice");
    node.start_reporter();
    node.until(&[("state", "Degraded")]);
    node.sensor.turn("recover /etc/chrony.conf");
    node.until(&[("state", "Done")]);
}

/// A token of one node's reporter writes the annotations that are its own, on its own Node.
fn only_the_own_annotations(node: &Managed) {
    let other = node.cluster.reporter_config("n2").unwrap();
    let ours = json!({ "machineconfiguration.openshift.io/state": "Done", "holdfast.dev/plan": "{}" });
    let no_spec = json!({});
    node.apply_as(&other, "n2", &ours, &no_spec).unwrap();
    refused(node.apply_as(&other, "n1", &ours, &no_spec), "the reporter of n2 may not change the Node n1")
        .unwrap();
    for foreign in ["machineconfiguration.openshift.io/desiredConfig", "example.com/x"] {
        let mut more = ours.clone();
        more[foreign] = json!("x");
        refused(
            node.apply_as(&other, "n2", &more, &no_spec),
            "a reporter changes no annotation of a Node but",
        )
        .unwrap();
    }
    let drifted = json!({ "key": "holdfast.dev/drifted", "effect": "NoSchedule" });
    for (spec, reason) in [
        (json!({ "unschedulable": true }), "a reporter changes no cordon or other field"),
        (json!({ "providerID": "x" }), "a reporter changes no cordon or other field"),
        // Only the component `taint` gives this right.
        (json!({ "taints": [drifted] }), "a reporter changes no taint of a Node"),
    ] {
        refused(node.apply_as(&other, "n2", &ours, &spec), reason)
            .unwrap_or_else(|error| panic!("{spec}: {error:#}"));
    }
    let owner = json!([{ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "x" }]);
    for (field, value, reason) in [
        ("labels", json!({ "example.com/x": "y" }), "a reporter changes no label of a Node"),
        ("finalizers", json!(["example.com/x"]), "a reporter changes neither finalizers nor owners"),
        ("ownerReferences", owner, "a reporter changes neither finalizers nor owners"),
    ] {
        let metadata = json!({ "name": "n2", field: value });
        refused(node.apply_node_as(&other, &metadata, &no_spec), reason)
            .unwrap_or_else(|error| panic!("{field}: {error:#}"));
    }
    refused(node.apply_as(&other, "n9", &ours, &no_spec), "n9").unwrap();
    assert!(node.cluster.get(&["node", "n9"]).is_err(), "a reporter creates no Node");
}
