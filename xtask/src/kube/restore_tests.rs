//! The reporter with an API server whose etcd was restored from a backup, so that it has only earlier versions than the reporter knows.

use super::reporter_tests::{Cluster, LIMIT, PlayedSensor};
use crate::run::output;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;

/// Objects that are made after the backup. Each is a version.
const OBJECTS: usize = 300;

/// Makes a policy that selects the nodes with this label.
fn make_policy(cluster: &Cluster, name: &str, zone: &str) {
    let path = format!("/etc/{name}");
    cluster.create(&json!({
        "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": { "name": name },
        "spec": {
            "nodeSelector": { "matchLabels": { "zone": zone } },
            "rules": [{ "path": path, "action": "observe" }],
        },
    }));
}

fn label(cluster: &Cluster, zone: &str) {
    let zone = format!("zone={zone}");
    output(cluster.plane.kubectl().args(["label", "--overwrite", "node", "n1", &zone])).unwrap();
}

/// The report of n1 names exactly these policies.
fn reported(cluster: &Cluster, names: &[&str]) -> Result<()> {
    let report = cluster.get(&["driftreport", "n1"])?;
    let policies = report["status"]["policies"].as_array().cloned().unwrap_or_default();
    let found: Vec<&str> = policies.iter().filter_map(|policy| policy["name"].as_str()).collect();
    ensure!(found == names, "{found:?}");
    Ok(())
}

fn version(cluster: &Cluster) -> u64 {
    let text = output(cluster.plane.kubectl().args(["get", "--raw", "/api/v1/namespaces?limit=1"])).unwrap();
    let list: Value = serde_json::from_str(&text).unwrap();
    list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// The longest time until the reporter has noticed. Its pauses have grown to a minute when the API server is back: one passes before it asks
/// whether its version is known, and one before it lists.
const RESTORED: Duration = Duration::from_mins(4);

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn a_reporter_follows_node_and_policies_of_a_restored_etcd_although_their_versions_are_earlier() {
    let mut cluster = Cluster::start("restore", "base");
    let _sensor = PlayedSensor::start(cluster.folder.path());
    let config = cluster.until_reporter_config("n1");
    let log = cluster.plane.log("reporter");
    let reporter = cluster.start_reporter("reporter.sock", &config, &[], &log);
    reporter.until(LIMIT, || cluster.state("n1", "InSync", "False").map(drop)).unwrap();
    cluster.plane.back_up().unwrap();

    let maps: Vec<Value> = (0..OBJECTS)
        .map(|number| {
            json!({ "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": format!("m-{number}"), "namespace": "default" } })
        })
        .collect();
    cluster.create(&json!({ "apiVersion": "v1", "kind": "List", "items": maps }));
    make_policy(&cluster, "lost", "a");
    label(&cluster, "a");
    reporter.until(LIMIT, || reported(&cluster, &["lost"])).unwrap();
    let before = version(&cluster);

    cluster.plane.restore().unwrap();
    make_policy(&cluster, "kept", "b");
    label(&cluster, "b");
    reporter.until(RESTORED, || reported(&cluster, &["kept"])).unwrap();
    assert!(version(&cluster) < before, "the server has the versions of before again");
    cluster.plane.check().unwrap();
    reporter.check().unwrap();
}
