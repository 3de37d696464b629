//! A `DriftPolicy` on a real node: it allows the service account of a pod that has changed a file.
//!
//! In: a node with the `DaemonSet`'s pod, on which a pod of the namespace `team` has changed a file. Out: checks of the node's report and
//! of the policy's status, which the controller writes.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::guest::kube::{self, NODE, kubectl};
use crate::guest::{Context, wait};

/// How long each step may take in an emulated guest.
const LIMIT: Duration = Duration::from_secs(100);
const NAME: &str = "editors";
const MANIFEST: &str = "/run/policy.json";

/// The policy is in force while it exists, and the drift that is open gets its action.
pub(super) fn allowed(context: &mut Context, file: &str) {
    context.check("a_drift_policy_allows_the_service_account_of_the_pod_that_edited", in_force(file));
    context.check("the_controller_counts_the_node_that_took_the_policy", counted());
    context.check("without_the_policy_the_drift_degrades_again", deleted());
}

fn in_force(file: &str) -> Result<String> {
    let rule = json!({
        "path": file, "action": "degrade", "allowedActors": { "serviceAccounts": ["team/default"] },
    });
    let policy = json!({
        "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": { "name": NAME },
        "spec": {
            "nodeSelector": { "matchLabels": { "kubernetes.io/os": "linux" } },
            "precedence": 10, "rules": [rule],
        },
    });
    fs::write(MANIFEST, policy.to_string())?;
    kubectl(&["apply", "-f", MANIFEST])?;
    report("the policy to be in force", |status| {
        status["policies"][0]["state"] == "InForce"
            && status["degraded"] == false
            && status["drifts"][0]["policy"] == "observe"
    })
}

fn counted() -> Result<String> {
    let policy = wait::until("the policy's status to count the node", LIMIT, || {
        let policy = kube::get("driftpolicy", NAME)?;
        let status = &policy["status"];
        Ok((status["inForce"] == 1 && status["nodes"][0] == NODE).then(|| status.to_string()))
    });
    policy.with_context(kube::pods)
}

fn deleted() -> Result<String> {
    kubectl(&["delete", "driftpolicy", NAME])?;
    report("the drift to degrade the node", |status| {
        status["policies"].is_null()
            && status["degraded"] == true
            && status["drifts"][0]["policy"] == "degrade"
    })
}

/// Waits until the report is as wanted.
fn report(what: &str, is_so: impl Fn(&Value) -> bool) -> Result<String> {
    let found = wait::until(what, LIMIT, || {
        let report = kube::get("driftreport", NODE)?;
        Ok(is_so(&report["status"]).then(|| report["status"]["policies"].to_string()))
    });
    found.with_context(|| {
        let last = kube::get("driftreport", NODE).unwrap_or_default();
        format!("report: {last}\n{}", kube::pods())
    })
}
