//! Repairs that a command asks for.
//!
//! In: the host, its desired state, and the things to repair. Out: the restored things, and for each other one the reason. During a
//! repair no apply starts. The daemon is notified before the first write, so that its deny rules let this process pass.

use super::ApplyError;
use crate::{
    agent::writer_protocol::{self, WriterAnnouncement, WriterConnection},
    desired::DesiredWithConfig,
    repair::{RepairError, Restored, Restorer, linked_file, order},
    store::Store,
};
use nix::fcntl::Flock;
use sensor_model::{
    compare::Ids,
    difference::Difference,
    drift_policy::DriftAction,
    expectation::{Expectation, Expected, SYSTEMD_DIRECTORY, Thing},
};
use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
};

/// A thing that differs from its expectation.
#[derive(Debug)]
pub struct Differing {
    /// What it should be.
    pub expectation: Expectation,
    /// How it differs.
    pub differences: Vec<Difference>,
}

/// The things of a repair.
#[derive(Debug, Default)]
pub struct RepairSelection {
    /// All of them, in the order in which they have to be restored.
    things: Vec<Expectation>,
    /// Those that differ, in the same order.
    pub differing: Vec<Differing>,
}

/// The result of a repair.
#[derive(Debug, Default)]
pub struct Repaired<'a> {
    /// Things that match their expectation now, and how they were restored.
    pub restored: Vec<(&'a Expectation, Restored)>,
    /// Things that do not, by their paths, and why.
    pub refused: Vec<(String, RepairError)>,
}

/// The running daemon expects another state, and would report the result of the repair as drift.
#[derive(Debug, thiserror::Error)]
#[error(
    "the running daemon expects another state of these paths, because it runs with another config or policy; nothing was \
     written. Without --config and --policy the repair uses those that are in force"
)]
pub struct Unexpected;

/// Keeps applies from starting while the lock lives; `None` on a host without a store of applies.
///
/// # Errors
/// An apply is under way, or was interrupted and has to be finished first.
pub fn keep_applies_away(state: &Path) -> Result<Option<Flock<File>>, ApplyError> {
    let Some(store) = Store::open_existing(state)? else { return Ok(None) };
    let Some(lock) = store.lock()? else {
        return Err(ApplyError::Locked(store.path().join("lock")));
    };
    match store.open_journal()? {
        Some(journal) => Err(ApplyError::Interrupted(journal.begin.id)),
        None => Ok(Some(lock)),
    }
}

/// Compares things with their expectations.
pub async fn select(restorer: &mut Restorer, mut things: Vec<Expectation>, ids: &Ids) -> RepairSelection {
    things.sort_by_key(order);
    things.dedup_by(|later, earlier| later.thing == earlier.thing);
    let mut differing = Vec::new();
    for expectation in &things {
        let (_, differences) = restorer.look(expectation, ids).await;
        if !differences.is_empty() {
            differing.push(Differing { expectation: expectation.clone(), differences });
        }
    }
    RepairSelection { things, differing }
}

/// The declared other names of the files that are repaired, and of these names again. A repair may give a file a new inode, and
/// then it has to make its other names anew.
fn other_names<'a>(whole: &'a DesiredWithConfig, differing: &[Differing]) -> Vec<&'a Expectation> {
    let mut paths: BTreeSet<PathBuf> =
        differing.iter().map(|thing| thing.expectation.thing.path().to_path_buf()).collect();
    let names = whole.desired.expectations.iter().filter_map(|expectation| match &expectation.expected {
        Expected::Link(link) => Some((expectation, linked_file(&expectation.thing.path(), link)?)),
        _ => None,
    });
    let mut names: Vec<(&Expectation, PathBuf)> = names.collect();
    let mut found = Vec::new();
    loop {
        let count = found.len();
        names.retain(|(expectation, file)| {
            let is_of_these = paths.contains(file);
            if is_of_these && paths.insert(expectation.thing.path().to_path_buf()) {
                found.push(*expectation);
            }
            !is_of_these
        });
        if found.len() == count {
            return found;
        }
    }
}

/// Restores the things that differ, and makes the other names of files anew that got a new inode. Removes the temporary names that
/// an earlier, killed repair of these things left.
///
/// # Errors
/// The running daemon expects another state. Things that cannot be restored are in the result.
pub async fn repair<'a>(
    restorer: &mut Restorer,
    state: &Path,
    whole: &'a DesiredWithConfig,
    selection: &'a RepairSelection,
) -> Result<Repaired<'a>, Unexpected> {
    let policy = &whole.desired.policy;
    let differing = selection.differing.iter().map(|thing| &thing.expectation);
    let things: Vec<&Expectation> = differing.chain(other_names(whole, &selection.differing)).collect();
    // The daemon does not watch what the policy ignores.
    let watched = things
        .iter()
        .copied()
        .filter(|expectation| policy.decide(&expectation.thing.path(), None).action != DriftAction::Ignore);
    let announcement = WriterAnnouncement {
        repair: watched.map(writer_protocol::digest).collect(),
        ..WriterAnnouncement::default()
    };
    // The daemon lets this process write while the connection lives.
    let daemon = WriterConnection::announce(state, &announcement, &mut |line| tracing::info!(line)).await;
    if daemon.as_ref().is_some_and(|daemon| daemon.unexpected) {
        return Err(Unexpected);
    }
    let mut done = Repaired::default();
    restorer.remove_leftovers(&selection.things);
    let mut units = false;
    for (number, expectation) in things.into_iter().enumerate() {
        let path = expectation.thing.path();
        match restorer.restore(&whole.rendered, expectation, &whole.desired.ids).await {
            // The file kept its inode, so this other name needed no repair.
            Ok(written) if written.before.is_empty() && number >= selection.differing.len() => {}
            Ok(written) => {
                units |=
                    !matches!(expectation.thing, Thing::Unit { .. }) && path.starts_with(SYSTEMD_DIRECTORY);
                done.restored.push((expectation, written));
            }
            Err(error) => done.refused.push((path.to_string_lossy().into_owned(), error)),
        }
    }
    if units && let Err(error) = restorer.reload_units().await {
        done.refused.push((SYSTEMD_DIRECTORY.to_owned(), error));
    }
    Ok(done)
}
