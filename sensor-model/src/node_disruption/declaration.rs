//! The actions that owners of MachineConfigs declare, and the policy entries that allow them.
//!
//! In: the value of the annotation `holdfast.dev/disruption`: actions with commas between them, each a `type` of the policy and
//! its unit (`DaemonReload, Restart app.service`). Out: actions, or why the value is refused. An owner cannot declare more than
//! an entry of `declarations` in an administrator's policy allows.

use super::{EntryAction, PolicyRequest, error::DeclarationError, forms, matching::fits};
use crate::{action::Action, merge::Declaration};
use std::collections::BTreeMap;

/// An entry of `declarations`: which owners may declare which actions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Names or globs of MachineConfigs; empty for every one with the labels.
    pub machine_configs: Vec<String>,
    /// Labels that the MachineConfig must have.
    pub match_labels: BTreeMap<String, String>,
    /// Paths, directories or globs of the content; empty for every path.
    pub paths: Vec<String>,
    /// Actions that may be declared.
    pub actions: Vec<Action>,
    /// Names or globs of units that may be reloaded and restarted.
    pub units: Vec<String>,
    /// Its file and number, for messages.
    pub label: String,
}

/// Reads an annotation's value.
pub(super) fn actions(text: &str) -> Result<Vec<EntryAction>, DeclarationError> {
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
            _ => return Err(DeclarationError::NotAnAction { text: part.trim().to_owned() }),
        });
    }
    forms::standalone(&actions)?;
    Ok(actions)
}

impl Allowance {
    /// Whether the entry covers a path of this MachineConfig: that of a file, directory, link or unit.
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
            PolicyRequest::Act { action: Action::Reboot, .. } => true,
            PolicyRequest::Act { action, unit } => {
                let fits_unit = |unit: &String| self.units.iter().any(|pattern| fits(pattern, unit));
                self.actions.contains(action) && unit.as_ref().is_none_or(fits_unit)
            }
            PolicyRequest::Special | PolicyRequest::Unknown(_) => false,
        })
    }
}
