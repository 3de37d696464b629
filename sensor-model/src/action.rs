//! The one list of actions, with their names.
//!
//! In: nothing. Out: the actions, and the name of each in policies, plans, the journal and messages. Policies ask for
//! actions, plans order them, the journal records them, and an apply runs them. Nothing is run here.

use sensor_protocol::names;
use serde::{Deserialize, Serialize};

/// An action, done once or to one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// The node is rebooted, and drained before.
    Reboot,
    /// Workloads leave the node.
    Drain,
    /// A unit reads its configuration again.
    Reload,
    /// A unit reads its configuration again; one that cannot is restarted.
    ReloadOrRestart,
    /// A unit is stopped and started.
    Restart,
    /// systemd reads its units again.
    DaemonReload,
    /// Nothing.
    None,
    /// Every changed path is written, or staged for the next boot. Every plan with changes has this step.
    Write,
    /// A unit is stopped, because the new config removes or masks it.
    Stop,
    /// Kernel arguments, kernel type, extensions or OS image are changed by the OS tool.
    Os,
}

/// Whose policies may ask for an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AskedBy {
    /// Every policy, the Machine Config Operator's included.
    Everywhere,
    /// Holdfast's own policies and declarations: the Machine Config Operator has no such word.
    InOwnPolicies,
    /// No policy: plans and applies add the action themselves.
    Nowhere,
}

/// The properties of an action.
#[derive(Debug, Clone, Copy)]
struct ActionRow {
    action: Action,
    /// In plans, the journal and messages.
    name: &'static str,
    /// How much it disturbs: a higher number disturbs more.
    disruption: u8,
    /// Its place among a plan's steps.
    place: u8,
    /// The value of `type` in a policy.
    policy_type: &'static str,
    asked: AskedBy,
    /// The field of a policy's action that holds the unit; `None` for an action without a unit.
    unit_field: Option<&'static str>,
    /// The apply runs it after the files are written.
    is_act: bool,
}

impl ActionRow {
    const fn new(action: Action, name: &'static str, disruption: u8, place: u8) -> Self {
        let (policy_type, asked, unit_field, is_act) = ("", AskedBy::Nowhere, None, false);
        Self { action, name, disruption, place, policy_type, asked, unit_field, is_act }
    }

    const fn asked(mut self, asked: AskedBy, policy_type: &'static str) -> Self {
        (self.asked, self.policy_type) = (asked, policy_type);
        self
    }

    const fn unit(mut self, field: &'static str) -> Self {
        self.unit_field = Some(field);
        self
    }

    const fn act(mut self) -> Self {
        self.is_act = true;
        self
    }
}

/// The names, the disruption and the place, in the order in which messages list the types.
const ROWS: [ActionRow; 10] = {
    use Action::{DaemonReload, Drain, None, Os, Reboot, Reload, ReloadOrRestart, Restart, Stop, Write};
    use AskedBy::{Everywhere, InOwnPolicies};
    [
        ActionRow::new(Reboot, "reboot", 6, 8).asked(Everywhere, "Reboot"),
        ActionRow::new(Drain, "drain", 5, 1).asked(Everywhere, "Drain"),
        ActionRow::new(Reload, "reload", 2, 4).asked(Everywhere, "Reload").unit("reload").act(),
        ActionRow::new(ReloadOrRestart, "reload-or-restart", 3, 5)
            .asked(InOwnPolicies, "ReloadOrRestart")
            .unit("reloadOrRestart")
            .act(),
        ActionRow::new(Restart, "restart", 4, 6).asked(Everywhere, "Restart").unit("restart").act(),
        ActionRow::new(DaemonReload, "daemon-reload", 1, 3).asked(Everywhere, "DaemonReload").act(),
        ActionRow::new(None, "none", 0, 0).asked(Everywhere, "None"),
        ActionRow::new(Write, "write", 0, 2),
        ActionRow::new(Stop, "stop", 4, 7).act(),
        ActionRow::new(Os, "os", 6, 2).act(),
    ]
};

impl Action {
    const fn row(self) -> ActionRow {
        ROWS[self as usize]
    }

    /// Every action.
    pub fn all() -> impl Iterator<Item = Self> {
        ROWS.iter().map(|row| row.action)
    }

