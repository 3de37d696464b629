//! The contract of a plan, `holdfast.plan/v1`: what `holdfast plan` prints and an apply records.
//!
//! In: nothing. Out: the form of a plan and its JSON. Fields are added, never renamed or removed.

use super::reason::PlanReason;
use crate::{
    action::{Action, Fallback},
    changes::{ChangeKind, ChangeOperation},
    reconcile::Irreconcilable,
};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::{cmp::Reverse, path::PathBuf};

/// The value of [`Plan::schema`].
pub const SCHEMA: &str = "holdfast.plan/v1";

/// The changes between two configs and the steps that apply them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Plan {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// Whether a running node can take the new config.
    pub reconcilable: bool,
    /// Every reason why it cannot, in the Machine Config Operator's words.
    #[schemars(with = "Vec<String>")]
    pub reasons: Vec<PlanReason>,
    /// Reasons that a policy overrides. Running nodes keep the old state of what these reasons name.
    #[serde(default)]
    pub overridden: Vec<String>,
    /// Every change, sorted by kind and name.
    pub changes: Vec<PlannedChange>,
    /// The steps in their order; empty if nothing changes or a running node cannot take the new config.
    pub steps: Vec<Step>,
    /// Workloads have to leave the node.
    pub drain: bool,
    /// The node has to be rebooted.
    pub reboot: bool,
    /// Declared paths that have the content that the booted image ships. The update of the OS overwrites them, and the
    /// apply writes them again after the reboot. Known only on the host; absent if there are none.
    #[serde(rename = "put_again", default, skip_serializing_if = "Vec::is_empty")]
    pub overwritten: Vec<PathBuf>,
    /// The names and keys that only a forced apply removes, by path. Known only on the host; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed_by_force: Vec<RemovedByForce>,
}

/// Something that no config declares and a forced apply removes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RemovedByForce {
    /// A name in a closed directory, or a user's own `authorized_keys`.
    pub path: PathBuf,
    /// How many lines of the file are removed; absent if the file is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub lines: Option<usize>,
}

impl Plan {
    /// Whether both configs declare the same.
    pub fn is_empty(&self) -> bool {
        self.reconcilable && self.changes.is_empty() && self.overridden.is_empty()
    }

    /// Whether the node boots another OS image: by its URL, its kernel type or its extensions.
    pub fn brings_an_image(&self) -> bool {
        let brings =
            |kind| matches!(kind, ChangeKind::OsImage | ChangeKind::KernelType | ChangeKind::Extension);
        self.reconcilable && self.changes.iter().any(|change| brings(change.kind))
    }

    /// Whether an apply with this plan neither writes nor runs anything.
    pub fn has_nothing_to_do(&self) -> bool {
        self.is_empty() && self.steps.is_empty()
    }

    /// The changes that an apply without acts leaves out: those of the OS that need an action.
    pub fn left_without_acts(&self) -> impl Iterator<Item = &PlannedChange> {
        self.changes.iter().filter(|change| change.kind.is_of_os() && change.action != Action::None)
    }

    /// How many changes there are, with what only a forced apply removes.
    pub fn all_changes(&self) -> usize {
        self.changes.len() + self.forced_removals()
    }

    /// How many of [`Plan::all_changes`] are removals.
    pub fn all_removals(&self) -> usize {
        let removed = self.changes.iter().filter(|change| change.operation == ChangeOperation::Remove);
        removed.count() + self.forced_removals()
    }

    /// How many names and lines only a forced apply removes.
    pub fn forced_removals(&self) -> usize {
        self.removed_by_force.iter().map(|removed| removed.lines.unwrap_or(1)).sum()
    }

    /// Every change in the order of a printed plan: removals, changes, additions.
    pub fn removals_first(&self) -> Vec<&PlannedChange> {
        let mut changes: Vec<&PlannedChange> = self.changes.iter().collect();
        changes.sort_by_key(|change| Reverse(change.operation));
        changes
    }

    /// Adds reasons why this node cannot take the config ([`crate::reconcile::against_node`]). With any reason the plan has
    /// no steps.
    pub fn refuse(&mut self, reasons: &[Irreconcilable]) {
        for reason in reasons.iter().cloned().map(PlanReason::Found) {
            if !self.reasons.contains(&reason) {
                self.reasons.push(reason);
            }
        }
        if !self.reasons.is_empty() {
            self.reconcilable = false;
            self.steps.clear();
            (self.drain, self.reboot) = (false, false);
        }
    }
}

/// One action that a change needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PlannedAction {
    /// The action.
    #[schemars(schema_with = "actions")]
    pub action: Action,
    /// The unit, with its suffix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// One change, with the policy entry that decided about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PlannedChange {
    /// The kind of the thing.
    pub kind: ChangeKind,
    /// The path, unit, argument, word or URL; for an ssh key the user and the key's fingerprint.
    pub name: String,
    /// Whether it is added, changed or removed.
    pub operation: ChangeOperation,
    /// The most disruptive of its actions.
    #[schemars(schema_with = "actions_or_none")]
    pub action: Action,
    /// The policy entry that decided.
    pub policy: String,
    /// The MachineConfig that declares the thing; for a removal the one that declared it.
    pub source: String,
    /// All actions that the entry asks for; empty if there are none.
    #[serde(default)]
    pub actions: Vec<PlannedAction>,
    /// The attributes that differ.
    #[serde(default)]
    pub details: Vec<String>,
    /// Why the entry leads to these actions, if that depends on the content.
    #[serde(default)]
    pub explanation: Vec<String>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Step {
    /// The action.
    #[schemars(schema_with = "steps_actions")]
    pub action: Action,
    /// The unit, with its suffix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Names of the changes that need it.
    #[schemars(length(min = 1))]
    pub because: Vec<String>,
    /// The policy entries that ask for it.
    #[serde(default)]
    pub policies: Vec<String>,
    /// How many seconds it may take, if a policy has a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub timeout_seconds: Option<u64>,
    /// The fallback if it fails or takes longer, if a policy has one; otherwise a reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
}

fn schema_of(actions: impl Iterator<Item = Action>) -> Schema {
    json_schema!({ "enum": actions.map(Action::as_str).collect::<Vec<_>>() })
}

fn actions_or_none(_: &mut SchemaGenerator) -> Schema {
    schema_of(Action::in_policies(true))
}

fn actions(_: &mut SchemaGenerator) -> Schema {
    schema_of(Action::in_policies(true).filter(|action| *action != Action::None))
}

fn steps_actions(_: &mut SchemaGenerator) -> Schema {
    let asked = Action::in_policies(true).filter(|action| *action != Action::None);
    schema_of(asked.chain([Action::Write]))
}
