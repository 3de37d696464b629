//! `kubectl holdfast` with the API server, found by `kubectl` as a plugin.
//!
//! The report of a node and the Lease of its reporter are written as a reporter writes them. No node runs a pod: the scenarios
//! `daemonset` and `daemonset-people` show the commands that ask one.

use super::control_plane::ClientPlace;
use super::installed::NAMESPACE;
use super::reporter_tests::{Cluster, LIMIT};
use crate::dist;
use crate::run::output;
use anyhow::ensure;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// What a command printed, and its exit code.
struct Answer {
    code: i32,
    out: String,
    err: String,
}

/// Runs `kubectl holdfast` with a config. The plugin is in `folder`.
fn plugin(cluster: &Cluster, folder: &Path, config: &Path, arguments: &[&str]) -> Answer {
    let paths = std::env::var("PATH").unwrap();
    let ran = cluster
        .plane
        .kubectl()
        .env("PATH", format!("{}:{paths}", folder.display()))
        .env("KUBECONFIG", config)
        .arg("holdfast")
        .args(arguments)
        .output()
        .unwrap();
    Answer {
        code: ran.status.code().unwrap(),
        out: String::from_utf8(ran.stdout).unwrap(),
        err: String::from_utf8(ran.stderr).unwrap(),
    }
}

/// kubectl asks the plugin what may follow: commands, and nodes that have a report.
fn completes(cluster: &Cluster, folder: &Path, config: &Path) {
    fs::hard_link(folder.join("kubectl-holdfast"), folder.join("kubectl_complete-holdfast")).unwrap();
    let paths = std::env::var("PATH").unwrap();
    let asked = |words: &[&str]| {
        let mut kubectl = cluster.plane.kubectl();
        kubectl.env("PATH", format!("{}:{paths}", folder.display())).env("KUBECONFIG", config);
        output(kubectl.args(["__complete", "holdfast"]).args(words)).unwrap()
    };
    let commands = asked(&["di"]);
    assert!(commands.starts_with("diff\tShow every thing") && commands.contains(":4"), "{commands}");
    // The answer has a time limit.
    cluster
        .plane
        .until(LIMIT, || {
            let nodes = asked(&["diff", ""]);
            ensure!(nodes.starts_with("n1\n"), "{nodes}");
            Ok(())
        })
        .unwrap();
}

/// Makes a service account, and gives the config with its token.
fn account(cluster: &Cluster, name: &str) -> PathBuf {
    let kubectl = |arguments: &[&str]| output(cluster.plane.kubectl().args(arguments)).unwrap();
    kubectl(&["create", "serviceaccount", name, "--namespace", NAMESPACE]);
    let token = kubectl(&["create", "token", name, "--namespace", NAMESPACE]);
    let config = cluster.plane.config_with(name, token.trim(), ClientPlace::Host).unwrap();
    cluster.file(&format!("{name}.kubeconfig"), &config)
}

