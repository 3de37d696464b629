//! The verifications in progress: by this process, by worker processes, and the full verification.
//!
//! In: things that are due. Out: gaps for things that cannot be observed, and the end of a full verification. It owns the
//! verifier, the worker processes, and the list of things without an answer.

use super::reports::{AgentReport, ReadinessSubject};
use super::verdicts::Verdicts;
use super::verifier::Verifier;
use super::workers::Workers;
use crate::kernel::maps::MapsError;
use crate::observation::Served;
use sensor_model::protocol::{GapReason, Scope, ThingId};
use std::collections::HashMap;
use std::time::Duration;

/// Pause before the daemon observes a thing again whose file system did not answer.
const RETRY_NS: u64 = 10_000_000_000;

/// The number of things with a gap of their own. More things share one gap.
const GAPS_AT_ONCE: usize = 16;

/// Map entries that each canary write checks: all entries of most nodes, and those of the largest within minutes.
const ENTRIES_A_CHECK: u32 = 256;

/// How long a full verification waits for things that it cannot decide.
const UNDECIDED_PATIENCE: Duration = Duration::from_secs(10);

/// A full verification in progress.
#[derive(Debug, Clone, Copy)]
struct FullVerification {
    /// Boot time.
    began: u64,
    /// No other full verification finished in this run of the loop.
    is_first: bool,
}

/// The verifier, its worker processes, and the verifications in progress.
pub(super) struct Verifications {
    pub(super) verifier: Verifier,
    /// Processes that observe things on file systems whose server may not answer.
    pub(super) workers: Workers,
    /// Things whose file system did not answer. Each may have a gap of its own, by number.
    unanswered: HashMap<ThingId, Option<u32>>,
    verification: Option<FullVerification>,
}

impl Verifications {
    /// Nothing is in progress.
    pub(super) fn new(verifier: Verifier, workers: Workers) -> Self {
        Self { verifier, workers, unanswered: HashMap::new(), verification: None }
    }

    /// Whether a full verification is in progress.
    pub(super) fn is_verifying(&self) -> bool {
        self.verification.is_some()
    }

    /// Begins a full verification. `is_first`: the first one in this run of the loop.
    pub(super) fn begin_verification(&mut self, now: u64, is_first: bool) {
        let is_first = is_first || self.verification.is_some_and(|verification| verification.is_first);
        self.verification = Some(FullVerification { began: now, is_first });
    }

    /// Ends a full verification once every thing is verified and decided. Gives whether it was the first one.
    pub(super) fn finish_verification(&mut self, is_blind: bool, verdicts: &mut Verdicts) -> bool {
        let now = verdicts.now();
        let Some(FullVerification { began, is_first }) = self.verification else { return false };
        let took = Duration::from_nanos(now.saturating_sub(began));
        let is_waiting = verdicts.is_any_due();
        // Without evidence (units) only a second verification decides. A thing that a process writes all the time may stay
        // undecided. The node is ready all the same, and the status shows the thing as unknown.
        let is_undecided = !is_blind && verdicts.is_any_undecided();
        if is_waiting || (is_undecided && took < UNDECIDED_PATIENCE) {
            return false;
        }
        self.verification = None;
        let things = verdicts.things();
        verdicts.report(AgentReport::AllVerified(things, took));
        verdicts.report(AgentReport::Ready(ReadinessSubject::Verification));
        is_first
    }

    /// Has a worker process observe a thing that this process must not open.
    pub(super) fn ask_worker(&mut self, thing: ThingId, served: Served, verdicts: &mut Verdicts) {
        let expectation = verdicts.expectation(thing);
        let is_there = self.verifier.observer.is_served(&expectation.thing.path());
        if !self.workers.ask(served, thing, expectation, is_there) {
            self.file_system_hangs(thing, verdicts);
        }
    }

    /// Handles the workers' questions that got no answer in time.
    pub(super) fn check_overdue_workers(&mut self, verdicts: &mut Verdicts) {
        for thing in self.workers.overdue() {
            self.file_system_hangs(thing, verdicts);
        }
    }

    /// Opens a gap for a thing whose file system does not answer: the thing is unknown until it does.
    pub(super) fn file_system_hangs(&mut self, thing: ThingId, verdicts: &mut Verdicts) {
        if !self.unanswered.contains_key(&thing) {
            let path = verdicts.name(thing).path;
            tracing::warn!(path, "The file system of the path does not answer: the verdict is unknown.");
            let mut own = None;
            if self.unanswered.len() < GAPS_AT_ONCE {
                own = Some(verdicts.open_lasting_gap(Scope::Thing(thing), GapReason::FileSystemHangs));
            } else {
                verdicts.set_unseen(thing, Some(GapReason::FileSystemHangs));
            }
            self.unanswered.insert(thing, own);
        }
        let again = verdicts.now().saturating_add(RETRY_NS);
        verdicts.not_observed(thing, again);
    }

    /// Closes the gap of a thing whose file system answered.
    pub(super) fn file_system_answers(&mut self, thing: ThingId, verdicts: &mut Verdicts) {
        if let Some(Some(gap)) = self.unanswered.remove(&thing) {
            verdicts.end_lasting_gap(gap);
        }
    }

    /// Checks map entries, because a process with access to the maps can remove them. A thing whose entry was missing or changed is
    /// unknown until the next verification.
    pub(super) fn check_entries(&mut self, verdicts: &mut Verdicts) -> Result<(), MapsError> {
        for watch in self.verifier.check_entries(ENTRIES_A_CHECK)? {
            let (in_evidence, outside_evidence) = self.verifier.registry.all_concerned(&[watch]);
            let path = self.verifier.registry.get(watch).map(|watch| watch.path.display().to_string());
            tracing::warn!(path, "The map entry of the path was missing or changed: the daemon restored it.");
            let things: Vec<ThingId> = in_evidence.into_iter().chain(outside_evidence).collect();
            let scopes = match things.len() {
                ..=GAPS_AT_ONCE => things.into_iter().map(Scope::Thing).collect(),
                _ => vec![Scope::All],
            };
            for scope in scopes {
                verdicts.open_gap(scope, GapReason::EntryRemoved);
            }
        }
        Ok(())
    }
}
