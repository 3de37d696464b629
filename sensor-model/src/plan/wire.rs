//! A plan as it is written: `holdfast.plan/v1`.

use crate::{
    action::{Action, Fallback},
    changes::{Kind, Operation},
};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::{cmp::Reverse, path::PathBuf};

/// The value of [`Plan::schema`].
pub const SCHEMA: &str = "holdfast.plan/v1";

/// How to get from one config to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Plan {
    /// Always [`SCHEMA`].
    #[schemars(extend("const" = SCHEMA))]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RemovedByForce {
    /// A name in a closed directory, or a user's own `authorized_keys`.
    pub path: PathBuf,
    /// How many lines of the file go; `None` where all of it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
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

/// One action that a change needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PlannedAction {
    /// What is done.
    #[schemars(schema_with = "actions")]
    pub action: Action,
    /// The unit, with its suffix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// One change, and what decided about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PlannedChange {
    /// What kind of thing.
    pub kind: Kind,
    /// Which.
    pub name: String,
    /// What is done to it.
    pub operation: Operation,
    /// The most disruptive action that it needs.
    #[schemars(schema_with = "actions_or_none")]
    pub action: Action,
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

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Step {
    /// What is done.
    #[schemars(schema_with = "steps_actions")]
    pub action: Action,
    /// To which unit, with its suffix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Names of the changes that need it.
    #[schemars(length(min = 1))]
    pub because: Vec<String>,
    /// The entries of the policy that asked for it.
    #[serde(default)]
    pub policies: Vec<String>,
    /// How many seconds it may take, where a policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub timeout_seconds: Option<u64>,
    /// What is done when it fails or takes longer, where a policy says; a reboot else.
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
