//! What the cluster says about a node's OS image, with the API server.
//!
//! The test plays the Machine Config Operator and bootc-operator: it writes annotations, a `MachineOSBuild` and a `BootcNode`. Their kinds accept
//! every field.

use super::deploy_tests::foreign;
use super::process::LoggedProcess;
use super::reporter_tests::{Cluster, LIMIT, PlayedSensor};
use super::rights_tests::read;
use crate::run::output;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::path::Path;

const PREFIX: &str = "machineconfiguration.openshift.io";
const A: &str = "quay.io/os@sha256:aa";
const B: &str = "quay.io/os@sha256:bb";

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn an_opinion_about_the_os_image_that_is_out_of_step_is_in_the_report_until_it_agrees() {
    let cluster = Cluster::start("os-image", "base");
    for (group, version, kind) in [
        (PREFIX, "v1", "MachineOSBuild"),
        (PREFIX, "v1", "MachineConfig"),
        ("node.bootc.dev", "v1alpha1", "BootcNode"),
    ] {
        cluster.create(&foreign(group, version, kind, "Cluster"));
    }
    let established = ["wait", "--for=condition=Established", "--timeout=120s", "crd", "--all"];
    output(cluster.plane.kubectl().args(established)).unwrap();
    build(&cluster, "old", "rendered-1", A);
    build(&cluster, "new", "rendered-2", A);
    bootc(&cluster, A);
    annotate(&cluster, B);
    let mut sensor = PlayedSensor::start(cluster.folder.path());
    sensor.turn(&format!("boots {A}"));
    let config = cluster.until_reporter_config("n1");
    let log = cluster.plane.log("reporter");
    let reporter = cluster.start_reporter("reporter.sock", &config, &[], &log);

    // The annotation is alone.
    let found = out_of_step(&cluster, &reporter);
    let sentence = format!(
        "the annotation desiredImage names {B}; the node booted {A}, and BootcNode n1 wants the same image"
    );
    assert_eq!(found["outOfStep"], sentence);
    assert_eq!((&found["booted"], &found["desired"]), (&json!(A), &json!(B)));
    assert_eq!((&found["build"], &found["bootcNode"]), (&json!("new"), &json!(A)));
    let condition = cluster.state("n1", "Drifted", "True").unwrap().1;
    assert!(condition["message"].as_str().unwrap().contains(&sentence), "{condition}");
    reporter.until(LIMIT, || cluster.notes("ConfigDriftDetected", 1).map(drop)).unwrap();

    // It agrees.
    annotate(&cluster, A);
    reporter.until(LIMIT, || in_step(&cluster)).unwrap();
    reporter.until(LIMIT, || cluster.notes("ConfigDriftRecovered", 1).map(drop)).unwrap();

    // The cluster has another image for the config of the node.
    let delete = ["delete", "machineosbuild", "new"];
    output(cluster.plane.kubectl().args(delete)).unwrap();
    build(&cluster, "newer", "rendered-2", B);
    state(&cluster, "Working");
    in_step(&cluster).unwrap();
    state(&cluster, "Done");
    let found = out_of_step(&cluster, &reporter);
    let text = found["outOfStep"].as_str().unwrap();
    assert!(text.starts_with("MachineOSBuild old built the booted"), "{text}");
    assert!(text.ends_with(&format!("from which MachineOSBuild newer built {B}")), "{text}");

    // The build of the booted image is gone, and a label of the image has its config.
    let delete = ["delete", "machineosbuild", "old"];
    output(cluster.plane.kubectl().args(delete)).unwrap();
    sensor.turn(&format!("boots {A} rendered-1"));
    reporter
        .until(LIMIT, || {
            let found = cluster.state("n1", "Drifted", "True")?.0["osImage"].clone();
            ensure!(found["builtFrom"] == "rendered-1", "{found}");
            let text = found["outOfStep"].as_str().context("in step")?;
            ensure!(text.starts_with("the label of the booted"), "{text}");
            ensure!(text.ends_with(&format!("from which MachineOSBuild newer built {B}")), "{text}");
            Ok(())
        })
        .unwrap();

    // A file differs from what a layer of the image ships.
    sensor.turn("drift /usr/bin/kubelet alice layer");
    reporter.until(LIMIT, || names_the_layer(&cluster)).unwrap();

    only_these_objects(&cluster, &config);
    cluster.plane.check().unwrap();
    reporter.check().unwrap();
}