/// Writes the report of n1, which has a drift, and a Lease that was renewed at this time.
fn report(cluster: &Cluster, renewed: &str) {
    let by = json!({ "pid": 1, "uid": 0, "holdfast": false, "loginUser": "alice", "process": "/usr/bin/vi" });
    let drift = json!({
        "kind": "file", "path": "/etc/chrony.conf", "differences": ["content"], "by": by,
        "since": "2026-01-02T03:04:05Z", "source": "99-worker",
    });
    let newest = json!({ "path": "/etc/chrony.conf", "by": "root login alice via vi", "since": "2026-01-02T03:04:05Z" });
    let objects = [
        json!({ "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftReport", "metadata": { "name": "n1" } }),
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": "n1", "namespace": NAMESPACE },
            "spec": { "holderIdentity": "n1", "leaseDurationSeconds": 36000, "renewTime": renewed },
        }),
    ];
    for object in objects {
        let file = cluster.file("object.json", &object.to_string());
        output(cluster.plane.kubectl().args(["apply", "--server-side", "--force-conflicts", "-f"]).arg(file))
            .unwrap();
    }
    let status = json!({
        "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftReport", "metadata": { "name": "n1" },
        "status": { "state": "Drifted", "count": 1, "newest": newest, "drifts": [drift] },
    });
    let file = cluster.file("object.json", &status.to_string());
    let apply = ["apply", "--server-side", "--force-conflicts", "--subresource=status", "-f"];
    output(cluster.plane.kubectl().args(apply).arg(file)).unwrap();
}

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn kubectl_holdfast_shows_nodes_to_those_who_have_the_right_and_names_the_role_to_others() {
    let cluster = Cluster::start("plugin", "base");
    let folder = tempfile::tempdir().unwrap();
    let program = dist::target_dir().join("debug/holdfast-cluster");
    symlink(program, folder.path().join("kubectl-holdfast")).unwrap();
    let admin = cluster.plane.admin_config();
    // The definition of the kind is there a moment after it was applied.
    cluster
        .plane
        .until(LIMIT, || {
            let empty = plugin(&cluster, folder.path(), &admin, &["status"]);
            ensure!(empty.code == 1, "{}{}", empty.out, empty.err);
            Ok(())
        })
        .unwrap();

    report(&cluster, "2026-01-02T03:04:05.000000Z");
    let stale = plugin(&cluster, folder.path(), &admin, &["status"]);
    assert!(stale.code == 1 && stale.out.contains("Stale (Drifted)"), "{}{}", stale.out, stale.err);
    report(&cluster, &Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string());
    let drifted = plugin(&cluster, folder.path(), &admin, &["status"]);
    assert_eq!(drifted.code, 1, "{}{}", drifted.out, drifted.err);
    assert!(
        drifted.out.contains("n1     Drifted    1       /etc/chrony.conf   root login alice via vi"),
        "{}",
        drifted.out
    );
    assert!(drifted.out.contains("n2     NoReport"), "{}", drifted.out);

    let reader = account(&cluster, "reader");
    let denied = plugin(&cluster, folder.path(), &reader, &["status"]);
    assert_eq!((denied.code, denied.out.as_str()), (3, ""), "{}", denied.err);
    assert!(
        denied.err.contains("driftreports") && denied.err.contains("`holdfast-log-reader`"),
        "{}",
        denied.err
    );

    let subject = format!("--serviceaccount={NAMESPACE}:reader");
    let role = ["create", "clusterrolebinding", "reader", "--clusterrole=holdfast-log-reader", &subject];
    output(cluster.plane.kubectl().args(role)).unwrap();
    let role =
        ["create", "rolebinding", "reader", "--role=holdfast-log-reader", "--namespace", NAMESPACE, &subject];
    output(cluster.plane.kubectl().args(role)).unwrap();
    let mut shown = plugin(&cluster, folder.path(), &reader, &["status", "-o", "json"]);
    cluster
        .plane
        .until(LIMIT, || {
            shown = plugin(&cluster, folder.path(), &reader, &["status", "-o", "json"]);
            ensure!(shown.code == 1, "{}", shown.err);
            Ok(())
        })
        .unwrap();
    let nodes: Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(nodes["nodes"][0]["by"], "root login alice via vi");
    assert!(shown.err.contains("may not list nodes"), "{}", shown.err);
    let diff = plugin(&cluster, folder.path(), &reader, &["diff", "n1", "--report"]);
    assert!(diff.code == 1 && diff.out.contains("99-worker"), "{}{}", diff.out, diff.err);
    let plan = plugin(&cluster, folder.path(), &reader, &["plan", "n1", "--report"]);
    assert!(plan.code == 0 && plan.out.contains("applies nothing at present"), "{}{}", plan.out, plan.err);
    let missing = plugin(&cluster, folder.path(), &reader, &["diff", "n2", "--report"]);
    assert!(missing.code == 3 && missing.err.contains("DriftReport n2 does not exist"), "{}", missing.err);
    for command in [&["who", "n1", "/etc/chrony.conf"][..], &["diff", "n1"], &["plan", "n1"]] {
        let silent = plugin(&cluster, folder.path(), &reader, command);
        let said = "no pod of Holdfast with a running reporter";
        assert!(silent.code == 3 && silent.err.contains(said), "{command:?}: {}", silent.err);
        assert_eq!(
            silent.err.contains("--report` shows what the node reported last"),
            command[0] != "who",
            "{}",
            silent.err
        );
    }
    let usage = plugin(&cluster, folder.path(), &reader, &["who", "n1"]);
    assert!(usage.code == 2 && usage.out.is_empty(), "{}", usage.err);
    let script = plugin(&cluster, folder.path(), &reader, &["completion", "bash"]);
    assert!(script.code == 0 && script.out.contains("kubectl-holdfast"), "{}", script.err);
    completes(&cluster, folder.path(), &reader);
    fs::remove_file(folder.path().join("kubectl-holdfast")).unwrap();
    cluster.plane.check().unwrap();
}
