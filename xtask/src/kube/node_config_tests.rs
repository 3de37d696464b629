//! A node's own copy of its config and the MachineConfig of the cluster, with the API server.
//!
//! The test plays the Machine Config Operator: it writes annotations and a `MachineConfig`, whose kind accepts every field.

use super::deploy_tests::foreign;
use super::process::LoggedProcess;
use super::reporter_tests::{Cluster, LIMIT, PlayedSensor};
use super::rights_tests::{no_other_right, read};
use crate::dist;
use crate::run::output;
use anyhow::ensure;
use serde_json::{Value, json};

const PREFIX: &str = "machineconfiguration.openshift.io";
const NAME: &str = "rendered-worker-1";

/// The spec of the config, with a file of this content.
fn spec(source: &str) -> Value {
    json!({
        "config": {
            "ignition": { "version": "3.4.0" },
            "storage": { "files": [{ "path": "/etc/a", "contents": { "source": source } }] },
        },
        "kernelArguments": [],
        "osImageURL": "",
    })
}

/// The copy on the node: its path, as the operator's daemon stores it.
fn copy(cluster: &Cluster, source: &str) -> String {
    let copy = json!({ "metadata": { "name": NAME, "creationTimestamp": null }, "spec": spec(source) });
    cluster.file("currentconfig", &copy.to_string()).to_str().unwrap().to_owned()
}

fn annotate(cluster: &Cluster, current: &str, desired: &str) {
    let annotations = [("currentConfig", current), ("desiredConfig", desired), ("state", "Done")];
    let mut kubectl = cluster.plane.kubectl();
    kubectl.args(["annotate", "--overwrite", "node", "n1"]);
    kubectl.args(annotations.iter().map(|(name, value)| format!("{PREFIX}/{name}={value}")));
    output(&mut kubectl).unwrap();
}

/// Waits until the report has these states. Gives the report's status and the condition.
fn until(
    cluster: &Cluster,
    reporter: &LoggedProcess,
    state: &str,
    condition: &str,
    config: &str,
) -> [Value; 2] {
    let mut found = [Value::Null, Value::Null];
    reporter
        .until(LIMIT, || {
            let (report, condition) = cluster.state("n1", state, condition)?;
            ensure!(report["config"]["state"] == config, "{report}");
            found = [report, condition];
            Ok(())
        })
        .unwrap();
    found
}

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn a_changed_copy_of_the_config_is_in_the_report_and_in_one_event_until_it_is_the_object_again() {
    let cluster = Cluster::start("node-config", "base");
    cluster.create(&foreign(PREFIX, "v1", "MachineConfig", "Cluster"));
    let established = ["wait", "--for=condition=Established", "--timeout=120s", "crd", "--all"];
    output(cluster.plane.kubectl().args(established)).unwrap();
    cluster.create(&json!({
        "apiVersion": format!("{PREFIX}/v1"), "kind": "MachineConfig",
        "metadata": { "name": NAME }, "spec": spec("data:;base64,YQ=="),
    }));
    annotate(&cluster, NAME, NAME);
    let mut sensor = PlayedSensor::start(cluster.folder.path());
    sensor.turn(&format!("expects {}", copy(&cluster, "data:,a")));
    let config = cluster.until_reporter_config("n1");
    let log = cluster.plane.log("reporter");
    let reporter = cluster.start_reporter("reporter.sock", &config, &[], &log);

    // The base gives no right to read MachineConfigs, so nothing is claimed.
    let [report, _] = until(&cluster, &reporter, "InSync", "False", "Unknown");
    let message = report["config"]["message"].as_str().unwrap();
    assert_eq!(message, format!("the reporter may not read MachineConfig {NAME}"));

    // With the component, another form of the same content is the same.
    let rights = dist::root().join("deploy/kustomize/components/machine-configs/rbac.yaml");
    output(cluster.plane.kubectl().args(["apply", "-f"]).arg(rights)).unwrap();
    sensor.turn(&format!("expects {}", copy(&cluster, "data:,b")));
    let [report, condition] = until(&cluster, &reporter, "Unknown", "Unknown", "Differs");
    assert_eq!(condition["reason"], "ConfigDiffers");
    let message = report["config"]["message"].as_str().unwrap();
    assert!(message.contains("currentconfig on the node differ"), "{message}");
    assert!(condition["message"].as_str().unwrap().contains(message), "{condition}");
    reporter.until(LIMIT, || cluster.notes("NodeConfigDiffers", 1).map(drop)).unwrap();

    // The next reporter tells it no second time, and a drift has an Event besides.
    drop(reporter);
    let reporter = cluster.start_reporter("reporter.sock", &config, &[], &log);
    sensor.turn("drift /etc/chrony.conf alice");
    until(&cluster, &reporter, "Drifted", "True", "Differs");
    reporter.until(LIMIT, || cluster.notes("ConfigDriftDetected", 1).map(drop)).unwrap();
    sensor.turn("recover /etc/chrony.conf");
    until(&cluster, &reporter, "Unknown", "Unknown", "Differs");

    // The object again, in another form.
    sensor.turn(&format!("expects {}", copy(&cluster, "data:text/plain;charset=utf-8,%61")));
    until(&cluster, &reporter, "InSync", "False", "Same");
    cluster.notes("NodeConfigDiffers", 1).unwrap();

    // The annotation names another config, without an update and with one.
    annotate(&cluster, "rendered-worker-2", "rendered-worker-2");
    let [report, _] = until(&cluster, &reporter, "InSync", "False", "Other");
    assert_eq!(
        (&report["config"]["expected"], &report["config"]["current"]),
        (&json!(NAME), &json!("rendered-worker-2"))
    );
    annotate(&cluster, "rendered-worker-2", NAME);
    until(&cluster, &reporter, "InSync", "False", "Updating");
    cluster.notes("NodeConfigDiffers", 1).unwrap();

    let configs = format!("/apis/{PREFIX}/v1/machineconfigs");
    read(&cluster, &config, None, &format!("{configs}/{NAME}")).unwrap();
    let error = format!("{:#}", read(&cluster, &config, None, &configs).unwrap_err());
    assert!(error.contains("(Forbidden)"), "{error}");
    no_other_right(&cluster, &config, &[&format!("get {PREFIX}/machineconfigs")]);
    cluster.plane.check().unwrap();
    reporter.check().unwrap();
}
