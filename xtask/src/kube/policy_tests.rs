//! `DriftPolicies`, with the API server: which ones it accepts, which nodes take them, and what reporters may do with them.

use super::installed::NAMESPACE;
use super::process::LoggedProcess;
use super::reporter_tests::{Cluster, LIMIT, PlayedSensor, refused};
use crate::dist;
use crate::run::output;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The key of the taint.
const TAINT: &str = "holdfast.dev/drifted";

fn policy(name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": { "name": name }, "spec": spec })
}

fn rule(path: &str, action: &str) -> Value {
    json!({ "path": path, "action": action })
}

fn apply(cluster: &Cluster, object: &Value) -> Result<String> {
    let file = cluster.file("policy.json", &object.to_string());
    output(cluster.plane.kubectl().args(["apply", "-f"]).arg(file))
}

/// Each fault is refused with a reason that names the field.
fn faults_are_refused(cluster: &Cluster) {
    let selector = |operator: &str, values: Value| {
        json!({ "rules": [rule("/etc/a", "deny")], "nodeSelector": { "matchExpressions": [
            { "key": "zone", "operator": operator, "values": values },
        ] } })
    };
    let actors =
        |actors: Value| json!({ "rules": [{ "path": "/etc/a", "action": "deny", "allowedActors": actors }] });
    let closed = |path: &str, except: Value| json!({ "rules": [{ "path": path, "action": "deny", "closed": true, "except": except }] });
    let absent = |mut rule: Value| {
        rule["absent"] = true.into();
        rule["action"] = "observe".into();
        json!({ "rules": [rule] })
    };
    for (spec, reason) in [
        (closed("/etc/a", json!([])), "a closed path is a directory"),
        (closed("/", json!([])), "a closed path is a directory"),
        (closed("/etc/**", json!([])), "a closed path is a directory"),
        (closed("/etc/a/", json!(["b/c"])), "spec.rules[0].except[0]"),
        (
            json!({ "rules": [{ "path": "/etc/a/", "action": "deny", "except": ["b"] }] }),
            "only a rule with closed: true has exceptions",
        ),
        (
            json!({ "rules": [{ "path": "/etc/a/", "action": "deny", "exceptLinks": [{ "name": "b", "target": "c" }] }] }),
            "only a rule with closed: true has exceptions",
        ),
        (
            json!({ "rules": [{ "path": "/usr/bin/", "action": "deny", "closed": true, "image": true }] }),
            "either closed: true or image: true",
        ),
        (
            json!({ "rules": [{ "path": "/usr/bin/", "action": "revert", "image": true }] }),
            "a rule with image: true cannot revert",
        ),
        (
            json!({ "rules": [{ "path": "/usr/", "action": "observe", "scan": true }] }),
            "only a rule with image: true has scan: true",
        ),
        (
            json!({ "rules": [{ "path": "/usr/", "action": "deny", "image": true, "scan": true }] }),
            "a rule with scan: true cannot deny",
        ),
        (absent(json!({ "path": "/etc/a/" })), "a path with absent: true is one path"),
        (absent(json!({ "path": "/etc/*" })), "a path with absent: true is one path"),
        (absent(json!({ "path": "/etc/a/", "closed": true })), "a rule has one of absent, closed and image"),
        (absent(json!({ "path": "/etc/a", "image": true })), "a rule has one of absent, closed and image"),
        (
            absent(json!({ "path": "/etc/a", "except": ["b"] })),
            "only a rule with closed: true has exceptions",
        ),
        // Kubernetes 1.33 has the type of the value in its place.
        (json!({ "rules": [rule("etc/a", "deny")] }), "spec.rules[0].path: Invalid value"),
        (json!({ "rules": [rule("etc/a", "deny")] }), "must be an absolute path"),
        (json!({ "rules": [rule("/etc/../a", "deny")] }), "must not contain an empty part, . or .."),
        (json!({ "rules": [rule("/etc//a", "deny")] }), "must not contain an empty part, . or .."),
        (json!({ "rules": [rule("/etc/*/", "deny")] }), "a glob matches names: end it with **"),
        (
            json!({ "rules": [rule("/etc/a", "ignore")] }),
            "spec.rules[0].action: Unsupported value: \"ignore\"",
        ),
        (json!({ "rules": [rule("/etc/a", "deny"), rule("/etc/a", "observe")] }), "Duplicate value"),
        (json!({ "rules": [] }), "spec.rules"),
        (json!({ "rules": [rule("/etc/a", "deny")], "precedence": 5000 }), "spec.precedence"),
        (json!({ "rules": [rule("/etc/a", "deny")], "pools": ["Not a pool"] }), "spec.pools[0]"),
        (selector("In", json!([])), "In and NotIn need values"),
        (selector("Exists", json!(["a"])), "Exists and DoesNotExist have none"),
        (selector("Near", json!(["a"])), "Unsupported value: \"Near\""),
        (actors(json!({ "pods": ["*/agent"] })), "allowedActors.pods[0]"),
        (actors(json!({ "exes": ["vi"] })), "allowedActors.exes[0]"),
        (actors(json!({ "serviceAccounts": ["agent"] })), "allowedActors.serviceAccounts[0]"),
    ] {
        refused(apply(cluster, &policy("faulty", &spec)), reason)
            .unwrap_or_else(|error| panic!("{spec}: {error:#}"));
    }
}

