//! `kubectl holdfast diff`: what differs on one node.
//!
//! In: the status of the node's sensor and the node's DriftReport, or the report alone. Out: each thing that differs.

use super::access::Access;
use super::error::PluginError;
use super::exit::{DIFFERS, IN_SYNC};
use super::node_log::{LogPages, status_of_node};
use super::output::{Screen, age};
use super::report::{asked, rewriting_text, status_of};
use super::status::is_stale;
use super::tunnel::pages_of;
use crate::api::{DriftReportStatus, DriftState};
use crate::reports::{by, config_sentence, current};
use crate::text::count;
use jiff::Timestamp;
use sensor_model::status::DriftedThing;
use serde_json::json;

/// Arguments of `diff`.
#[derive(Debug, clap::Args)]
pub(super) struct Diff {
    /// The node.
    node: String,
    /// Do not ask the node, and send it no token: show what its DriftReport says.
    #[arg(long)]
    report: bool,
}

impl Diff {
    pub(super) async fn run(&self, access: &Access, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
        let report = status_of(access, &self.node).await?;
        if self.report {
            let stale = is_stale(access, &self.node, screen).await?;
            return self.show(&report, None, stale, screen);
        }
        let answer =
            async { self.of_node(&mut pages_of(access, &self.node).await?, &report, screen).await }.await;
        asked(answer, "diff", &self.node, screen)
    }

    /// The answer of the node with these pages.
    pub(super) async fn of_node<P: LogPages>(
        &self,
        pages: &mut P,
        report: &DriftReportStatus,
        screen: &mut Screen<'_>,
    ) -> Result<u8, PluginError> {
        let status = status_of_node(pages, &self.node).await?;
        self.show(&current(report, &status), Some(&status.drifted), false, screen)
    }

    /// Shows what differs. `things` are those of the node, with expected and found values.
    fn show(
        &self,
        status: &DriftReportStatus,
        things: Option<&[DriftedThing]>,
        stale: bool,
        screen: &mut Screen<'_>,
    ) -> Result<u8, PluginError> {
        let answer = json!({
            "schema": "holdfast.kubectl-diff/v1",
            "node": self.node,
            "stale": stale,
            "observedAt": status.observed_at,
            "state": status.state,
            "count": status.count,
            "drifts": status.drifts,
            "more": status.more,
            "things": things,
            "gaps": status.gaps,
            "osImage": status.os_image,
            "config": status.config,
            "logRewritten": status.log_rewritten,
        });
        if !screen.object(&answer)? {
            diff(&self.node, status, Timestamp::now(), screen)?;
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
            state => format!("node {node}: {state:?}, and nothing that differs is known by name"),
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
        screen.line(&format!("and {} that the answer has no room for", count(status.more, "thing")))?;
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
