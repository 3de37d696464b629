//! The ordered steps that bring a node from one rendered config to another.
//!
//! In: two rendered configs and a disruption policy. Out: a [`Plan`], which holds every change with the policy entry that
//! decided, and the steps with the changes that need them. The order of the input does not change the plan. A change that the
//! policy does not know reboots the node. Nothing is run here.

mod decided;
mod reason;
mod steps;
#[cfg(test)]
mod tests;
mod wire;

pub use decided::ACT_SECONDS;
pub use reason::PlanReason;
pub use wire::{Plan, PlannedAction, PlannedChange, RemovedByForce, SCHEMA, Step};

use crate::{
    action::Action,
    changes::{self, Change, ChangeKind, ChangeOperation},
    expectations::{ExpectationError, expected_bytes},
    merge::Rendered,
    node_disruption::{DisruptionDecision, DisruptionPolicy, EntryAction, PolicyRequest},
    registries,
};
use decided::Decided;
use std::path::Path;

/// The unit that reads `registries.conf`.
const CRIO: &str = "crio.service";

/// Plans the steps from `old` to `new`. A missing config declares nothing.
///
/// # Errors
/// A file whose merged contents cannot be decoded.
pub fn plan(
    old: Option<&Rendered>,
    new: Option<&Rendered>,
    policy: &DisruptionPolicy,
) -> Result<Plan, ExpectationError> {
    let nothing = Rendered::default();
    let (old, new) = (old.unwrap_or(&nothing), new.unwrap_or(&nothing));
    let found = changes::compare(Some(old), Some(new), policy.overrides())?;
    let mut decided: Vec<Decided> =
        found.changes.into_iter().map(|change| decide(change, old, new, policy)).collect();
    let steps = if found.reasons.is_empty() { steps::steps(&decided) } else { Vec::new() };
    let reboot = steps.iter().any(|step| step.action == Action::Reboot);
    if !reboot {
        decided.iter_mut().for_each(waits);
    }
    Ok(Plan {
        schema: SCHEMA.to_owned(),
        reconcilable: found.reasons.is_empty(),
        reasons: found.reasons.into_iter().map(PlanReason::Found).collect(),
        overridden: found.overridden.iter().map(ToString::to_string).collect(),
        drain: steps.iter().any(|step| step.action == Action::Drain),
        reboot,
        changes: decided.into_iter().map(planned).collect(),
        steps,
        overwritten: Vec::new(),
        removed_by_force: Vec::new(),
    })
}

fn decide(change: Change, old: &Rendered, new: &Rendered, policy: &DisruptionPolicy) -> Decided {
    let DisruptionDecision { mut actions, policy } = policy.decide(&change, old, new);
    let mut explanation = Vec::new();
    if actions.iter().any(|action| action.request == PolicyRequest::Special) {
        actions = special(&change, old, new, &mut explanation);
    }
    let unknown = actions.iter().find_map(|action| match &action.request {
        PolicyRequest::Unknown(word) => Some(format!("action {word:?} is unknown to this version: reboot")),
        PolicyRequest::Act { .. } | PolicyRequest::Special => None,
    });
    if let Some(why) = unknown {
        explanation.push(why);
        actions = vec![EntryAction::plain(Action::Reboot)];
    }
    Decided { change, actions, policy, explanation }
}

/// In a plan without a reboot, a change of kernel arguments takes effect with the next boot.
fn waits(decided: &mut Decided) {
    if decided.change.kind != ChangeKind::KernelArgument {
        return;
    }
    let until = match decided.change.operation {
        ChangeOperation::Add => "the running kernel does not have it, unless a unit sets it at run time",
        ChangeOperation::Remove => "the running kernel has it, unless a unit removes it at run time",
        ChangeOperation::Change => "the running kernel keeps the old order",
    };
    decided.explanation.push(format!("written for the next boot; until then {until}"));
}

/// The actions that the content of `registries.conf` needs. Any other file reboots the node: there are no rules for it.
fn special(
    change: &Change,
    old: &Rendered,
    new: &Rendered,
    explanation: &mut Vec<String>,
) -> Vec<EntryAction> {
    if change.kind != ChangeKind::File || change.name != registries::PATH {
        explanation.push("this version has no rules for this file: reboot".to_owned());
        return vec![EntryAction::plain(Action::Reboot)];
    }
    let path = Path::new(registries::PATH);
    let bytes = |rendered: &Rendered| expected_bytes(rendered, path).unwrap_or_default();
    match registries::judge(&bytes(old), &bytes(new)) {
        Ok(judgement) => {
            let drain = (!judgement.safe).then(|| EntryAction::plain(Action::Drain));
            let word = if judgement.safe { "no drain" } else { "drain" };
            explanation.extend(judgement.because.into_iter().map(|why| format!("{why}: {word}")));
            drain.into_iter().chain([EntryAction::of_unit(Action::Reload, CRIO.to_owned())]).collect()
        }
        Err(error) => {
            explanation.push(format!("{error}: reboot"));
            vec![EntryAction::plain(Action::Reboot)]
        }
    }
}

fn planned(decided: Decided) -> PlannedChange {
    let Decided { change, actions, policy, explanation } = decided;
    let actions: Vec<PlannedAction> = actions
        .into_iter()
        .filter_map(|action| {
            let (action, target) = match action.request {
                PolicyRequest::Act { action: Action::None, .. } => return None,
                PolicyRequest::Act { action, unit } => (action, unit),
                PolicyRequest::Special | PolicyRequest::Unknown(_) => (Action::Reboot, None),
            };
            Some(PlannedAction { action, target })
        })
        .collect();
    PlannedChange {
        kind: change.kind,
        name: change.name,
        operation: change.operation,
        action: most_disruptive(&actions),
        policy,
        source: change.source.machine_config.to_string(),
        actions,
        details: change.details,
        explanation,
    }
}

fn most_disruptive(actions: &[PlannedAction]) -> Action {
    let actions = actions.iter().map(|planned| planned.action);
    actions.max_by_key(|action| action.disruption()).unwrap_or(Action::None)
}
