//! What owners of MachineConfigs declare, and whose declarations count.
//!
//! The value of the annotation `holdfast.dev/disruption` comes in: actions, separated by commas, each a word
//! of the policy's and the unit after it (`DaemonReload, Restart app.service`). Out come actions, or why not.
//! An owner never declares more than an entry of `declarations` in an administrator's policy allows.

use super::{Action, Verb, forms, matching::fits};
use crate::merge::Declaration;
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
    /// Words of actions that may be declared.
    pub actions: Vec<String>,
    /// Names or globs of units that may be reloaded and restarted.
    pub units: Vec<String>,
    /// Where it stands, for messages.
    pub label: String,
}

/// Reads an annotation's value.
pub(super) fn actions(text: &str) -> Result<Vec<Action>, String> {
    let mut actions = Vec::new();
    for part in text.split(',') {
        let mut words = part.split_ascii_whitespace();
        let (word, unit, more) = (words.next(), words.next(), words.next());
        let verb = match (word, unit, more) {
            (Some("None"), None, _) => Verb::None,
            (Some("Drain"), None, _) => Verb::Drain,
            (Some("DaemonReload"), None, _) => Verb::DaemonReload,
            (Some("Reboot"), None, _) => Verb::Reboot,
            (Some("Reload"), Some(unit), None) => Verb::Reload(forms::unit(unit, false)?),
            (Some("ReloadOrRestart"), Some(unit), None) => Verb::ReloadOrRestart(forms::unit(unit, false)?),
            (Some("Restart"), Some(unit), None) => Verb::Restart(forms::unit(unit, false)?),
            _ => {
                return Err(format!(
                    "{:?} is not an action: there are None, Drain, DaemonReload, Reload UNIT, \
                     ReloadOrRestart UNIT, Restart UNIT, Reboot",
                    part.trim()
                ));
            }
        };
        actions.push(Action::plain(verb));
    }
    forms::standalone(&actions)?;
    Ok(actions)
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
    pub(super) fn allows(&self, actions: &[Action]) -> bool {
        actions.iter().all(|action| {
            let (word, unit) = match &action.verb {
                Verb::None => ("None", None),
                Verb::Drain => ("Drain", None),
                Verb::DaemonReload => ("DaemonReload", None),
                Verb::Reload(unit) => ("Reload", Some(unit)),
                Verb::ReloadOrRestart(unit) => ("ReloadOrRestart", Some(unit)),
                Verb::Restart(unit) => ("Restart", Some(unit)),
                // Whoever asks for the most may have it.
                Verb::Reboot => return true,
                Verb::Special | Verb::Unknown(_) => return false,
            };
            let unit = unit.is_none_or(|unit| self.units.iter().any(|pattern| fits(pattern, unit)));
            unit && self.actions.iter().any(|allowed| allowed == word)
        })
    }
}