    /// Its name in plans, the journal and messages.
    pub const fn as_str(self) -> &'static str {
        self.row().name
    }

    /// The action that a policy asks for with this `type`; `own` for a policy of Holdfast's own kind.
    pub fn of_policy_type(word: &str, own: bool) -> Option<Self> {
        Self::in_policies(own).find(|action| action.policy_type() == word)
    }

    /// Every action that a policy may ask for; `own` for a policy of Holdfast's own kind.
    pub fn in_policies(own: bool) -> impl Iterator<Item = Self> {
        let asks = move |row: &&ActionRow| match row.asked {
            AskedBy::Everywhere => true,
            AskedBy::InOwnPolicies => own,
            AskedBy::Nowhere => false,
        };
        ROWS.iter().filter(asks).map(|row| row.action)
    }

    /// The value of `type` in a policy; empty where no policy may ask for it.
    pub const fn policy_type(self) -> &'static str {
        self.row().policy_type
    }

    /// The field of a policy's action that holds the unit; `None` for an action without a unit.
    pub const fn unit_field(self) -> Option<&'static str> {
        self.row().unit_field
    }

    /// Whether a policy or a declaration names a unit with it.
    pub const fn needs_unit(self) -> bool {
        self.unit_field().is_some()
    }

    /// How much it disturbs the node: a higher number disturbs more.
    pub const fn disruption(self) -> u8 {
        self.row().disruption
    }

    /// Its place among a plan's steps: a lower number comes first.
    pub const fn place(self) -> u8 {
        self.row().place
    }

    /// Whether the apply runs it after the files are written. A reboot replaces all of these except `Os`.
    pub const fn is_act(self) -> bool {
        self.row().is_act
    }
}

names! {
    /// The fallback of an action that fails or takes too long.
    #[derive(Default)]
    pub enum Fallback {
        /// The node is rebooted with the new config.
        #[default]
        Reboot = "reboot",
        /// The old config is restored and the node is degraded.
        Rollback = "rollback",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_action_has_its_own_row_and_its_name_is_that_of_serde() {
        for (place, row) in ROWS.iter().enumerate() {
            assert_eq!(row.action as usize, place);
            let name = serde_json::to_value(row.action).unwrap();
            assert_eq!(name, row.name);
            assert_eq!(serde_json::from_value::<Action>(name).unwrap(), row.action);
        }
    }

    #[test]
    fn each_action_of_policies_has_its_own_type_and_place() {
        let asked: Vec<Action> = Action::in_policies(true).collect();
        let distinct =
            |of: fn(Action) -> String| asked.iter().map(|action| of(*action)).collect::<BTreeSet<_>>();
        assert_eq!(distinct(|action| action.policy_type().to_owned()).len(), asked.len());
        assert_eq!(distinct(|action| action.place().to_string()).len(), asked.len());
        assert_eq!(distinct(|action| action.disruption().to_string()).len(), asked.len());
        for action in asked {
            assert_eq!(Action::of_policy_type(action.policy_type(), true), Some(action));
        }
        for word in ["", "Explode", "reboot", "Special"] {
            assert_eq!(Action::of_policy_type(word, true), None, "{word:?}");
        }
        assert_eq!(Action::of_policy_type("ReloadOrRestart", false), None);
    }

    #[test]
    fn the_schema_of_policies_has_every_type_and_asks_for_its_unit() {
        let schema: serde_json::Value =
            serde_json::from_str(include_str!("../../policies/schema/node-disruption.schema.json")).unwrap();
        let types: Vec<&str> = Action::in_policies(true).map(Action::policy_type).collect();
        assert_eq!(schema["$defs"]["type"]["enum"], serde_json::json!(types));
        let item = &schema["$defs"]["actions"]["items"];
        for action in Action::in_policies(true) {
            let Some(field) = action.unit_field() else { continue };
            assert_eq!(item["properties"][field]["required"], serde_json::json!(["serviceName"]), "{field}");
            let needed = serde_json::json!({
                "if": { "properties": { "type": { "const": action.policy_type() } } },
                "then": { "required": [field] },
                "else": { "not": { "required": [field] } },
            });
            assert!(item["allOf"].as_array().unwrap().contains(&needed), "no condition for {field}");
        }
    }
}
