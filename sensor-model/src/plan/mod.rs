//! The ordered steps that bring a node from one rendered config to another.
//!
//! Two rendered configs and a disruption policy come in; out comes a [`Plan`]: every change with what decided
//! about it, and the steps, each with the changes that caused it. The same input gives the same plan,
//! whatever the order of its parts; what is not known means reboot. Nothing is carried out here.

mod steps;
#[cfg(test)]
mod tests;

use crate::{
    changes::{self, Change, Kind, Operation},
    expectations::{ExpectationError, expected_bytes},
    merge::Rendered,
    node_disruption::{Action, Decision, Fallback, Policy, Verb},
    registries,
};
use serde::{Deserialize, Serialize};
use std::{
    cmp::Reverse,
    path::{Path, PathBuf},
};

/// The value of [`Plan::schema`].
pub const SCHEMA: &str = "holdfast.plan/v1";

/// Seconds that a step may take where no policy says.
pub const ACT_SECONDS: u64 = 90;

/// The unit that reads `registries.conf`.
const CRIO: &str = "crio.service";

/// How to get from one config to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Whether a running node can be brought there.
    pub reconcilable: bool,
    /// Why it cannot, every reason.
    pub reasons: Vec<String>,
    /// Reasons that an administrator set aside; what they name stays as it is on running nodes.
    #[serde(default)]
    pub overridden: Vec<String>,
    /// Every change, sorted by kind and name.
    pub changes: Vec<PlannedChange>,
    /// What is to be done, in this order; empty where there is nothing to do or it cannot be done.
    pub steps: Vec<Step>,
    /// Workloads have to leave the node.
    pub drain: bool,
    /// The node has to be rebooted.
    pub reboot: bool,
    /// Declared paths that are as the booted image ships them: the update of the OS would take them back, and they are put
    /// again after it. Known only on the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub put_again: Vec<PathBuf>,
    /// What goes only because the apply is forced, by path. Known only on the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed_by_force: Vec<RemovedByForce>,
}

/// What no config declares, and only a forced apply removes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedByForce {
    /// A name in a closed directory, or a user's own `authorized_keys`.
    pub path: PathBuf,
    /// How many lines of the file go; `None` where all of it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<usize>,
}

impl Plan {
    /// Whether there is nothing to do: both configs say the same.
    pub fn is_empty(&self) -> bool {
        self.reconcilable && self.changes.is_empty() && self.overridden.is_empty()
    }

    /// Whether another image of the OS comes with it: by name, by its kernel, or by what is added to it.
    pub fn brings_an_image(&self) -> bool {
        let brings = |kind| matches!(kind, Kind::OsImage | Kind::KernelType | Kind::Extension);
        self.reconcilable && self.changes.iter().any(|change| brings(change.kind))
    }

    /// How many names and lines go only because the apply is forced.
    pub fn forced_removals(&self) -> usize {
        self.removed_by_force.iter().map(|removed| removed.lines.unwrap_or(1)).sum()
    }

    /// Every change in the order in which people read a plan: what goes, then what changes, then what is new.
    pub fn removals_first(&self) -> Vec<&PlannedChange> {
        let mut changes: Vec<&PlannedChange> = self.changes.iter().collect();
        changes.sort_by_key(|change| Reverse(change.operation));
        changes
    }

    /// Takes up further reasons for which a node cannot be brought there (its own, [`crate::reconcile::against_node`]).
    /// With any, there is nothing left to do.
    pub fn refuse(&mut self, reasons: Vec<String>) {
        let new = reasons.into_iter().filter(|reason| !self.reasons.contains(reason)).collect::<Vec<_>>();
        self.reasons.extend(new);
        if !self.reasons.is_empty() {
            self.reconcilable = false;
            self.steps.clear();
            (self.drain, self.reboot) = (false, false);
        }
    }
}

/// How much a change disturbs, the mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disruption {
    /// Not at all.
    None,
    /// systemd reads its units again.
    DaemonReload,
    /// Units read their configuration again.
    Reload,
    /// Units do that, or are restarted where they cannot.
    ReloadOrRestart,
    /// Units are restarted.
    Restart,
    /// Workloads leave the node.
    Drain,
    /// The node is rebooted.
    Reboot,
}

impl Disruption {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::DaemonReload => "daemon-reload",
            Self::Reload => "reload",
            Self::ReloadOrRestart => "reload-or-restart",
            Self::Restart => "restart",
            Self::Drain => "drain",
            Self::Reboot => "reboot",
        }
    }
}

/// One action that a change needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedAction {
    /// What.
    pub action: Disruption,
    /// The unit, with its suffix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// One change, and what decided about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedChange {
    /// What kind of thing.
    pub kind: Kind,
    /// Which.
    pub name: String,
    /// What is done to it.
    pub operation: Operation,
    /// The most disruptive action that it needs.
    pub action: Disruption,
    /// The policy's entry that decided.
    pub policy: String,
    /// The MachineConfig that says so.
    pub source: String,
    /// All actions that it needs, as the entry says; empty when it needs none.
    #[serde(default)]
    pub actions: Vec<PlannedAction>,
    /// In what the thing differs.
    #[serde(default)]
    pub details: Vec<String>,
    /// Why the entry leads to these actions, where that depends on the content.
    #[serde(default)]
    pub explanation: Vec<String>,
}

/// What a step does, in the order in which steps are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepAction {
    /// Workloads leave the node.
    Drain,
    /// Everything that changes is written, or staged for the next boot.
    Write,
    /// systemd reads its units again.
    DaemonReload,
    /// A unit reads its configuration again.
    Reload,
    /// A unit does that, or is restarted where it cannot.
    ReloadOrRestart,
    /// A unit is restarted.
    Restart,
    /// The node is rebooted.
    Reboot,
}

