//! Executions and loads of files that nothing expects, in directories of which the daemon knows everything that should be there.
//!
//! In: ring records of executions and loads, each about a name in such a directory, and verdicts of files of the image. Out: a forensic
//! record for a file that no config, image, package or baseline has, and the roles that have executions and loads of a file reported. It
//! owns nothing.

use super::executions::{Name, is_of_image};
use super::state::Agent;
use crate::event::CheckedRecord;
use crate::kernel::maps::MapsError;
use sensor_common::op::Operation;
use sensor_model::drift_policy::DriftAction;
use sensor_model::protocol::{ThingChange, ThingId};
use sensor_model::verdict::VerdictKind;
use std::path::Path;

impl Agent {
    /// Has executions of a file of the image reported from the moment at which it drifts until it is as in the image again.
    pub(super) fn follow_executions(&mut self, thing: ThingId) -> Result<(), MapsError> {
        let differs = match self.verdicts.last_verdict(thing) {
            Some(VerdictKind::Drifted) => true,
            Some(VerdictKind::Compliant | VerdictKind::Touched) => false,
            Some(VerdictKind::Unknown) | None => return Ok(()),
        };
        let expectation = self.verdicts.expectation(thing);
        if !is_of_image(expectation) {
            return Ok(());
        }
        if self.verifications.verifier.set_image_differs(&expectation.thing.path(), differs)? {
            // The entry is dirty now.
            self.verdicts.verify_soon([thing], ThingChange { own: true, outside_evidence: false });
        }
        Ok(())
    }

    /// Records the execution or load of a file without an entry in the kernel's map, if nothing expects the file. `watches`: those of its
    /// directory.
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
                Name::Of(mut things) => {
                    // Only loads of files of the image have records.
                    if change.operation == Operation::Load {
                        things.retain(|thing| is_of_image(self.verdicts.expectation(*thing)));
                    }
                    return self.executed(&things, change);
                }
                Name::Declared => return,
                Name::NoThing if !self.is_absent_from_image(&path) => return,
                Name::Undeclared | Name::NoThing => unknown = unknown.or(Some(path)),
            }
        }
        let Some(path) = unknown else { return };
        let actor = self.intake.actor(change);
        let observer = &self.verifications.verifier.observer;
        self.denials.record_unknown_execution(&path, change, &actor, observer, &mut self.verdicts);
    }

    /// Whether no index has the path, and the policy asks for what is there.
    fn is_absent_from_image(&mut self, path: &Path) -> bool {
        let policy = &self.verdicts.desired.policy;
        // A config may declare a path that the policy ignores: such a path is no thing.
        let is_ignored = policy.decide(path, None).action == DriftAction::Ignore;
        if is_ignored || policy.expects_of_image(path).is_none() {
            return false;
        }
        let (observer, state) = (&self.verifications.verifier.observer, &self.options.inputs.state);
        let indexes = &mut self.denials.indexes;
        let has = self.denials.looked_up.has(path, || {
            indexes.has(observer, state, path).unwrap_or_else(|error| {
                tracing::warn!(%error, path = %path.display(), "Cannot look an executed or loaded file up in the index of the image, so it has no record.");
                None
            })
        });
        has == Some(false)
    }
}
