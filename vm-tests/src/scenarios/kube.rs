//! The `DaemonSet` on a real kubelet: a pod sees an edit on its node, and the cluster shows who made it.
//!
//! In: a node that joins the control plane on the host, with the example config on its disk. Out: checks of the node's
//! `DriftReport` and conditions, as kubectl shows them.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::guest::kube::{self, NODE};
use crate::guest::service::{CONFIG_NAME, as_alice, prepare};
use crate::guest::{Context, wait};

/// The file that alice edits.
const FILE: &str = "/etc/chrony.conf";
/// How long a report may take in an emulated guest. The bench measures the time.
const LIMIT: Duration = Duration::from_mins(1);

/// The scenario.
pub(super) fn kubelet(context: &mut Context) -> Result<()> {
    prepare(&[])?;
    kube::join(context)?;
    context.check("node_is_ready", Ok(String::new()));
    let pod = kube::deploy(context)?;
    context.check("pod_is_ready", Ok(pod));
    let report = in_sync()?;
    context.check("report_says_in_sync", Ok(report["status"]["state"].to_string()));
    as_alice(&format!("sudo sed -i s/time1.example.com/time.attacker.example/ {FILE}"))?;
    let drifted = drifted().with_context(kube::pods)?;
    context.check("report_names_path_and_login", Ok(drifted));
    context.check("condition_says_drift", conditions("True"));
    as_alice(&format!("sudo sed -i s/time.attacker.example/time1.example.com/ {FILE}"))?;
    context
        .check("recovery_clears_the_report", in_sync().map(|report| report["status"]["state"].to_string()));
    context.check("recovery_clears_the_condition", conditions("False"));
    Ok(())
}

/// Waits until the report has this state.
fn state(state: &str) -> Result<Value> {
    let what = format!("the report to say {state}");
    let found = wait::until(&what, LIMIT, || {
        Ok(kube::get("driftreport", NODE).ok().filter(|report| report["status"]["state"] == state))
    });
    found.with_context(|| {
        format!(
            "report: {:?}\n{}",
            kube::get("driftreport", NODE).unwrap_or_default().to_string(),
            kube::pods()
        )
    })
}

fn in_sync() -> Result<Value> {
    let report = state("InSync")?;
    ensure!(report["status"]["count"] == 0, "{report}");
    Ok(report)
}

/// The report names the path, the login and the config; kubectl's table shows them.
fn drifted() -> Result<String> {
    let report = state("Drifted")?;
    let drift = &report["status"]["drifts"][0];
    ensure!(drift["path"] == FILE && drift["source"] == CONFIG_NAME, "{report}");
    ensure!(drift["by"]["loginUser"] == "alice", "{report}");
    let table = kube::kubectl(&["get", "driftreports"])?;
    ensure!(table.contains(NODE) && table.contains(FILE) && table.contains("alice"), "{table}");
    Ok(table)
}

/// Waits until the node's condition has this status.
fn conditions(wanted: &str) -> Result<String> {
    wait::until(&format!("the condition ConfigDrift to be {wanted}"), LIMIT, || {
        let node = kube::get("node", NODE)?;
        Ok((kube::condition(&node, "ConfigDrift").as_deref() == Some(wanted)).then_some(wanted.to_owned()))
    })
}
