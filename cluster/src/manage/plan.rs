//! The sensor's answer to a config, as the cluster sees it.
//!
//! In: a planned config. Out: the plan for the report and the annotation, bounded in size, and why a running node cannot take it.

use crate::api::ReportedPlan;
use crate::text::fit;
use sensor_model::plan::Plan;
use sensor_model::socket::PlannedConfig;

/// Most actions in a reported plan.
const ACTIONS: usize = 32;
/// Longest action, with its unit.
const ACTION_BYTES: usize = 160;
/// Longest name of a MachineConfig.
const NAME_BYTES: usize = 253;
/// Why a step of a forced plan exists.
const FORCE: &str = "force";

/// What is known of a config that was handed to the sensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The MachineConfig's name.
    pub config: String,
    /// The plan, or why there is none.
    pub outcome: PlannedOutcome,
}

/// Whether a config has a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlannedOutcome {
    /// It has.
    Plan {
        /// The name of the sensor's newest config, for the order.
        id: String,
        /// The plan.
        plan: ReportedPlan,
        /// The force file asks for it, so drift does not block it.
        is_forced: bool,
    },
    /// A running node cannot take it.
    Unreconcilable(String),
    /// It cannot be used.
    Refused(String),
}

/// The outcome of a planned config.
pub(super) fn outcome(planned: &PlannedConfig) -> PlannedOutcome {
    let plan = &planned.plan;
    if !plan.reconcilable {
        let reasons: Vec<String> = plan.reasons.iter().map(ToString::to_string).collect();
        return PlannedOutcome::Unreconcilable(reasons.join("; "));
    }
    PlannedOutcome::Plan {
        id: planned.id.clone(),
        plan: reported(&planned.config, plan, planned.drains, planned.reboots),
        is_forced: plan.steps.iter().any(|step| step.because.iter().any(|because| because == FORCE)),
    }
}

/// The plan as the report has it.
pub fn reported(config: &str, plan: &Plan, drain: bool, reboot: bool) -> ReportedPlan {
    let steps = plan.steps.iter().take(ACTIONS).map(|step| {
        let action = step.action.as_str();
        let text = step.target.as_ref().map_or_else(|| action.to_owned(), |unit| format!("{action} {unit}"));
        fit(&text, ACTION_BYTES)
    });
    ReportedPlan {
        config: fit(config, NAME_BYTES),
        actions: steps.collect(),
        more: i64::try_from(plan.steps.len().saturating_sub(ACTIONS)).unwrap_or(i64::MAX),
        drain,
        reboot,
    }
}

/// The annotation of a plan.
pub(super) fn annotation(plan: &ReportedPlan) -> String {
    // Structures of texts and numbers always have a JSON.
    serde_json::to_string(plan).unwrap_or_default()
}
