//! One turn of the loop: it reads the changes, verifies due things, reaches verdicts, and has declared state written back.
//!
//! In: changes, things that are due, answers of worker processes, the mount table. Out: verdicts. It owns nothing.

use super::changes::Changes;
use super::diff::DiffSources;
use super::error::AgentError;
use super::evaluation::concern_image;
use super::reports::AgentReport;
use super::state::Agent;
use super::verdicts::Verdicts;
use super::verifier::{VerifiedThing, VerifyOutcome};
use super::workers::WorkerResult;
use crate::image::is_of_unmerged_extension;
use crate::sys::temporary;
use sensor_model::difference::{Difference, DifferenceKind};
use sensor_model::expectation::Thing;
use sensor_model::protocol::{Finding, GapReason, ThingId};
use sensor_model::verdict::VerdictKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Things that one turn verifies before the loop reads records again.
const VERIFICATIONS_A_TURN: usize = 64;

impl Agent {
    /// One pass of the loop: reads the changes that have arrived, and verifies the things that are due.
    pub(super) async fn turn(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        // Records first, then the kernel's loss counter: the counter then covers every loss before the last record.
        self.read_changes(changes)?;
        self.verify_due(changes).await
    }

    /// Verifies the things that are due, and reports the results as one group.
    async fn verify_due(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        self.follow_mounts(changes)?;
        self.blindness.verify_after_device_writes(&mut self.verdicts);
        self.verifications.check_overdue_workers(&mut self.verdicts);
        let due = self.verdicts.detector.due(self.verdicts.now(), VERIFICATIONS_A_TURN);
        for thing in due {
            let began = self.verdicts.now();
            let verified = match self.verifications.verifier.verify(thing, &self.verdicts.desired).await? {
                VerifyOutcome::Verified(verified) => *verified,
                VerifyOutcome::NeedsWorker(served) => {
                    self.verifications.ask_worker(thing, served, &mut self.verdicts);
                    continue;
                }
            };
            let took = Duration::from_nanos(self.verdicts.now().saturating_sub(began));
            self.verdicts.report(AgentReport::ThingVerified(took));
            self.conclude(thing, verified, changes)?;
        }
        // The diffs come first, because writing back removes the content that they show.
        self.add_diffs();
        self.write_back_due().await;
        self.finish_verification();
        let has_writers = self.verdicts.detector.needs_rw_hook();
        self.hooks.follow_file_writers(has_writers, self.verdicts.now(), &mut *self.verdicts.reports);
        self.end_turn();
        // Other tasks run between two turns of a long verification.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Reaches a verdict from a verification.
    pub(super) fn conclude(
        &mut self,
        thing: ThingId,
        mut verified: VerifiedThing,
        changes: &mut Changes,
    ) -> Result<(), AgentError> {
        if !verified.differences.is_empty() && !self.accept_apply_state(thing, &mut verified) {
            // Another config is current now, and the next run verifies by it.
            return Ok(());
        }
        self.excuse_temporary_names(thing, &mut verified);
        self.tell_mounts_apart(thing, &mut verified);
        let now = self.verdicts.now();
        self.read_before_verdict(changes)?;
        self.leave_open_what_the_image_may_have(thing, &mut verified);
        self.leave_open_what_left_with_an_extension(thing, &mut verified);
        // The verification may have observed a mount or unmount whose record arrived before it took effect. So the table is read
        // although it is not due, if the verdict tells of a drift or of its end.
        let tells = !verified.differences.is_empty()
            || self.verdicts.last_verdict(thing) == Some(VerdictKind::Drifted);
        if tells && !self.mounts.announced.are_shown() {
            self.compare_mounts(changes)?;
        } else {
            self.follow_mounts(changes)?;
        }
        self.verifications.file_system_answers(thing, &mut self.verdicts);
        self.verdicts.conclude(thing, &verified, now, &mut self.verifications.verifier);
        Ok(self.follow_executions(thing)?)
    }

    /// A mount that replaces another one over a hierarchy may have the same differences, and is a drift of its own.
    fn tell_mounts_apart(&self, thing: ThingId, verified: &mut VerifiedThing) {
        if let Finding::Differs { fingerprint, .. } = &mut verified.verification.finding {
            *fingerprint = fingerprint.wrapping_add(self.mounts.changes_over(thing));
        }
    }

    /// Removes the differences that are temporary names of another process of Holdfast that writes now. The thing is verified again
    /// when that process has ended.
    fn excuse_temporary_names(&mut self, thing: ThingId, verified: &mut VerifiedThing) {
        let writers: Vec<u32> = self.holdfast_writers.processes().map(|(process, _)| process).collect();
        if writers.is_empty()
            || !matches!(self.verdicts.expectation(thing).thing, Thing::ClosedDirectory { .. })
        {
            return;
        }
        let is_temporary = |difference: &Difference| {
            let name = Path::new(&difference.found).file_name();
            name.and_then(temporary::maker).is_some_and(|pid| writers.contains(&pid))
        };
        if verified.differences.iter().any(is_temporary) {
            verified.retain(|difference| !is_temporary(difference));
            self.holdfast_writers.excused.insert(thing);
        }
    }

    /// Without an index of the booted image, an undeclared name in a closed directory, or where nothing may be, may be the image's: it is
    /// unknown. An open drift shows
    /// that it is not, and so does the record of a change. The caller has read the records of all changes that the verification observed.
    fn leave_open_what_the_image_may_have(&self, thing: ThingId, verified: &mut VerifiedThing) {
        let is_uncertain = self.verdicts.expectation(thing).source.is_uncertain();
        let is_certain = || self.verdicts.open_drift(thing).is_some() || self.verdicts.has_changed(thing);
        if !is_uncertain || verified.differences.is_empty() || is_certain() {
            return;
        }
        verified.retain(|difference| difference.kind != DifferenceKind::Unexpected);
        if verified.differences.is_empty() {
            verified.unseen_because.get_or_insert(GapReason::ImageNotIndexed);
        }
    }

    /// An extension that is not merged any more took its paths with it. The drift of the hierarchy has that with its actor. What the paths should
    /// be is unknown until the index is that of what is merged, so they are no drifts of their own.
    fn leave_open_what_left_with_an_extension(&self, thing: ThingId, verified: &mut VerifiedThing) {
        if verified.differences.is_empty() || self.verdicts.open_drift(thing).is_some() {
            return;
        }
        let observer = &self.verifications.verifier.observer;
        let expectations = &self.verdicts.desired.expectations;
        if is_of_unmerged_extension(observer, expectations, self.verdicts.expectation(thing)) {
            verified.retain(|_| false);
            verified.unseen_because.get_or_insert(GapReason::ImageNotIndexed);
        }
    }

    /// Removes the differences of a state that an open apply passes through. `false`: another config is current, and this run reaches
    /// no verdict, because the thing may match that config or not.
    fn accept_apply_state(&mut self, thing: ThingId, verified: &mut VerifiedThing) -> bool {
        let expectation = self.verdicts.expectation(thing);
        let is_of_apply = self.apply_tracker.allows_difference(expectation, &verified.observation);
        if self.apply_tracker.has_new_generation() {
            self.request_new_run();
            return false;
        }
        // A thing that had drifted before the apply began stays drifted until the apply has written it.
        let is_earlier =
            self.verdicts.open_drift(thing).is_some_and(|open| open.differences == verified.differences);
        if is_of_apply && !is_earlier {
            verified.differences.clear();
            verified.verification.finding = Finding::Compliant { untouched: false };
        }
        true
    }

    /// A worker process answered, or failed.
    pub(super) async fn worker_answered(
        &mut self,
        result: WorkerResult,
        changes: &mut Changes,
    ) -> Result<(), AgentError> {
        match result {
            WorkerResult::Answer(thing, answer, was_there) => {
                let observer = &self.verifications.verifier.observer;
                let path = self.verdicts.expectation(thing).thing.path();
                if was_there && observer.is_served(&path) {
                    // The worker's access may have mounted a file system there (autofs).
                    observer.mounts_changed();
                }
                if was_there && !observer.is_served(&path) {
                    // The path lies on a local file system now, so this process observes it.
                    let now = self.verdicts.now();
                    self.verdicts.not_observed(thing, now);
                    return Ok(());
                }
                let verified =
                    self.verifications.verifier.verify_answer(thing, &self.verdicts.desired, *answer).await?;
                self.conclude(thing, verified, changes)
            }
            WorkerResult::Failed(things) => {
                for thing in things {
                    self.verifications.file_system_hangs(thing, &mut self.verdicts);
                }
                Ok(())
            }
        }
    }

    /// Compares the mount table with the last one, and has the things verified that a difference concerns. Not only after a record:
    /// some system calls that change mounts fire no hook.
    pub(super) fn compare_mounts(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        let Some(table) = self.mounts.read(&mut self.verdicts) else { return Ok(()) };
        if table.has_btrfs()
            && let Some(kernel) = &mut self.verifications.verifier.kernel
        {
            kernel.settle_subvolumes()?;
        }
        let points = self.mounts.differences(&table);
        if !points.is_empty() {
            self.verifications.verifier.observer.mounts_changed();
            // The records of these mounts, which name the actors, arrived before the mounts took effect.
            self.read_before_verdict(changes)?;
            self.follow_mounts_of_image(&points);
        }
        let verifier = &mut self.verifications.verifier;
        self.mounts.apply_table(table, &points, &self.options.inputs.root, verifier, &mut self.verdicts);
        Ok(())
    }

    /// A mount in or over a sealed tree hides files of it. The evaluation decides which paths need things of their own.
    fn follow_mounts_of_image(&mut self, points: &[PathBuf]) {
        let paths = self.verdicts.desired.policy.image_paths();
        if concern_image(points, &self.options.inputs.root, &paths) {
            self.evaluation.mounted(self.verdicts.now(), self.options.canary_every);
        }
    }

    /// Compares the mount table if that is due.
    fn follow_mounts(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        if self.mounts.is_due(self.verdicts.now()) { self.compare_mounts(changes) } else { Ok(()) }
    }

    fn add_diffs(&mut self) {
        let Verdicts { clock, desired, records, diffs, .. } = &mut self.verdicts;
        let sources = DiffSources {
            source: &self.options.inputs.source,
            desired,
            observer: &self.verifications.verifier.observer,
        };
        diffs.add(records, &sources, &**clock);
    }
}
