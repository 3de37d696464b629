//! What owners of MachineConfigs declare, and whose declarations count.
//!
//! The value of the annotation `holdfast.dev/disruption` comes in: actions, separated by commas, each a word
//! of the policy's and the unit after it (`DaemonReload, Restart app.service`). Out come actions, or why not.
//! An owner never declares more than an entry of `declarations` in an administrator's policy allows.

use super::{EntryAction, Request, forms, matching::fits};
use crate::{action::Action, merge::Declaration};
use std::collections::BTreeMap;

/// Which owners may declare what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Names or globs of MachineConfigs; empty for all that the labels fit.
    pub machine_configs: Vec<String>,
    /// Labels that the MachineConfig must have.
    pub match_labels: BTreeMap<String, String>,
    /// Paths, directories or globs that its content must be at; empty for all.
    pub paths: Vec<String>,
    /// Actions that may be declared.
    pub actions: Vec<Action>,
    /// Names or globs of units that may be reloaded and restarted.
    pub units: Vec<String>,
    /// Where it stands, for messages.
    pub label: String,
}

/// Reads an annotation's value.
pub(super) fn actions(text: &str) -> Result<Vec<EntryAction>, String> {
    let mut actions = Vec::new();
    for part in text.split(',') {
        let mut words = part.split_ascii_whitespace();
        let action = words.next().and_then(|word| Action::of_policy_type(word, true));
        let (unit, more) = (words.next(), words.next());
        actions.push(match (action, unit, more) {
            (Some(action), None, None) if !action.needs_unit() => EntryAction::plain(action),
            (Some(action), Some(unit), None) if action.needs_unit() => {
                EntryAction::of_unit(action, forms::unit(unit, false)?)
            }
            _ => return Err(format!("{:?} is not an action: there are {}", part.trim(), forms_of_actions())),
        });
    }
    forms::standalone(&actions)?;
    Ok(actions)
}

/// `Reboot, Drain, Reload UNIT, …`.
fn forms_of_actions() -> String {
    let form = |action: Action| {
        let unit = if action.needs_unit() { " UNIT" } else { "" };
        format!("{}{unit}", action.policy_type())
    };
    Action::in_policies(true).map(form).collect::<Vec<_>>().join(", ")
}

impl Allowance {
    /// Whether it is about content of this MachineConfig; `path` is that of a file, directory, link or unit.
    pub(super) fn covers(&self, machine_config: &str, declared: &Declaration, path: &str) -> bool {
        let named = self.machine_configs.is_empty()
            || self.machine_configs.iter().any(|pattern| fits(pattern, machine_config));
        let labelled = self.match_labels.iter().all(|(key, value)| declared.labels.get(key) == Some(value));
        let placed = self.paths.is_empty()
            || self.paths.iter().any(|pattern| {
                fits(pattern, path)
                    || path.strip_prefix(pattern.as_str()).is_some_and(|rest| rest.starts_with('/'))
            });
        named && labelled && placed
    }

    /// Whether all these actions may be declared.
    pub(super) fn allows(&self, actions: &[EntryAction]) -> bool {
        actions.iter().all(|wanted| match &wanted.request {
            // A reboot is what an owner without a declaration gets.
            Request::Act { action: Action::Reboot, .. } => true,
            Request::Act { action, unit } => {
                let fits_unit = |unit: &String| self.units.iter().any(|pattern| fits(pattern, unit));
                self.actions.contains(action) && unit.as_ref().is_none_or(fits_unit)
            }
            Request::Special | Request::Unknown(_) => false,
        })
    }
}
