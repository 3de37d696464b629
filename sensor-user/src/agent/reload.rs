//! Another config or policy, without an end of detection.
//!
//! In: a hang-up signal, and the files that the daemon was started with. Out: the reason for which a run of the
//! loop ends, and what the next one has to know of it. A set of files with a mistake changes nothing.

use super::events::Noted;
use super::{Agent, desired, desired::Desired};
use sensor_model::expectation::Thing;
use std::collections::HashMap;

/// Why a run of the loop ends.
#[derive(Debug)]
pub(super) enum Ended {
    /// The daemon was told to stop.
    Stopped,
    /// Another config was applied.
    Applied,
    /// Other configs or policies were read.
    Reloaded(Box<Desired>),
}

/// What the next run has to know.
#[derive(Debug, Default)]
pub(super) struct Carried {
    /// Who changed what has no verdict yet.
    changes: HashMap<Thing, Noted>,
    /// Why nothing is seen.
    blindness: Option<String>,
}

impl Agent {
    /// Reads configs and policies again. The loop ends if they say something else than before.
    pub(super) fn reload(&mut self) {
        if self.follow.is_at_work() {
            tracing::info!("Configs and policies are read again when the apply under way is over.");
            return;
        }
        let observer = &self.looker.observer;
        match desired::load(&self.options.configs, &self.options.policies, observer) {
            Ok(desired) if is_same(&desired, &self.desired) => {
                tracing::info!("Configs and policies were read again; they say what they said before.");
                self.telemetry.reloaded(true);
            }
            Ok(desired) => {
                let things = desired.expectations.len();
                tracing::info!(
                    things,
                    "Configs and policies were read again; the daemon begins anew with them."
                );
                self.ended = Some(Ended::Reloaded(Box::new(desired)));
            }
            Err(error) => {
                tracing::error!("Configs and policies stay as they were: {error:#}");
                self.telemetry.reloaded(false);
            }
        }
    }

    /// What the next run has to know of this one.
    pub(super) fn carry(&mut self) -> Carried {
        let expectations = &self.desired.expectations;
        let changes = std::mem::take(&mut self.changes).into_iter();
        Carried {
            changes: changes
                .filter_map(|(id, noted)| Some((expectations.get(id as usize)?.thing.clone(), noted)))
                .collect(),
            blindness: self.blindness.take().map(|(_, reason)| reason),
        }
    }

    /// Goes on where the last run ended.
    pub(super) fn take_over(&mut self, carried: Carried) {
        let mut changes = carried.changes;
        for (id, expectation) in (0..).zip(&self.desired.expectations) {
            if let Some(noted) = changes.remove(&expectation.thing) {
                self.changes.insert(id, noted);
            }
        }
        if let Some(reason) = carried.blindness {
            self.blind(&reason);
        }
    }
}

fn is_same(one: &Desired, other: &Desired) -> bool {
    one.expectations == other.expectations
        && one.policy == other.policy
        && one.ids == other.ids
        && one.sources == other.sources
}
