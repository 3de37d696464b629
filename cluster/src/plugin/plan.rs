//! `kubectl holdfast plan`: what the apply of the next config does to a node, and how far it is.
//!
//! In: the newest plan of the node's sensor, its progress and the node's DriftReport, or the report alone. Out: the steps, what needs them, and
//! the changes.

use super::access::Access;
use super::error::PluginError;
use super::exit::{DIFFERS, IN_SYNC};
use super::node_log::{LogPages, parsed};
use super::output::Screen;
use super::pages::NodePages;
use super::report::{asked, status_of};
use super::status::is_stale;
use super::tunnel::ForwardedReporter;
use crate::api::{DriftReportStatus, ReportedPlan};
use crate::manage::reported;
use crate::text::count;
use sensor_model::plan::Plan;
use sensor_model::socket::{APPLY, ApplyPhase, ApplyProgress, CONFIG, PlannedConfig, SocketErrorReason};
use serde_json::json;
use std::time::Duration;

/// Most reasons of a step that are shown.
const REASONS: usize = 3;

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
pub(super) struct PlanOfNode {
    /// The node.
    node: String,
    /// Do not ask the node, and send it no token: show what its DriftReport says.
    #[arg(long)]
    report: bool,
}

/// What a node is about to apply.
#[derive(Debug)]
pub(super) struct NodePlan {
    /// How far the newest order is. `None`: the node applies nothing, because its sensor does not run in the mode `manage`.
    progress: Option<ApplyProgress>,
    /// The plan, if it is not applied yet.
    planned: Option<PlannedConfig>,
    /// The node keeps no plan of the newest config.
    keeps_none: bool,
}

impl NodePlan {
    /// What the node with these pages says. A plan that is not begun counts only while its report has it: the cluster may want another config now.
    async fn of<P: LogPages>(
        pages: &mut P,
        node: &str,
        report: &DriftReportStatus,
    ) -> Result<Self, PluginError> {
        let refused = |error| PluginError::Refused { node: node.to_owned(), error };
        let progress: ApplyProgress = match pages.get(APPLY, Duration::ZERO).await? {
            Err(error) if error.reason == SocketErrorReason::NotManaged => {
                return Ok(Self { progress: None, planned: None, keeps_none: false });
            }
            answer => parsed(node, APPLY, &answer.map_err(refused)?)?,
        };
        let planned: Option<PlannedConfig> = match pages.get(CONFIG, Duration::ZERO).await? {
            Err(error) if error.reason == SocketErrorReason::NotPlanned => None,
            answer => Some(parsed(node, CONFIG, &answer.map_err(refused)?)?),
        };
        let is_open = |planned: &PlannedConfig| {
            let is_ordered = progress.id.as_ref() == Some(&planned.id);
            if is_ordered && progress.phase != ApplyPhase::Done {
                return true;
            }
            // After a rollback on the node the same config waits again.
            if is_ordered && progress.current.as_ref() == Some(&planned.config) {
                return false;
            }
            let is_published = report.plan.as_ref().is_some_and(|plan| plan.config == planned.config);
            !planned.has_nothing_to_do && (is_published || !planned.plan.reconcilable)
        };
        let keeps_none = planned.is_none();
        Ok(Self { planned: planned.filter(is_open), progress: Some(progress), keeps_none })
    }
}

impl NodePlan {
    /// The progress of an order that is not over well, of whose config the node keeps no plan: an earlier version made it, or it is too long.
    fn unplanned(&self) -> Option<&ApplyProgress> {
        let is_open =
            |phase| matches!(phase, ApplyPhase::Running | ApplyPhase::Rebooting | ApplyPhase::Failed);
        self.progress.as_ref().filter(|progress| self.keeps_none && is_open(progress.phase))
    }

    /// Whether the node is about to change, or failed to.
    fn is_open(&self) -> bool {
        self.planned.is_some() || self.unplanned().is_some()
    }
}

impl PlanOfNode {
    pub(super) async fn run(&self, access: &Access, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
        let report = status_of(access, &self.node).await?;
        if self.report {
            let stale = is_stale(access, &self.node, screen).await?;
            return self.show_report(report.plan.as_ref(), stale, screen);
        }
        let answer = match ForwardedReporter::of(access, &self.node).await {
            Ok(reporter) => self.of_node(&mut NodePages::of(reporter), &report, screen).await,
            Err(error) => Err(error),
        };
        asked(answer, "plan", &self.node, screen)
    }

    fn show_report(
        &self,
        plan: Option<&ReportedPlan>,
        stale: bool,
        screen: &mut Screen<'_>,
    ) -> Result<u8, PluginError> {
        let answer = json!({
            "schema": "holdfast.kubectl-plan/v1", "node": self.node, "stale": stale, "plan": plan,
        });
        if !screen.object(&answer)? {
            plan_of_report(&self.node, plan, screen)?;
        }
        Ok(if plan.is_some() || stale { DIFFERS } else { IN_SYNC })
    }

