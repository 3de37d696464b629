//! The generation that a host has, and the one that a rollback applies again.
//!
//! In: the store. Out: the present config, or a generation's number.

use super::os;
use crate::{
    desired::{DesiredError, generation},
    observation::Observer,
    store::{Store, StoreError},
};
use sensor_model::{journal::ApplyEnd, merge::Rendered};
use std::collections::BTreeSet;

/// How many of the newest configs are kept, beside those that the host needs. In the mode `manage` the cluster decides how often one comes.
const KEPT: usize = 20;
/// How many of the newest entries of the history are kept. An entry has the whole plan.
const ENTRIES: usize = 200;

/// Why a generation cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A config in the store is damaged.
    #[error(transparent)]
    Config(Box<DesiredError>),
    /// The apply does not exist or never completed.
    #[error(
        "--to {0}: apply number {0} does not exist, never completed, or is older than the history; see `holdfast history`"
    )]
    NeverApplied(u64),
    /// Its manifests are no longer kept.
    #[error(
        "--to {0}: the config of apply number {0} is not kept any more: only the newest {KEPT} are. Apply its manifests as a new config"
    )]
    Forgotten(u64),
    /// The current config has none before it.
    #[error("the current config, number {0}, is the first one that was applied")]
    First(u64),
}

impl From<DesiredError> for GenerationError {
    fn from(error: DesiredError) -> Self {
        Self::Config(Box::new(error))
    }
}

impl GenerationError {
    /// Whether the command line asks for something that does not exist.
    pub fn is_input(&self) -> bool {
        matches!(self, Self::NeverApplied(_) | Self::Forgotten(_) | Self::First(_))
    }
}

/// The present config of a host whose current generation is `id`. Its OS is that of the last generation that was applied with
/// acts, unless the OS of the current one is booted.
///
/// # Errors
/// The store cannot be read, or a config in it is damaged.
pub fn present_config(store: &Store, id: u64, observer: &Observer) -> Result<Rendered, GenerationError> {
    let kept = |id| generation((id, store.config(id)).into()).map(|kept| kept.rendered);
    let mut rendered = kept(id)?;
    let mut done = Some(id);
    while let Some(id) = done
        && let Some(entry) = store.history(id)?
        && entry.without_acts
    {
        done = entry.previous;
    }
    if done != Some(id) && !os::is_there(&rendered, observer) {
        rendered.take_os(done.map(kept).transpose()?.unwrap_or_default());
    }
    Ok(rendered)
}

/// The generation that a rollback from `current` applies again: the named one, else the one before the current one.
///
/// # Errors
/// There is no such generation, or the store cannot be read.
pub fn rollback_target(store: &Store, current: u64, named: Option<u64>) -> Result<u64, GenerationError> {
    let is_done =
        |id: u64| store.history(id).ok().flatten().is_some_and(|entry| entry.result == Some(ApplyEnd::Done));
    match named {
        Some(id) if is_done(id) && !store.has_config(id) => Err(GenerationError::Forgotten(id)),
        Some(id) if is_done(id) => Ok(id),
        Some(id) => Err(GenerationError::NeverApplied(id)),
        None => {
            let entry = store.history(current)?;
            let previous = entry.and_then(|entry| entry.previous).filter(|id| is_done(*id));
            previous.ok_or(GenerationError::First(current))
        }
    }
}

