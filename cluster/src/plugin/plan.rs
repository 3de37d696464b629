//! `kubectl holdfast plan`: what the apply of the next config does to a node, and how far it is.
//!
//! In: the newest plan of the node's sensor, its progress and the node's DriftReport, or the report alone. Out: the steps, what needs them, and
//! the changes.

use super::access::Access;
use super::error::PluginError;
use super::exit::{DIFFERS, IN_SYNC};
use super::node_log::{LogPages, parsed};
use super::output::Screen;
use super::report::{asked, status_of};
use super::status::is_stale;
use super::tunnel::pages_of;
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
struct NodePlan {
    /// How far the newest order is. `None`: the node applies nothing, because its sensor does not run in the mode `manage`.
    progress: Option<ApplyProgress>,
    newest: NewestPlan,
}

/// The plan of the newest config.
#[derive(Debug)]
enum NewestPlan {
    /// It is applied, nothing wants it, or there is none.
    Over,
    /// The node does not keep it, and its order is not over well: an earlier version made the plan, or it is too long.
    NotKept,
    /// It is not applied yet.
    Open(Box<PlannedConfig>),
}

impl NodePlan {
    /// What the node with these pages says. A plan that is not begun counts only while its report has it: the cluster may want another config now.
    async fn of<P: LogPages>(
        pages: &mut P,
        node: &str,
        report: &DriftReportStatus,
    ) -> Result<Self, PluginError> {
        use ApplyPhase::{Failed, Rebooting, Running};
        let refused = |error| PluginError::Refused { node: node.to_owned(), error };
        let progress: ApplyProgress = match pages.get(APPLY, Duration::ZERO).await? {
            Err(error) if error.reason == SocketErrorReason::NotManaged => {
                return Ok(Self { progress: None, newest: NewestPlan::Over });
            }
            answer => parsed(node, APPLY, &answer.map_err(refused)?)?,
        };
        let newest = match pages.get(CONFIG, Duration::ZERO).await? {
            Err(error) if error.reason == SocketErrorReason::NotPlanned => match progress.phase {
                Running | Rebooting | Failed => NewestPlan::NotKept,
                _ => NewestPlan::Over,
            },
            answer => {
                let planned = parsed(node, CONFIG, &answer.map_err(refused)?)?;
                if is_open(&planned, &progress, report) {
                    NewestPlan::Open(Box::new(planned))
                } else {
                    NewestPlan::Over
                }
            }
        };
        Ok(Self { progress: Some(progress), newest })
    }
}

/// Whether a plan is not applied yet, and wanted.
fn is_open(planned: &PlannedConfig, progress: &ApplyProgress, report: &DriftReportStatus) -> bool {
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
}

impl PlanOfNode {
    pub(super) async fn run(&self, access: &Access, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
        let report = status_of(access, &self.node).await?;
        if self.report {
            let stale = is_stale(access, &self.node, screen).await?;
            return self.show_report(report.plan.as_ref(), stale, screen);
        }
        let answer =
            async { self.of_node(&mut pages_of(access, &self.node).await?, &report, screen).await }.await;
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
        let planned = match &found.newest {
            NewestPlan::Open(planned) => Some(&**planned),
            NewestPlan::Over | NewestPlan::NotKept => None,
        };
        let short =
            planned.map(|planned| reported(&planned.config, &planned.plan, planned.drains, planned.reboots));
        let answer = json!({
            "schema": "holdfast.kubectl-plan/v1", "node": self.node, "stale": false, "plan": short,
            "planned": planned, "progress": found.progress,
        });
        if !screen.object(&answer)? {
            plan_of_node(&self.node, &found, screen)?;
        }
        Ok(if matches!(found.newest, NewestPlan::Over) { IN_SYNC } else { DIFFERS })
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
    let planned = match &found.newest {
        NewestPlan::Open(planned) => planned,
        NewestPlan::NotKept => {
            let config = progress.config.as_deref().unwrap_or_default();
            screen.line(&format!("node {node} gets the MachineConfig {config}; it keeps no plan of it"))?;
            return screen.line(&phase(progress));
        }
        NewestPlan::Over => {
            let has = progress.current.as_ref().map(|config| format!("; it has the MachineConfig {config}"));
            let text = format!("node {node}: Holdfast applies nothing at present{}", has.unwrap_or_default());
            return screen.line(&text);
        }
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
