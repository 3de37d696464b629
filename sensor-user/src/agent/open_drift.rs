//! Drifts that are open, by thing: who did them, since when, and what is done about them.
//!
//! In: what was told of drifts, by this run of the loop, by the one before it, or by the log after a restart. Out: whether a
//! look found something new, and what is known of who did it. What was open before is kept until a look of this run
//! tells how it stands. No I/O.

use crate::report::forensic::OpenDrift;
use crate::report::metrics;
use sensor_model::difference::Difference;
use sensor_model::drift_policy::Action;
use sensor_model::record::{Actor, ThingName};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};

/// In a record's `detail`: how many actors there are besides those that it names.
pub(super) const MORE_ACTORS: &str = "more_actors";

/// An open drift.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Open {
    pub(super) differences: Vec<Difference>,
    /// RFC 3339.
    pub(super) since: String,
    pub(super) actor: Option<Actor>,
    /// All who could have made it, where there are several.
    pub(super) actors: Vec<Actor>,
    /// And there were more than those.
    pub(super) more: bool,
    /// All of them were allowed to when that was told: what their executables were then need not be there any more.
    pub(super) allowed: bool,
    /// The MachineConfig that said what it should be.
    pub(super) source: String,
    /// What is done about it by the policy that counts now; what it was is not known after a restart.
    pub(super) action: Option<Action>,
    /// What was found.
    pub(super) found: Option<Value>,
    /// A look of this run found it.
    pub(super) seen: bool,
}

/// All open drifts.
#[derive(Debug, Default)]
pub(super) struct Drifts {
    open: BTreeMap<ThingName, Open>,
}

impl Drifts {
    /// What the log says was open.
    pub(super) fn of_log(open: BTreeMap<ThingName, OpenDrift>) -> Self {
        let open = open.into_iter().map(|(name, OpenDrift { since, last })| {
            let open = Open {
                allowed: last.detail.get("allowed").is_some_and(|allowed| *allowed == true),
                differences: last.differences,
                since,
                more: last.detail.contains_key(MORE_ACTORS),
                actor: last.actor,
                actors: last.actors,
                source: last.source.unwrap_or_default(),
                action: None,
                found: last.after,
                seen: false,
            };
            (name, open)
        });
        Self { open: open.collect() }
    }

    /// For the next run, which has looked at nothing yet.
    pub(super) fn carry(mut self) -> Self {
        for open in self.open.values_mut() {
            open.seen = false;
        }
        self
    }

    /// What the gauges start from.
    pub(super) fn for_metrics(&self) -> impl Iterator<Item = (ThingName, metrics::OpenDrift)> {
        self.open.iter().map(|(name, open)| {
            let mut kinds: Vec<_> = open.differences.iter().map(|difference| difference.kind).collect();
            kinds.sort_unstable();
            let since = open.since.parse().unwrap_or_default();
            (name.clone(), metrics::OpenDrift { kinds, since })
        })
    }

    /// An open drift.
    pub(super) fn get(&self, name: &ThingName) -> Option<&Open> {
        self.open.get(name)
    }

    /// All of them, by path.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ThingName, &Open)> {
        self.open.iter()
    }

    /// Whether a look of this run has still to tell how a thing stands that had drifted before.
    pub(super) fn is_unseen(&self, name: &ThingName) -> bool {
        self.open.get(name).is_some_and(|open| !open.seen)
    }

    /// The first look of this run found what was told before it: nothing is new. Gives the drift.
    pub(super) fn resume(&mut self, name: &ThingName, differences: &[Difference]) -> Option<&mut Open> {
        let open = self.open.get_mut(name)?;
        if open.seen || !same(&open.differences, differences) {
            return None;
        }
        open.seen = true;
        Some(open)
    }

    /// What is done about a drift.
    pub(super) fn decide(&mut self, name: &ThingName, action: Action) {
        if let Some(open) = self.open.get_mut(name) {
            open.action = Some(action);
        }
    }

    /// Who made what is found now though it is told in another way, because what is declared changed: whoever made
    /// all of what is found. For a thing that nobody was told to have changed since.
    pub(super) fn maker(&self, name: &ThingName, differences: &[Difference]) -> Option<&Open> {
        let open = self.open.get(name)?;
        let was_found = |difference: &Difference| {
            open.differences
                .iter()
                .any(|known| (known.kind, &known.found) == (difference.kind, &difference.found))
        };
        let is_known = open.actor.is_some() && !differences.is_empty();
        (is_known && differences.iter().all(was_found)).then_some(open)
    }

    /// A thing drifted, or in another way than before.
    pub(super) fn set(&mut self, name: ThingName, open: Open) {
        self.open.insert(name, open);
    }

    /// It is as declared again.
    pub(super) fn close(&mut self, name: &ThingName) -> Option<Open> {
        self.open.remove(name)
    }

    /// Takes out what nothing declares any more, by path.
    pub(super) fn release(&mut self, declared: &HashSet<ThingName>) -> Vec<(ThingName, Open)> {
        self.open.extract_if(.., |name, _| !declared.contains(name)).collect()
    }

    /// Whether nothing is open.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

/// Whether the same departs from the same; the sentences may be another version's.
fn same(one: &[Difference], other: &[Difference]) -> bool {
    let bare = |differences: &[Difference]| {
        let mut bare: Vec<_> = differences
            .iter()
            .map(|difference| (difference.kind, difference.expected.clone(), difference.found.clone()))
            .collect();
        bare.sort_unstable();
        bare
    };
    bare(one) == bare(other)
}

#[cfg(test)]
#[path = "open_drift_tests.rs"]
mod tests;
