//! `kubectl holdfast plan` and `diff`: what the DriftReport of one node says.

use super::access::Access;
use super::error::PluginError;
use super::exit::{DIFFERS, IN_SYNC};
use super::output::{Screen, age};
use super::status::{INSTALL, is_stale};
use crate::api::{DriftReport, DriftReportStatus, DriftState, ReportedPlan, ReportedRewriting};
use crate::reports::{by, config_sentence};
use crate::text::count;
use jiff::Timestamp;
use kube::Api;
use serde_json::json;

/// What to do without a report of the node.
const NO_REPORT: &str = "`kubectl holdfast status` shows the nodes that have one";

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
pub(super) struct PlanOfNode {
    /// The node.
    node: String,
}

/// Arguments of `diff`.
#[derive(Debug, clap::Args)]
pub(super) struct Diff {
    /// The node.
    node: String,
}

/// The status of a node's report.
pub(super) async fn status_of(access: &Access, node: &str) -> Result<DriftReportStatus, PluginError> {
    let reports: Api<DriftReport> = Api::all(access.client.clone());
    let missing =
        || PluginError::NotFound { object: format!("the status of DriftReport {node}"), next: INSTALL };
    let report = reports.get(node).await;
    let report =
        report.map_err(|error| PluginError::request(&format!("DriftReport {node}"), NO_REPORT, error))?;
    report.status.ok_or_else(missing)
}

impl PlanOfNode {
    pub(super) async fn run(&self, access: &Access, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
        let status = status_of(access, &self.node).await?;
        let stale = is_stale(access, &self.node, screen).await?;
        let answer = json!({
            "schema": "holdfast.kubectl-plan/v1", "node": self.node, "stale": stale, "plan": status.plan,
        });
        if !screen.object(&answer)? {
            plan(&self.node, status.plan.as_ref(), screen)?;
        }
        Ok(if status.plan.is_some() || stale { DIFFERS } else { IN_SYNC })
    }
}

/// Prints a plan.
pub(super) fn plan(
    node: &str,
    plan: Option<&ReportedPlan>,
    screen: &mut Screen<'_>,
) -> Result<(), PluginError> {
    let Some(plan) = plan else {
        // A node in the mode `observe` has no plan, whatever its config is.
        return screen.line(&format!("node {node}: Holdfast applies nothing at present"));
    };
    screen.line(&format!("node {node} gets the MachineConfig {}", plan.config))?;
    for (number, action) in plan.actions.iter().enumerate() {
        screen.line(&format!("{:>3}. {action}", number + 1))?;
    }
    if plan.more > 0 {
        screen.line(&format!("     and {}", count(plan.more, "step")))?;
    }
    let drain = if plan.drain { "workloads leave the node" } else { "no drain" };
    let reboot = if plan.reboot { "the node reboots" } else { "no reboot" };
    screen.line(&format!("{drain}, {reboot}"))
}

impl Diff {
    pub(super) async fn run(&self, access: &Access, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
        let status = status_of(access, &self.node).await?;
        let stale = is_stale(access, &self.node, screen).await?;
        let answer = json!({
            "schema": "holdfast.kubectl-diff/v1",
            "node": self.node,
            "stale": stale,
            "observedAt": status.observed_at,
            "state": status.state,
            "count": status.count,
            "drifts": status.drifts,
            "more": status.more,
            "gaps": status.gaps,
            "osImage": status.os_image,
            "config": status.config,
            "logRewritten": status.log_rewritten,
        });
        if !screen.object(&answer)? {
            diff(&self.node, &status, Timestamp::now(), screen)?;
        }
        let is_in_sync = status.count == 0 && status.state == DriftState::InSync && !stale;
        Ok(if is_in_sync { IN_SYNC } else { DIFFERS })
    }
}

/// Prints what differs.
pub(super) fn diff(
    node: &str,
    status: &DriftReportStatus,
    now: Timestamp,
    screen: &mut Screen<'_>,
) -> Result<(), PluginError> {
    let ago = |time: Option<&str>| {
        time.and_then(|time| time.parse().ok()).map(|time| age(time, now)).unwrap_or_default()
    };
    if status.drifts.is_empty() {
        screen.line(&match status.state {
            DriftState::InSync if status.count == 0 => format!("node {node}: InSync, nothing differs"),
            state => format!("node {node}: {state:?}, and the report names nothing that differs"),
        })?;
    } else {
        let rows: Vec<[String; 6]> = status
            .drifts
            .iter()
            .map(|drift| {
                [
                    drift.path.clone(),
                    drift.kind.clone().unwrap_or_default(),
                    drift.differences.join(","),
                    by(drift.by.as_ref()),
                    ago(drift.since.as_deref()),
                    drift.source.clone(),
                ]
            })
            .collect();
        screen.table(["PATH", "KIND", "DIFFERS IN", "BY", "SINCE", "DECLARED BY"], &rows)?;
    }
    if status.more > 0 {
        screen.line(&format!("and {} that the report has no room for", count(status.more, "thing")))?;
    }
    let image = status.os_image.as_ref();
    if let Some(sentence) = image.and_then(|image| image.out_of_step.as_deref()) {
        screen.line(&format!("OS image out of step: {sentence}"))?;
    }
    if let Some(sentence) = config_sentence(status) {
        screen.line(&sentence)?;
    }
    if let Some(rewriting) = &status.log_rewritten {
        screen.line(&rewriting_text(rewriting))?;
    }
    for gap in &status.gaps {
        let about = gap.path.as_deref().map(|path| format!(" about {path}")).unwrap_or_default();
        let since = ago(gap.since.as_deref());
        screen.line(&format!("changes{about} may be missing since {since}: {}", gap.reason))?;
    }
    Ok(())
}

/// What a report says about a log that was written anew.
pub(super) fn rewriting_text(rewriting: &ReportedRewriting) -> String {
    let ReportedRewriting { at, sequence, found, .. } = rewriting;
    format!("at {at} the forensic log had been written anew: the report had entry {sequence}, and {found}")
}