/// The state of each policy in the report of n1, by name.
fn reported(cluster: &Cluster) -> Result<Vec<(String, String)>> {
    let report = cluster.get(&["driftreport", "n1"])?;
    let policies = report["status"]["policies"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(policies.iter().map(|policy| (text(&policy["name"]), text(&policy["state"]))).collect())
}

fn taken(cluster: &Cluster, expected: &[(&str, &str)]) -> Result<()> {
    let found = reported(cluster)?;
    let found: Vec<(&str, &str)> = found.iter().map(|(name, state)| (&**name, &**state)).collect();
    ensure!(found == expected, "{found:?}");
    Ok(())
}

/// The taints of n1 by their keys.
fn taints(cluster: &Cluster) -> Result<Vec<String>> {
    let node = cluster.get(&["node", "n1"])?;
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    Ok(taints.iter().filter_map(|taint| taint["key"].as_str()).map(str::to_owned).collect())
}

/// A cluster with the base and the component `taint`.
fn cluster() -> Cluster {
    // Kustomize takes relative paths only.
    let kustomize = dist::root().join("deploy/kustomize");
    let work = tempfile::tempdir_in(&kustomize).unwrap();
    let text = json!({ "resources": ["../base"], "components": ["../components/taint"] });
    fs::write(work.path().join("kustomization.yaml"), text.to_string()).unwrap();
    Cluster::start("policies", work.path().file_name().unwrap().to_str().unwrap())
}

/// The controller with the token of its account.
fn controller(cluster: &Cluster) -> LoggedProcess {
    let token =
        output(cluster.plane.kubectl().args(["create", "token", "holdfast-controller", "-n", NAMESPACE]));
    let config =
        cluster.plane.config_with("controller", token.unwrap().trim(), super::ClientPlace::Host).unwrap();
    let config = cluster.file("controller.kubeconfig", &config);
    let mut command = Command::new(dist::target_dir().join("debug/holdfast-cluster"));
    command.args(["controller", "--probes", "127.0.0.1:0"]).env("KUBECONFIG", config);
    let log = cluster.plane.log("controller");
    LoggedProcess::start("holdfast-cluster", &mut command, &log).unwrap()
}

fn status(cluster: &Cluster, name: &str, expected: &Value) -> Result<()> {
    let policy = cluster.get(&["driftpolicy", name])?;
    let status = &policy["status"];
    let found = json!([status["selected"], status["inForce"], status["refused"]]);
    ensure!(
        found == *expected && status["observedGeneration"] == policy["metadata"]["generation"],
        "{status}"
    );
    Ok(())
}

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn a_node_takes_the_policies_that_select_it_and_shows_conflicts_and_the_taint_goes_with_the_drift() {
    let cluster = cluster();
    faults_are_refused(&cluster);
    output(cluster.plane.kubectl().args(["label", "node", "n1", "zone=a"])).unwrap();
    let mut sensor = PlayedSensor::start(cluster.folder.path());
    let socket = cluster.folder.path().join("run/reporter.sock");
    let kept = cluster.folder.path().join("state/cluster-policies.json");
    let mut config = None;
    cluster
        .plane
        .until(LIMIT, || {
            config = Some(cluster.reporter_config("n1")?);
            ensure!(socket.exists(), "the sensor has no socket yet");
            Ok(())
        })
        .unwrap();
    let config = config.unwrap();
    let mut command = Command::new(dist::target_dir().join("debug/holdfast-cluster"));
    command
        .args(["node", "--node-name", "n1", "--namespace", NAMESPACE, "--probes", "127.0.0.1:0"])
        .args(["--secure", "127.0.0.1:0", "--socket"])
        .arg(&socket)
        .env("KUBECONFIG", &config);
    let log = cluster.plane.log("reporter");
    let reporter = LoggedProcess::start("holdfast-cluster", &mut command, &log).unwrap();
    let controller = controller(&cluster);
    reporter.until(LIMIT, || cluster.state("n1", "InSync", "False").map(drop)).unwrap();

    // One selects the node by label, the other one another zone.
    let labels = |zone: &str| json!({ "matchLabels": { "zone": zone } });
    let here = json!({
        "nodeSelector": labels("a"), "taintDriftedNodes": true,
        "rules": [
            rule("/etc/a", "deny"), rule("/etc/b", "observe"),
            // A path may have one rule of each kind.
            { "path": "/etc/b", "action": "observe", "image": true },
        ],
    });
    apply(&cluster, &policy("here", &here)).unwrap();
    let elsewhere = json!({ "nodeSelector": labels("b"), "rules": [rule("/etc/b", "revert")] });
    apply(&cluster, &policy("elsewhere", &elsewhere)).unwrap();
    // The sensor observes, so it refuses nothing in the kernel.
    reporter.until(LIMIT, || taken(&cluster, &[("here", "Limited")])).unwrap();
    let list: Value = serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap();
    assert_eq!(list["items"][0]["spec"]["rules"][0], rule("/etc/a", "degrade"));
    controller.until(LIMIT, || status(&cluster, "here", &json!([1, 1, 0]))).unwrap();
    controller.until(LIMIT, || status(&cluster, "elsewhere", &json!([0, 0, 0]))).unwrap();

    // Other labels select another policy.
    let zone = |zone: &str| {
        output(cluster.plane.kubectl().args(["label", "--overwrite", "node", "n1", &format!("zone={zone}")]))
            .unwrap();
    };
    zone("b");
    reporter.until(LIMIT, || taken(&cluster, &[("elsewhere", "Limited")])).unwrap();
    zone("a");
    reporter.until(LIMIT, || taken(&cluster, &[("here", "Limited")])).unwrap();

    // A drift that degrades taints the node, beside the taint of an admin.
    output(cluster.plane.kubectl().args(["taint", "node", "n1", "example.com/mine=:NoSchedule"])).unwrap();
    sensor.turn("drift /etc/chrony.conf alice");
    reporter
        .until(LIMIT, || {
            let taints = taints(&cluster)?;
            ensure!(
                taints.contains(&TAINT.to_owned()) && taints.contains(&"example.com/mine".to_owned()),
                "{taints:?}"
            );
            Ok(())
        })
        .unwrap();
    only_the_taint(&cluster, &config);
    sensor.turn("recover /etc/chrony.conf");
    reporter
        .until(LIMIT, || {
            let taints = taints(&cluster)?;
            ensure!(
                !taints.contains(&TAINT.to_owned()) && taints.contains(&"example.com/mine".to_owned()),
                "{taints:?}"
            );
            Ok(())
        })
        .unwrap();

    // Another rule for the same path, at the same precedence: the node keeps what it has.
    apply(&cluster, &policy("second", &json!({ "rules": [rule("/etc/b", "revert")] }))).unwrap();
    reporter.until(LIMIT, || taken(&cluster, &[("here", "Conflict"), ("second", "Conflict")])).unwrap();
    let list: Value = serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
    controller
        .until(LIMIT, || {
            status(&cluster, "second", &json!([1, 0, 1]))?;
            let second = cluster.get(&["driftpolicy", "second"])?;
            let problem = &second["status"]["problems"][0];
            let message = problem["message"].as_str().context("no message")?;
            ensure!(problem["node"] == "n1" && message.contains("another rule for \"/etc/b\""), "{second}");
            Ok(())
        })
        .unwrap();

    // Without policies the node has those of its files alone.
    output(cluster.plane.kubectl().args(["delete", "driftpolicies", "--all"])).unwrap();
    reporter.until(LIMIT, || taken(&cluster, &[])).unwrap();
    reporter
        .until(LIMIT, || {
            ensure!(!kept.exists(), "the file is still there");
            Ok(())
        })
        .unwrap();
    cluster.plane.check().unwrap();
    reporter.check().unwrap();
    controller.check().unwrap();
}

/// With the component a reporter writes this taint with this effect, and no other field of the spec.
fn only_the_taint(cluster: &Cluster, config: &Path) {
    let apply = |name: &str, spec: &Value| {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name }, "spec": spec });
        let file = cluster.file("node.json", &node.to_string());
        let mut arguments =
            vec!["apply", "--server-side", "--force-conflicts", "--field-manager=holdfast-reporter"];
        arguments.extend(["-f", file.to_str().context("no text")?]);
        cluster.kubectl_as(config, &arguments)
    };
    let taint = |key: &str, effect: &str| json!({ "key": key, "effect": effect });
    let (mine, ours) = (taint("example.com/mine", "NoSchedule"), taint(TAINT, "NoSchedule"));
    let others = "a reporter changes no taint of a Node but holdfast.dev/drifted";
    for (name, spec, reason) in [
        ("n1", json!({ "taints": [ours] }), others),
        ("n1", json!({ "taints": [mine, ours, taint("example.com/other", "NoExecute")] }), others),
        (
            "n1",
            json!({ "taints": [mine, taint(TAINT, "NoExecute")] }),
            "a reporter's taint has the effect NoSchedule",
        ),
        ("n1", json!({ "unschedulable": true }), "a reporter changes no cordon or other field"),
        ("n2", json!({ "taints": [ours] }), "the reporter of n1 may not change the Node n2"),
    ] {
        refused(apply(name, &spec), reason).unwrap_or_else(|error| panic!("{spec}: {error:#}"));
    }
}
