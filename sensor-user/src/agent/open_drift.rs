//! Open drifts, by thing: the actors, the time of each, and the policy's action.
//!
//! In: reports of drift and recovery. Out: whether a drift was reported before, and its actors. The picture of the node owns them
//! across configs and restarts; the loop only reads them. No I/O.

use jiff::Timestamp;
use sensor_model::difference::Difference;
use sensor_model::drift_policy::DriftAction;
use sensor_model::expectation::SourceKind;
use sensor_model::record::{Actor, ThingName};
use sensor_model::strength::Strength;
use serde_json::Value;
use std::collections::BTreeMap;

/// The key in a record's `detail` for the kind of its source.
pub const SOURCE_KIND: &str = "source_kind";

/// The key in a record's `detail` for what its verdict rests on.
pub const STRENGTH: &str = "strength";

/// The key in a record's `detail` for the number of actors that it does not name.
pub const MORE_ACTORS: &str = "more_actors";

/// The key in a record's `detail` for the policy's action.
pub const POLICY: &str = "policy";

/// One open drift.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenDrift {
    /// The differences of the thing from its expectation.
    pub differences: Vec<Difference>,
    /// When it drifted.
    pub since: Timestamp,
    /// The actor that the record names first.
    pub actor: Option<Actor>,
    /// All actors that could have caused it, where there are several.
    pub actors: Vec<Actor>,
    /// There were more actors than those.
    pub more_actors: bool,
    /// The policy allowed all of them when the drift was reported or confirmed last. Their executables may be gone since.
    pub allowed: bool,
    /// What declares the thing: a MachineConfig, a layer or package, or the rule that closes the directory.
    pub source: String,
    /// The kind of that source. `None` if an older daemon recorded the drift.
    pub source_kind: Option<SourceKind>,
    /// What the verdict rests on. `None` for a MachineConfig and a closed directory.
    pub strength: Option<Strength>,
    /// The action of the present policy. After a restart it is that of the record, until the first verification of the thing. `None` if an
    /// older daemon recorded the drift.
    pub action: Option<DriftAction>,
    /// The state that the verification found.
    pub found: Option<Value>,
    /// A verification of this run found the drift.
    pub confirmed: bool,
}

impl OpenDrift {
    /// Whether these are the reported differences. Their texts are not compared: another version may have worded them.
    pub fn has(&self, differences: &[Difference]) -> bool {
        let facts = |differences: &[Difference]| {
            let mut facts: Vec<_> = differences
                .iter()
                .map(|difference| (difference.kind, difference.expected.clone(), difference.found.clone()))
                .collect();
            facts.sort_unstable();
            facts
        };
        facts(&self.differences) == facts(differences)
    }

    /// The actors that may have caused it, the one of the last change first.
    pub fn makers(&self) -> Vec<Actor> {
        let mut makers: Vec<Actor> = self.actor.iter().cloned().collect();
        for actor in &self.actors {
            if !makers.iter().any(|known| (known.pid, known.start_ns) == (actor.pid, actor.start_ns)) {
                makers.push(actor.clone());
            }
        }
        makers
    }

    /// Whether its actor caused all of these differences. Only the found states are compared, because the expectation may have
    /// changed.
    fn explains(&self, differences: &[Difference]) -> bool {
        let was_found = |difference: &Difference| {
            let known =
                |known: &Difference| (known.kind, &known.found) == (difference.kind, &difference.found);
            self.differences.iter().any(known)
        };
        self.actor.is_some() && !differences.is_empty() && differences.iter().all(was_found)
    }
}

/// All open drifts.
#[derive(Debug, Default)]
pub struct OpenDrifts {
    open: BTreeMap<ThingName, OpenDrift>,
}

impl FromIterator<(ThingName, OpenDrift)> for OpenDrifts {
    fn from_iter<I: IntoIterator<Item = (ThingName, OpenDrift)>>(open: I) -> Self {
        Self { open: open.into_iter().collect() }
    }
}

impl OpenDrifts {
    /// Another run of the loop begins, which has verified nothing yet.
    pub fn unconfirm(&mut self) {
        for open in self.open.values_mut() {
            open.confirmed = false;
        }
    }

    /// One open drift.
    pub fn get(&self, name: &ThingName) -> Option<&OpenDrift> {
        self.open.get(name)
    }

    /// All of them, by path.
    pub fn iter(&self) -> impl Iterator<Item = (&ThingName, &OpenDrift)> {
        self.open.iter()
    }

    /// Whether no drift is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether a thing drifted before this run, and no verification of this run has found that yet.
    pub fn is_unconfirmed(&self, name: &ThingName) -> bool {
        self.open.get(name).is_some_and(|open| !open.confirmed)
    }

    /// The drift, if it was reported before this run with just these differences.
    pub fn reported(&self, name: &ThingName, differences: &[Difference]) -> Option<&OpenDrift> {
        self.open.get(name).filter(|open| !open.confirmed && open.has(differences))
    }

    /// The drift whose actor caused all differences of now. For a thing without a known change since then.
    pub fn cause(&self, name: &ThingName, differences: &[Difference]) -> Option<&OpenDrift> {
        self.open.get(name).filter(|open| open.explains(differences))
    }

    /// A verification of this run found the reported drift. The present policy asks for this action, and allows the actors or does not.
    pub fn confirm(&mut self, name: &ThingName, action: DriftAction, allowed: bool) {
        if let Some(open) = self.open.get_mut(name) {
            open.confirmed = true;
            open.action = Some(action);
            open.allowed = allowed;
        }
    }

    /// A thing drifted, or has other differences than before.
    pub fn insert(&mut self, name: ThingName, open: OpenDrift) {
        self.open.insert(name, open);
    }

    /// The thing matches its expectation again, or nothing declares it any more.
    pub fn remove(&mut self, name: &ThingName) -> Option<OpenDrift> {
        self.open.remove(name)
    }
}

#[cfg(test)]
#[path = "open_drift_tests.rs"]
mod tests;
