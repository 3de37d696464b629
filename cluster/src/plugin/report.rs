//! The DriftReport of one node.
//!
//! In: a client of the API server, and a node's name. Out: the status of the node's report.

use super::access::Access;
use super::error::PluginError;
use super::output::Screen;
use super::status::INSTALL;
use crate::api::{DriftReport, DriftReportStatus, ReportedRewriting};
use kube::Api;

/// What to do without a report of the node.
const NO_REPORT: &str = "`kubectl holdfast status` shows the nodes that have one";

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

/// Gives the answer of a node. If there is none, notes what needs neither the node nor a token for it.
pub(super) fn asked<T>(
    answer: Result<T, PluginError>,
    command: &str,
    node: &str,
    screen: &mut Screen<'_>,
) -> Result<T, PluginError> {
    if answer.as_ref().is_err_and(|error| !matches!(error, PluginError::Output(_) | PluginError::Format(_))) {
        screen.note(&format!(
            "note: `kubectl holdfast {command} {node} --report` shows what the node reported last, and does not ask the node"
        ))?;
    }
    answer
}

/// What a report says about a log that was written anew.
pub(super) fn rewriting_text(rewriting: &ReportedRewriting) -> String {
    let ReportedRewriting { at, sequence, found, .. } = rewriting;
    format!("at {at} the forensic log had been written anew: the report had entry {sequence}, and {found}")
}