    /// The answer of the node with these pages.
    pub(super) async fn of_node<P: LogPages>(
        &self,
        pages: &mut P,
        report: &DriftReportStatus,
        screen: &mut Screen<'_>,
    ) -> Result<u8, PluginError> {
        let found = NodePlan::of(pages, &self.node, report).await?;
        let planned = found.planned.as_ref();
        let short =
            planned.map(|planned| reported(&planned.config, &planned.plan, planned.drains, planned.reboots));
        let answer = json!({
            "schema": "holdfast.kubectl-plan/v1", "node": self.node, "stale": false, "plan": short,
            "planned": planned, "progress": found.progress,
        });
        if !screen.object(&answer)? {
            plan_of_node(&self.node, &found, screen)?;
        }
        Ok(if found.is_open() { DIFFERS } else { IN_SYNC })
    }
}

/// Prints the plan of a report.
pub(super) fn plan_of_report(
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
    screen.line(&disturbance(plan.drain, plan.reboot))
}

/// Prints the plan of a node.
fn plan_of_node(node: &str, found: &NodePlan, screen: &mut Screen<'_>) -> Result<(), PluginError> {
    let Some(progress) = &found.progress else {
        return screen.line(&format!(
            "node {node}: Holdfast applies nothing at present: its sensor is not in the mode manage"
        ));
    };
    if let Some(progress) = found.unplanned() {
        let config = progress.config.as_deref().unwrap_or_default();
        screen.line(&format!("node {node} gets the MachineConfig {config}; it keeps no plan of it"))?;
        return screen.line(&phase(progress));
    }
    let Some(planned) = &found.planned else {
        let has = progress.current.as_ref().map(|config| format!("; it has the MachineConfig {config}"));
        let text = format!("node {node}: Holdfast applies nothing at present{}", has.unwrap_or_default());
        return screen.line(&text);
    };
    if !planned.plan.reconcilable {
        screen
            .line(&format!("node {node} cannot take the MachineConfig {} while it runs:", planned.config))?;
        return planned.plan.reasons.iter().try_for_each(|reason| screen.line(&format!("  {reason}")));
    }
    screen.line(&format!("node {node} gets the MachineConfig {}", planned.config))?;
    steps(&planned.plan, screen)?;
    screen.line(&disturbance(planned.drains, planned.reboots))?;
    screen.line(&state(planned, progress))?;
    changes(planned, screen)
}

/// What workloads notice.
fn disturbance(drains: bool, reboots: bool) -> String {
    let drain = if drains { "workloads leave the node" } else { "no drain" };
    let reboot = if reboots { "the node reboots" } else { "no reboot" };
    format!("{drain}, {reboot}")
}

/// Prints the steps, each with what needs it.
fn steps(plan: &Plan, screen: &mut Screen<'_>) -> Result<(), PluginError> {
    for (number, step) in plan.steps.iter().enumerate() {
        let unit = step.target.as_ref().map(|unit| format!(" {unit}")).unwrap_or_default();
        let named = step.because.get(..REASONS).unwrap_or(&step.because).join(", ");
        let more = match step.because.len().saturating_sub(REASONS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let action = step.action.as_str();
        screen.line(&format!("{:>3}. {action}{unit}, because of {named}{more}", number + 1))?;
    }
    Ok(())
}

/// How far the apply is.
fn state(planned: &PlannedConfig, progress: &ApplyProgress) -> String {
    if progress.id.as_ref() != Some(&planned.id) || progress.phase == ApplyPhase::Done {
        return "it has not begun".to_owned();
    }
    phase(progress)
}

/// How far the newest order is.
fn phase(progress: &ApplyProgress) -> String {
    let line = progress.message.as_ref().map(|line| format!(": {line}")).unwrap_or_default();
    match progress.phase {
        ApplyPhase::Idle | ApplyPhase::Running => format!("it is being applied{line}"),
        ApplyPhase::Rebooting => "it goes on after a reboot".to_owned(),
        ApplyPhase::Failed => format!("it has failed{line}"),
        ApplyPhase::Done => "it is applied".to_owned(),
    }
}

/// Prints the changes.
fn changes(planned: &PlannedConfig, screen: &mut Screen<'_>) -> Result<(), PluginError> {
    let rows: Vec<[String; 5]> = planned
        .plan
        .changes
        .iter()
        .map(|change| {
            [
                change.operation.as_str().to_owned(),
                change.kind.as_str().to_owned(),
                change.name.clone(),
                change.action.as_str().to_owned(),
                change.source.clone(),
            ]
        })
        .collect();
    if !rows.is_empty() {
        screen.table(["CHANGE", "KIND", "NAME", "ACTION", "DECLARED BY"], &rows)?;
    }
    match planned.changes_left_out {
        0 if planned.is_shortened => screen.line("the answer has no room for all reasons and paths"),
        0 => Ok(()),
        more => screen.line(&format!("and {more} more changes that the answer has no room for")),
    }
}
