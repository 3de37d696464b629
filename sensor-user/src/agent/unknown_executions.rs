//! Which executions the kernel programs report, and those of files that nothing expects, in directories of which the daemon knows everything
//! that should be there.
//!
//! In: the expectations and the drift policy; ring records of executions, each about a name in such a directory. Out: these directories,
//! and a forensic record for a file that no config, image, package or baseline has. It owns what the indexes said about paths.

use super::registry::WatchRegistry;
use super::state::Agent;
use crate::desired::Desired;
use crate::event::CheckedRecord;
use crate::image;
use crate::kernel::maps::MapsError;
use sensor_model::expectation::{Expectation, ExpectationSource, Expected};
use sensor_model::protocol::{ThingChange, ThingId};
use sensor_model::verdict::VerdictKind;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Most paths that are kept. The indexes have the others looked up again.
const MOST: usize = 256;

/// What the indexes said about paths. A new index begins a new run of the loop, and so a new one of these.
#[derive(Debug, Default)]
pub(super) struct LookedUpPaths(HashMap<PathBuf, bool>);

impl LookedUpPaths {
    /// Whether an index has a path. `look_up` asks the indexes.
    fn has(&mut self, path: &Path, look_up: impl FnOnce() -> bool) -> bool {
        if let Some(has) = self.0.get(path) {
            return *has;
        }
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let has = look_up();
        self.0.insert(path.to_owned(), has);
        has
    }
}

/// Has the kernel programs report executions in the directories of which the expectations are complete: those that a policy closes, and
/// those in which a rule has everything watched that the image has. Executions of what the image has are reported only after a change.
pub(super) fn set_reported(registry: &mut WatchRegistry, desired: &Desired) {
    let mut directories: BTreeSet<PathBuf> = BTreeSet::new();
    // With an index that is missing or old, a file of the image may look like one that nothing expects.
    let is_indexed = desired.expectations.iter().all(|one| one.expected != Expected::Unindexed);
    for one in &desired.expectations {
        let path = one.thing.path();
        if is_of_image(one) {
            registry.set_quiet_executions(&path, true);
        }
        match (&one.source, path.parent()) {
            (ExpectationSource::ClosedBy(_), _) => {
                directories.insert(path.to_path_buf());
            }
            (ExpectationSource::ImageLayer(_), Some(parent)) if is_indexed && one.thing.is_object() => {
                if !directories.contains(parent) && desired.policy.watches_names_of_image(parent) {
                    directories.insert(parent.to_owned());
                }
            }
            _ => {}
        }
    }
    for directory in &directories {
        registry.report_executions_in(directory);
    }
}

/// Whether the thing is a file that only the image has.
fn is_of_image(expectation: &Expectation) -> bool {
    matches!(
        (&expectation.source, &expectation.expected),
        (ExpectationSource::ImageLayer(_), Expected::File(_))
    )
}

/// What a directory's expectations say about a name in it.
#[derive(Debug, PartialEq, Eq)]
enum Name {
    /// These things are at the name.
    Of(Vec<ThingId>),
    /// A policy closes the directory, and nothing declares the name.
    Undeclared,
    /// A policy closes the directory, and something declares the name, or the policy lets it be.
    Declared,
    /// Nothing is at the name. The indexes may have it.
    NoThing,
}

impl Name {
    /// `things`: those that a record about the name concerns.
    fn of<'a>(
        path: &Path,
        name: &OsStr,
        things: &[ThingId],
        expectation: impl Fn(ThingId) -> &'a Expectation,
    ) -> Self {
        let all: Vec<(ThingId, &Expectation)> = things.iter().map(|one| (*one, expectation(*one))).collect();
        let at = |one: &&(ThingId, &Expectation)| one.1.thing.is_object() && *one.1.thing.path() == *path;
        let own: Vec<ThingId> = all.iter().filter(at).map(|(thing, _)| *thing).collect();
        if !own.is_empty() {
            return Self::Of(own);
        }
        let closed = all.iter().filter_map(|(_, one)| match (&one.source, &one.expected) {
            (ExpectationSource::ClosedBy(_), Expected::ClosedDirectory(closed)) => Some(closed),
            _ => None,
        });
        let name = name.to_string_lossy();
        match closed.map(|closed| closed.is_unexpected(&name)).reduce(|one, other| one || other) {
            Some(true) => Self::Undeclared,
            Some(false) => Self::Declared,
            None => Self::NoThing,
        }
    }
}

impl Agent {
    /// Has executions of a file of the image reported from the moment at which it drifts until it is as in the image again. `before`: the
    /// verdict before the last verification.
    pub(super) fn follow_executions(
        &mut self,
        thing: ThingId,
        before: Option<VerdictKind>,
    ) -> Result<(), MapsError> {
        let is_drifted = |verdict| verdict == Some(VerdictKind::Drifted);
        let now = is_drifted(self.verdicts.last_verdict(thing));
        let expectation = self.verdicts.expectation(thing);
        if is_drifted(before) == now || !is_of_image(expectation) {
            return Ok(());
        }
        if self.verifications.verifier.set_quiet_executions(&expectation.thing.path(), !now)? {
            // The entry is dirty now.
            self.verdicts.verify_soon([thing], ThingChange { own: true, outside_evidence: false });
        }
        Ok(())
    }

    /// Records the execution of a file without an entry in the kernel's map, if nothing expects the file. `watches`: those of its directory.
    pub(super) fn executed_without_entry(&mut self, watches: &[u32], change: &CheckedRecord) {
        let Some(name) = change.name() else { return };
        let mut unknown = None;
        for watch_id in watches {
            let registry = &self.verifications.verifier.registry;
            let Some(watch) = registry.get(*watch_id).filter(|watch| watch.reports_executions()) else {
                continue;
            };
            let path = watch.path.join(name);
            let things = registry.concerned(&[*watch_id], Some(name), false, false).in_evidence;
            match Name::of(&path, name, &things, |thing| self.verdicts.expectation(thing)) {
                // It is expected, and a verification enrols it soon.
                Name::Of(things) => return self.executed(&things, change),
                Name::Declared => return,
                Name::NoThing if self.image_has(&path) => return,
                Name::Undeclared | Name::NoThing => unknown = unknown.or(Some(path)),
            }
        }
        let Some(path) = unknown else { return };
        let actor = self.intake.actor(change);
        let observer = &self.verifications.verifier.observer;
        self.denials.record_unknown_execution(&path, change, &actor, observer, &mut self.verdicts);
    }

    /// Whether an index has the path, or the policy does not ask for what the image has there.
    fn image_has(&mut self, path: &Path) -> bool {
        if self.verdicts.desired.policy.expects_of_image(path).is_none() {
            return true;
        }
        let (observer, state) = (&self.verifications.verifier.observer, &self.options.inputs.state);
        self.denials.looked_up.has(path, || {
            image::has(observer, state, path).unwrap_or_else(|error| {
                tracing::warn!(%error, path = %path.display(), "Cannot look an executed file up in the index of the image, so its execution has no record.");
                true
            })
        })
    }
}
