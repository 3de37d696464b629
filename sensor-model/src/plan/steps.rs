//! From what each change needs to the steps for all of them.
//!
//! Drain, write, daemon-reload, reloads, reloads-or-restarts, restarts, reboot; each once. A reboot makes reloads and restarts
//! superfluous and is never without a drain. Units are reloaded and restarted in the order in which each
//! entry names them; where no entry says, by name. So the order of the changes does not matter.

use super::{
    decided::{ACT_SECONDS, Decided},
    wire::{Plan, Step, StepAction},
};
use crate::node_disruption::{Action, Fallback, Verb};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of a step before all changes were seen.
#[derive(Debug, Default)]
struct Wanted {
    because: Vec<String>,
    policies: BTreeSet<String>,
    /// Of every action that wants it.
    timeouts: Vec<Option<u64>>,
    /// The same.
    fallbacks: Vec<Option<Fallback>>,
}

impl Wanted {
    fn add(&mut self, decided: &Decided, action: Option<&Action>) {
        if self.because.last() != Some(&decided.change.name) {
            self.because.push(decided.change.name.clone());
        }
        // Thousands of changes have a few policies.
        if !self.policies.contains(&decided.policy) {
            self.policies.insert(decided.policy.clone());
        }
        if let Some(action) = action {
            self.timeouts.push(action.timeout_seconds);
            self.fallbacks.push(action.fallback);
        }
    }

    fn step(self, action: StepAction, target: Option<String>) -> Step {
        // A rollback only if nobody needs the reboot, be it by saying nothing.
        let all_roll_back = !self.fallbacks.is_empty()
            && self.fallbacks.iter().all(|fallback| *fallback == Some(Fallback::Rollback));
        let reboot = self.fallbacks.contains(&Some(Fallback::Reboot));
        // Whoever needs longest is waited for. An entry that says nothing means the usual time.
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
    let mut single: BTreeMap<StepAction, Wanted> = BTreeMap::new();
    let (mut reloads, mut either, mut restarts) = (Units::default(), Units::default(), Units::default());
    for decided in changes {
        single.entry(StepAction::Write).or_default().add(decided, None);
        let mut add = |step: StepAction, action: &Action| {
            single.entry(step).or_default().add(decided, Some(action));
        };
        for action in &decided.actions {
            match &action.verb {
                Verb::None => {}
                Verb::DaemonReload => add(StepAction::DaemonReload, action),
                Verb::Reload(unit) => reloads.add(unit, decided, action),
                Verb::ReloadOrRestart(unit) => either.add(unit, decided, action),
                Verb::Restart(unit) => restarts.add(unit, decided, action),
                Verb::Drain => add(StepAction::Drain, action),
                Verb::Reboot | Verb::Special | Verb::Unknown(_) => {
                    add(StepAction::Drain, action);
                    add(StepAction::Reboot, action);
                }
            }
        }
        reloads.end_of_change();
        either.end_of_change();
        restarts.end_of_change();
    }
    let reboot = single.contains_key(&StepAction::Reboot);
    let mut steps: Vec<Step> = single
        .into_iter()
        .filter(|(action, _)| !(reboot && *action == StepAction::DaemonReload))
        .map(|(action, wanted)| wanted.step(action, None))
        .collect();
    if !reboot {
        steps.extend(reloads.steps(StepAction::Reload));
        steps.extend(either.steps(StepAction::ReloadOrRestart));
        steps.extend(restarts.steps(StepAction::Restart));
    }
    steps
}

impl Plan {
    /// The same plan where everything is brought to its declared state, changed or not, with the reboot that makes sure
    /// that all of it is in use. What cannot be reconciled cannot be forced.
    pub fn force(&mut self) {
        const BECAUSE: &str = "force";
        if !self.reconcilable {
            return;
        }
        for action in [StepAction::Drain, StepAction::Write, StepAction::Reboot] {
            if self.steps.iter().all(|step| step.action != action) {
                let mut wanted = Wanted::default();
                wanted.because.push(BECAUSE.to_owned());
                wanted.policies.insert(BECAUSE.to_owned());
                self.steps.push(wanted.step(action, None));
            }
        }
        self.steps.retain(|step| step.action != StepAction::DaemonReload && step.target.is_none());
        self.steps.sort_by_key(|step| step.action);
        (self.drain, self.reboot) = (true, true);
    }
}

/// Units for one kind of step.
#[derive(Debug, Default)]
struct Units {
    wanted: BTreeMap<String, Wanted>,
    /// Which units have to come before a unit.
    before: BTreeMap<String, BTreeSet<String>>,
    /// The unit that the same change named before.
    last: Option<String>,
}

impl Units {
    fn add(&mut self, unit: &str, decided: &Decided, action: &Action) {
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

    /// Each unit once, after all that have to come before it. Where entries contradict each other, the first
    /// by name is taken.
    fn steps(mut self, action: StepAction) -> Vec<Step> {
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