impl StepAction {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Write => "write",
            Self::DaemonReload => "daemon-reload",
            Self::Reload => "reload",
            Self::ReloadOrRestart => "reload-or-restart",
            Self::Restart => "restart",
            Self::Reboot => "reboot",
        }
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What is done.
    pub action: StepAction,
    /// To which unit, with its suffix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Names of the changes that need it.
    pub because: Vec<String>,
    /// The entries of the policy that asked for it.
    #[serde(default)]
    pub policies: Vec<String>,
    /// How many seconds it may take, where a policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// What is done when it fails or takes longer, where a policy says; a reboot else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
}

/// A change with the actions that it needs.
#[derive(Debug)]
struct Decided {
    change: Change,
    actions: Vec<Action>,
    policy: String,
    explanation: Vec<String>,
}

/// Plans the way from `old` to `new`; a config that is missing declares nothing.
///
/// # Errors
/// A file whose merged contents cannot be decoded.
pub fn plan(
    old: Option<&Rendered>,
    new: Option<&Rendered>,
    policy: &Policy,
) -> Result<Plan, ExpectationError> {
    let nothing = Rendered::default();
    let (old, new) = (old.unwrap_or(&nothing), new.unwrap_or(&nothing));
    let found = changes::compare(Some(old), Some(new), policy.overrides())?;
    let mut decided: Vec<Decided> =
        found.changes.into_iter().map(|change| decide(change, old, new, policy)).collect();
    let steps = if found.reasons.is_empty() { steps::steps(&decided) } else { Vec::new() };
    let reboot = steps.iter().any(|step| step.action == StepAction::Reboot);
    if !reboot {
        decided.iter_mut().for_each(waits);
    }
    Ok(Plan {
        schema: SCHEMA.to_owned(),
        reconcilable: found.reasons.is_empty(),
        reasons: found.reasons,
        overridden: found.overridden,
        drain: steps.iter().any(|step| step.action == StepAction::Drain),
        reboot,
        changes: decided.into_iter().map(planned).collect(),
        steps,
        put_again: Vec::new(),
        removed_by_force: Vec::new(),
    })
}

fn decide(change: Change, old: &Rendered, new: &Rendered, policy: &Policy) -> Decided {
    let Decision { mut actions, policy } = policy.decide(&change, old, new);
    let mut explanation = Vec::new();
    if actions.iter().any(|action| action.verb == Verb::Special) {
        actions = special(&change, old, new, &mut explanation);
    }
    if let Some(Verb::Unknown(word)) =
        actions.iter().map(|action| &action.verb).find(|verb| matches!(verb, Verb::Unknown(_)))
    {
        explanation.push(format!("action {word:?} is not known here: reboot"));
        actions = vec![Action::plain(Verb::Reboot)];
    }
    Decided { change, actions, policy, explanation }
}

/// Without a reboot, a change of kernel arguments waits for one.
fn waits(decided: &mut Decided) {
    if decided.change.kind != Kind::KernelArgument {
        return;
    }
    let until = match decided.change.operation {
        Operation::Add => "the running kernel goes on without it, unless a unit sets it at run time",
        Operation::Remove => "the running kernel goes on with it, unless a unit takes it back at run time",
        Operation::Change => "the running kernel goes on with the old order",
    };
    decided.explanation.push(format!("written for the next boot; until then {until}"));
}

/// What the content of `registries.conf` asks for; of anything else no such rules are known.
fn special(change: &Change, old: &Rendered, new: &Rendered, explanation: &mut Vec<String>) -> Vec<Action> {
    if change.kind != Kind::File || change.name != registries::PATH {
        explanation.push("no rules for this file are known here: reboot".to_owned());
        return vec![Action::plain(Verb::Reboot)];
    }
    let path = Path::new(registries::PATH);
    let bytes = |rendered: &Rendered| expected_bytes(rendered, path).unwrap_or_default();
    match registries::judge(&bytes(old), &bytes(new)) {
        Ok(judgement) => {
            let drain = (!judgement.safe).then(|| Action::plain(Verb::Drain));
            let word = if judgement.safe { "no drain" } else { "drain" };
            explanation.extend(judgement.because.into_iter().map(|why| format!("{why}: {word}")));
            drain.into_iter().chain([Action::plain(Verb::Reload(CRIO.to_owned()))]).collect()
        }
        Err(reason) => {
            explanation.push(format!("{reason}: reboot"));
            vec![Action::plain(Verb::Reboot)]
        }
    }
}

fn planned(decided: Decided) -> PlannedChange {
    let Decided { change, actions, policy, explanation } = decided;
    let actions: Vec<PlannedAction> = actions
        .into_iter()
        .filter_map(|action| {
            let (action, target) = match action.verb {
                Verb::None => return None,
                Verb::DaemonReload => (Disruption::DaemonReload, None),
                Verb::Reload(unit) => (Disruption::Reload, Some(unit)),
                Verb::ReloadOrRestart(unit) => (Disruption::ReloadOrRestart, Some(unit)),
                Verb::Restart(unit) => (Disruption::Restart, Some(unit)),
                Verb::Drain => (Disruption::Drain, None),
                Verb::Reboot | Verb::Special | Verb::Unknown(_) => (Disruption::Reboot, None),
            };
            Some(PlannedAction { action, target })
        })
        .collect();
    PlannedChange {
        kind: change.kind,
        name: change.name,
        operation: change.operation,
        action: actions.iter().map(|action| action.action).max().unwrap_or(Disruption::None),
        policy,
        source: change.source.machine_config.to_string(),
        actions,
        details: change.details,
        explanation,
    }
}