/// A token of a reporter lists builds and reads a `BootcNode`. It reads no config and writes none of them.
fn only_these_objects(cluster: &Cluster, config: &Path) {
    let operator = format!("/apis/{PREFIX}/v1");
    read(cluster, config, None, &format!("{operator}/machineosbuilds")).unwrap();
    read(cluster, config, None, "/apis/node.bootc.dev/v1alpha1/bootcnodes/n1").unwrap();
    for path in [
        format!("{operator}/machineosbuilds/newer"),
        format!("{operator}/machineconfigs"),
        format!("{operator}/machineconfigs/rendered-1"),
        "/apis/node.bootc.dev/v1alpha1/bootcnodes".to_owned(),
    ] {
        let error = format!("{:#}", read(cluster, config, None, &path).unwrap_err());
        assert!(error.contains("(Forbidden)"), "{path}: {error}");
    }
    for kind in ["machineosbuild/newer", "bootcnode/n1"] {
        let annotate = ["annotate", kind, "x=y"];
        let error = format!("{:#}", cluster.kubectl_as(config, &annotate).unwrap_err());
        assert!(error.contains("is forbidden"), "{kind}: {error}");
    }
}

/// The report and the condition say which layer ships the file of a drift, and the report how strong that is.
fn names_the_layer(cluster: &Cluster) -> Result<()> {
    let (report, condition) = cluster.state("n1", "Drifted", "True")?;
    let drifts = report["drifts"].as_array().context("no drifts")?;
    let drift = drifts.iter().find(|drift| drift["path"] == "/usr/bin/kubelet").context("not reported")?;
    let layer = drift["source"].as_str().unwrap_or_default();
    ensure!(
        layer.starts_with("layer 2 of 2, sha256:2222") && layer.ends_with("dnf install -y kubelet"),
        "{drift}"
    );
    ensure!(drift["strength"] == "sha256 of a layer" && drift["by"]["loginUser"] == "alice", "{drift}");
    let message = condition["message"].as_str().unwrap_or_default();
    ensure!(message.contains("/usr/bin/kubelet (content)"), "{condition}");
    ensure!(message.contains("(source layer 2 of 2, sha256:2222"), "{condition}");
    Ok(())
}

/// Waits until an opinion is out of step. Gives `status.osImage`.
fn out_of_step(cluster: &Cluster, reporter: &LoggedProcess) -> Value {
    let mut found = Value::Null;
    reporter
        .until(LIMIT, || {
            let (report, _) = cluster.state("n1", "Drifted", "True")?;
            ensure!(report["osImage"]["outOfStep"].is_string(), "{report}");
            ensure!(report["drifts"][0]["kind"] == "os-image", "{report}");
            found = report["osImage"].clone();
            Ok(())
        })
        .unwrap();
    found
}

fn in_step(cluster: &Cluster) -> Result<()> {
    let (report, _) = cluster.state("n1", "InSync", "False")?;
    let image = report["osImage"].as_object().context("no osImage")?;
    ensure!(!image.contains_key("outOfStep"), "{report}");
    Ok(())
}

fn build(cluster: &Cluster, name: &str, config: &str, image: &str) {
    cluster.create(&json!({
        "apiVersion": format!("{PREFIX}/v1"),
        "kind": "MachineOSBuild",
        "metadata": { "name": name },
        "spec": { "machineConfig": { "name": config }, "machineOSConfig": { "name": "worker" } },
        "status": { "digestedImagePushSpec": image },
    }));
}

fn bootc(cluster: &Cluster, image: &str) {
    cluster.create(&json!({
        "apiVersion": "node.bootc.dev/v1alpha1",
        "kind": "BootcNode",
        "metadata": { "name": "n1" },
        "spec": { "desiredImage": image, "desiredImageState": "Booted" },
        "status": { "observedGeneration": 1, "conditions": [{ "type": "Idle", "status": "True" }] },
    }));
}

/// As the operator after an update to this image.
fn annotate(cluster: &Cluster, image: &str) {
    let config = "rendered-2";
    let annotations = [
        ("currentConfig", config),
        ("desiredConfig", config),
        ("currentImage", image),
        ("desiredImage", image),
        ("state", "Done"),
    ];
    let mut kubectl = cluster.plane.kubectl();
    kubectl.args(["annotate", "--overwrite", "node", "n1"]);
    kubectl.args(annotations.iter().map(|(name, value)| format!("{PREFIX}/{name}={value}")));
    output(&mut kubectl).unwrap();
}

fn state(cluster: &Cluster, state: &str) {
    let annotation = format!("{PREFIX}/state={state}");
    output(cluster.plane.kubectl().args(["annotate", "--overwrite", "node", "n1", &annotation])).unwrap();
}
