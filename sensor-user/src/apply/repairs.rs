//! Repairs that a command asks for.
//!
//! In: the host, its desired state, and the things to repair. Out: what was restored, and what was not and why. No apply starts
//! meanwhile, and the daemon learns of the repair before the first write, so that its deny rules let this process pass.

use super::{
    ApplyError,
    writer_protocol::{self, WriterAnnouncement, WriterConnection},
};
use crate::{
    desired::Whole,
    repair::{RepairError, Restored, Restorer, order},
    store::Store,
};
use nix::fcntl::Flock;
use sensor_model::{
    compare::Ids,
    difference::Difference,
    drift_policy::DriftAction,
    expectation::{Expectation, SYSTEMD_DIRECTORY, Thing},
};
use std::{fs::File, path::Path};

/// A thing that differs from its expectation.
#[derive(Debug)]
pub struct Differing {
    /// What it should be.
    pub expectation: Expectation,
    /// How it differs.
    pub differences: Vec<Difference>,
}

/// What became of a repair.
#[derive(Debug, Default)]
pub struct Repaired<'a> {
    /// Things that are as declared now, and what was done.
    pub restored: Vec<(&'a Expectation, Restored)>,
    /// Things that are not, by their paths, and why.
    pub refused: Vec<(String, RepairError)>,
}

/// The running daemon would report the result as drift.
#[derive(Debug, thiserror::Error)]
#[error(
    "the running daemon expects another state of these paths, because it runs with another config or policy; nothing was \
     written. Without --config and --policy the repair uses those that are in force"
)]
pub struct Unexpected;

/// Keeps applies from starting, for as long as the lock lives; `None` on a host without a store of applies.
///
/// # Errors
/// An apply is under way, or was interrupted and has to be finished first.
pub fn keep_applies_away(state: &Path) -> Result<Option<Flock<File>>, ApplyError> {
    let Some(store) = Store::look(state)? else { return Ok(None) };
    let Some(lock) = store.lock()? else {
        return Err(ApplyError::Locked(store.path().join("lock")));
    };
    match store.open_journal()? {
        Some(journal) => {
            let id = journal.begin.id;
            Err(ApplyError::Unfinished(format!(
                "number {id}; `holdfast apply --resume` finishes it or restores the old config"
            )))
        }
        None => Ok(Some(lock)),
    }
}

/// Those things that differ, in the order in which they have to be restored.
pub async fn differing(restorer: &mut Restorer, mut things: Vec<Expectation>, ids: &Ids) -> Vec<Differing> {
    things.sort_by_key(order);
    things.dedup_by(|later, earlier| later.thing == earlier.thing);
    let mut differing = Vec::new();
    for expectation in things {
        let (_, differences) = restorer.look(&expectation, ids).await;
        if !differences.is_empty() {
            differing.push(Differing { expectation, differences });
        }
    }
    differing
}

/// Restores things.
///
/// # Errors
/// The running daemon expects something else. What cannot be restored is in the result.
pub async fn repair<'a>(
    restorer: &mut Restorer,
    state: &Path,
    whole: &Whole,
    things: &'a [Differing],
) -> Result<Repaired<'a>, Unexpected> {
    let policy = &whole.desired.policy;
    // The daemon does not watch what the policy ignores.
    let watched = things
        .iter()
        .map(|thing| &thing.expectation)
        .filter(|expectation| policy.decide(&expectation.thing.path(), None).action != DriftAction::Ignore);
    let announcement = WriterAnnouncement {
        repair: watched.map(writer_protocol::digest).collect(),
        ..WriterAnnouncement::default()
    };
    // The daemon lets this process write while the connection lives.
    let connection = WriterConnection::announce(state, &announcement, &mut |line| tracing::info!(line)).await;
    if connection.as_ref().is_some_and(|connection| connection.unexpected) {
        return Err(Unexpected);
    }
    let mut done = Repaired::default();
    let mut units = false;
    for Differing { expectation, .. } in things {
        let path = expectation.thing.path();
        match restorer.restore(&whole.rendered, expectation, &whole.desired.ids).await {
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