/// Removes old configs and old entries of the history. What stays are the newest ones, the current config, the one before it, and those whose
/// OS these two may have ([`present_config`]). Only for a store without an open apply, before a generation is added.
///
/// # Errors
/// The store cannot be read, or a directory cannot be removed.
pub(crate) fn forget_old(store: &Store) -> Result<(), StoreError> {
    let all = store.generations()?;
    if all.len() < KEPT {
        return Ok(());
    }
    let (mut entries, mut configs) = (BTreeSet::new(), BTreeSet::new());
    let mut next = store.current()?.map(|(id, _)| id);
    let mut with_acts = 0;
    while let Some(id) = next
        && with_acts < 2
    {
        let is_near = entries.len() < 2;
        entries.insert(id);
        let Some(entry) = store.history(id)? else {
            configs.insert(id);
            break;
        };
        if !entry.without_acts || is_near {
            configs.insert(id);
        }
        with_acts += usize::from(!entry.without_acts);
        next = entry.previous.filter(|previous| !entries.contains(previous));
    }
    // The caller adds one.
    let newest = |most: usize| (all.len() + 1).saturating_sub(most);
    for (place, id) in all.iter().copied().enumerate() {
        if place < newest(ENTRIES) && !entries.contains(&id) {
            store.forget_generation(id)?;
        } else if place < newest(KEPT) && !configs.contains(&id) {
            store.forget_config(id)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::HistoryEntry;

    /// A store with applies of these numbers: each with the number before it that was done, whether it was done, and whether it had acts.
    fn store(applies: impl IntoIterator<Item = (u64, bool, bool)>) -> (tempfile::TempDir, Store) {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        let plan = serde_json::json!({
            "schema": "", "reconcilable": true, "reasons": [], "changes": [], "steps": [], "drain": false, "reboot": false,
        });
        let mut previous = None;
        for (id, is_done, acts) in applies {
            store.add_generation(id, &[("000-a.yaml".to_owned(), id.to_string().into_bytes())]).unwrap();
            let end = if is_done { ApplyEnd::Done } else { ApplyEnd::RolledBack };
            let entry: HistoryEntry = serde_json::from_value(serde_json::json!({
                "id": id, "previous": previous, "began": "", "result": end, "reason": "", "problems": [], "config": "", "paths": 0,
                "plan": plan, "without_acts": !acts,
            }))
            .unwrap();
            store.set_history(id, &entry).unwrap();
            if is_done {
                previous = Some(id);
                store.set_current(id).unwrap();
            }
        }
        (state, store)
    }

    fn kept(store: &Store) -> Vec<u64> {
        store.generations().unwrap().into_iter().filter(|id| store.has_config(*id)).collect()
    }

    #[test]
    fn only_the_newest_configs_are_kept_and_a_rollback_to_an_older_one_says_so() {
        let (_state, store) = store((1..=100).map(|id| (id, true, true)));
        forget_old(&store).unwrap();
        assert_eq!(kept(&store), (82..=100).collect::<Vec<_>>(), "with the next one twenty");
        assert_eq!(store.generations().unwrap().len(), 100, "their entries stay");
        assert_eq!(rollback_target(&store, 100, None).unwrap(), 99);
        assert_eq!(rollback_target(&store, 100, Some(82)).unwrap(), 82);
        assert!(matches!(rollback_target(&store, 100, Some(81)), Err(GenerationError::Forgotten(81))));
    }

    #[test]
    fn however_many_applies_fail_the_current_config_and_the_one_before_it_are_kept() {
        let failed = (3..=60).map(|id| (id, false, true));
        let (_state, store) = store([(1, true, true), (2, true, true)].into_iter().chain(failed));
        forget_old(&store).unwrap();
        assert_eq!(kept(&store), [1, 2].into_iter().chain(42..=60).collect::<Vec<_>>());
        assert_eq!(rollback_target(&store, 2, None).unwrap(), 1);
    }

    #[test]
    fn the_config_whose_os_the_host_has_is_kept_behind_any_number_of_applies_without_acts() {
        let without = (4..=1100).map(|id| (id, true, false));
        let first = [(1, true, true), (2, true, true), (3, true, true)];
        let (_state, store) = store(first.into_iter().chain(without));
        forget_old(&store).unwrap();
        let all = kept(&store);
        assert_eq!(all[..2], [2, 3], "the last two with acts");
        assert_eq!(all[2..], (1082..=1100).collect::<Vec<_>>());
        let entries = store.generations().unwrap();
        assert!(!entries.contains(&1) && entries.len() == 1099, "{}", entries.len());
    }

    #[test]
    fn of_the_history_the_newest_entries_stay() {
        let (_state, store) = store((1..=250).map(|id| (id, true, true)));
        forget_old(&store).unwrap();
        assert_eq!(
            store.generations().unwrap(),
            (52..=250).collect::<Vec<_>>(),
            "with the next one two hundred"
        );
    }

    #[test]
    fn the_current_config_stays_also_if_its_entry_of_the_history_is_lost() {
        let failed = (2..=60).map(|id| (id, false, true));
        let (_state, store) = store([(1, true, true)].into_iter().chain(failed));
        std::fs::remove_file(store.config(1).with_file_name("history.json")).unwrap();
        forget_old(&store).unwrap();
        assert_eq!(kept(&store)[0], 1);
    }
}
