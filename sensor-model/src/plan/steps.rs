//! Merges the actions of all changes into one list of steps.
//!
//! In: every change with its actions. Out: the steps, each once, in the order of [`Action::place`]. A plan with a reboot has a
//! drain and none of the actions that follow the files ([`Action::is_act`]). Units have the order of the entries that name them,
//! and otherwise the order of their names. So the order of the changes does not matter.

use super::{
    decided::{ACT_SECONDS, Decided},
    wire::{Plan, Step},
};
use crate::{
    action::{Action, Fallback},
    node_disruption::{EntryAction, PolicyRequest},
};
use std::collections::{BTreeMap, BTreeSet};

/// A step, while the changes are read one after another.
#[derive(Debug, Default)]
struct WantedStep {
    because: Vec<String>,
    policies: BTreeSet<String>,
    /// The limit of every action that asks for the step.
    timeouts: Vec<Option<u64>>,
    /// The fallback of every action that asks for the step.
    fallbacks: Vec<Option<Fallback>>,
}

impl WantedStep {
    fn add(&mut self, decided: &Decided, action: Option<&EntryAction>) {
        if self.because.last() != Some(&decided.change.name) {
            self.because.push(decided.change.name.clone());
        }
        // Thousands of changes share a few policies, so most names are in the set already.
        if !self.policies.contains(&decided.policy) {
            self.policies.insert(decided.policy.clone());
        }
        if let Some(action) = action {
            self.timeouts.push(action.timeout_seconds);
            self.fallbacks.push(action.fallback);
        }
    }

    fn step(self, action: Action, target: Option<String>) -> Step {
        // A rollback only if every action asks for it: an action without a fallback needs the reboot.
        let all_roll_back = !self.fallbacks.is_empty()
            && self.fallbacks.iter().all(|fallback| *fallback == Some(Fallback::Rollback));
        let reboot = self.fallbacks.contains(&Some(Fallback::Reboot));
        // The longest limit applies. An entry without a limit has the default limit.
        let says = self.timeouts.iter().any(Option::is_some);
        let longest = self.timeouts.iter().map(|timeout| timeout.unwrap_or(ACT_SECONDS)).max();
        Step {
            action,
            target,
            because: self.because,
            policies: self.policies.into_iter().collect(),
            timeout_seconds: longest.filter(|_| says),
            fallback: match (all_roll_back, reboot) {
                (true, _) => Some(Fallback::Rollback),
                (false, true) => Some(Fallback::Reboot),
                (false, false) => None,
            },
        }
    }
}

/// The steps for all changes.
pub(super) fn steps(changes: &[Decided]) -> Vec<Step> {
    if changes.is_empty() {
        return Vec::new();
    }
    let mut single: BTreeMap<Action, WantedStep> = BTreeMap::new();
    let mut units: BTreeMap<Action, Units> = BTreeMap::new();
    for decided in changes {
        single.entry(Action::Write).or_default().add(decided, None);
        for wanted in &decided.actions {
            let mut add = |step: Action| single.entry(step).or_default().add(decided, Some(wanted));
            match &wanted.request {
                PolicyRequest::Act { action: Action::None, .. } => {}
                PolicyRequest::Act { action, unit: Some(unit) } => {
                    units.entry(*action).or_default().add(unit, decided, wanted);
                }
                // A reboot is never without a drain.
                PolicyRequest::Act { action: Action::Reboot, .. }
                | PolicyRequest::Special
                | PolicyRequest::Unknown(_) => {
                    add(Action::Drain);
                    add(Action::Reboot);
                }
                PolicyRequest::Act { action, unit: None } => add(*action),
            }
        }
        units.values_mut().for_each(Units::end_of_change);
    }
    let mut steps: Vec<Step> = single.into_iter().map(|(action, wanted)| wanted.step(action, None)).collect();
    steps.extend(units.into_iter().flat_map(|(action, units)| units.steps(action)));
    if steps.iter().any(|step| step.action == Action::Reboot) {
        steps.retain(|step| !step.action.is_act());
    }
    // The sort is stable: the units of an action keep their order.
    steps.sort_by_key(|step| step.action.place());
    steps
}

impl Plan {
    /// Makes it the plan of a forced apply: every declared thing is written, changed or not, and a reboot puts all of it in
    /// use. A plan that is not reconcilable stays as it is.
    pub fn force(&mut self) {
        const BECAUSE: &str = "force";
        if !self.reconcilable {
            return;
        }
        for action in [Action::Drain, Action::Write, Action::Reboot] {
            if self.steps.iter().all(|step| step.action != action) {
                let mut wanted = WantedStep::default();
                wanted.because.push(BECAUSE.to_owned());
                wanted.policies.insert(BECAUSE.to_owned());
                self.steps.push(wanted.step(action, None));
            }
        }
        self.steps.retain(|step| !step.action.is_act());
        self.steps.sort_by_key(|step| step.action.place());
        (self.drain, self.reboot) = (true, true);
    }
}

/// Units for one kind of step.
#[derive(Debug, Default)]
struct Units {
    wanted: BTreeMap<String, WantedStep>,
    /// The units that come before a unit.
    before: BTreeMap<String, BTreeSet<String>>,
    /// The unit that the same change named last.
    last: Option<String>,
}

impl Units {
    fn add(&mut self, unit: &str, decided: &Decided, action: &EntryAction) {
        self.wanted.entry(unit.to_owned()).or_default().add(decided, Some(action));
        if let Some(last) = self.last.replace(unit.to_owned())
            && last != unit
        {
            self.before.entry(unit.to_owned()).or_default().insert(last);
        }
    }

    fn end_of_change(&mut self) {
        self.last = None;
    }

    /// Each unit once, after the units that come before it. Where entries contradict each other, the first unit by name
    /// comes first.
    fn steps(mut self, action: Action) -> Vec<Step> {
        let mut steps = Vec::with_capacity(self.wanted.len());
        while !self.wanted.is_empty() {
            let waits = |unit: &String| {
                self.before
                    .get(unit)
                    .is_some_and(|before| before.iter().any(|other| self.wanted.contains_key(other)))
            };
            let free = self.wanted.keys().find(|unit| !waits(unit)).or_else(|| self.wanted.keys().next());
            let Some(unit) = free.cloned() else { break };
            if let Some(wanted) = self.wanted.remove(&unit) {
                steps.push(wanted.step(action, Some(unit)));
            }
        }
        steps
    }
}
