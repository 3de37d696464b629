//! Looks at things: by this process, by another process where a file system may not answer, and at everything.
//!
//! In: things that are due. Out: what each look saw, things that could not be looked at, and the end of a full verification.

use super::reasons::{ENTRY_REMOVED, HANGS};
use super::reports::{AgentEvent, Subject};
use super::verdicts::Verdicts;
use super::verifier::Looker;
use super::workers::Workers;
use crate::kernel::maps::MapsError;
use crate::kernel::volumes;
use crate::observation::Served;
use sensor_model::protocol::Scope;
use std::collections::HashMap;
use std::time::Duration;

/// When a thing that could not be looked at is tried again.
const RETRY_NS: u64 = 10_000_000_000;

/// More things than this have one gap together, and not one each.
const GAPS_AT_ONCE: usize = 16;

/// Map entries that each beat checks: all of most nodes, and those of the largest within minutes.
const ENTRIES_A_BEAT: u32 = 256;

/// How long a full verification goes on for things that cannot be decided.
const UNDECIDED_PATIENCE: Duration = Duration::from_secs(10);

/// A full verification that goes on.
#[derive(Debug, Clone, Copy)]
struct Verification {
    /// Boot time.
    began: u64,
    /// No other one finished in this run of the loop.
    is_first: bool,
}

/// All that looks at things.
pub(super) struct Looks {
    pub(super) looker: Looker,
    /// Processes that look where this one could be stopped by a server.
    pub(super) workers: Workers,
    /// Things that could not be looked at, with the number of the gap of those that have one of their own.
    unanswered: HashMap<u32, Option<u32>>,
    verification: Option<Verification>,
}

impl Looks {
    /// Nothing was looked at.
    pub(super) fn new(looker: Looker, workers: Workers) -> Self {
        Self { looker, workers, unanswered: HashMap::new(), verification: None }
    }

    /// Whether a full verification goes on.
    pub(super) fn is_verifying(&self) -> bool {
        self.verification.is_some()
    }

    /// Everything is to be looked at from now on. `is_first`: in this run of the loop.
    pub(super) fn begin_verification(&mut self, now: u64, is_first: bool) {
        let is_first = is_first || self.verification.is_some_and(|verification| verification.is_first);
        self.verification = Some(Verification { began: now, is_first });
    }

    /// Ends a full verification once everything was looked at and decided. Gives whether it was the first one.
    pub(super) fn finish_verification(&mut self, is_blind: bool, verdicts: &mut Verdicts) -> bool {
        let now = verdicts.now();
        let Some(Verification { began, is_first }) = self.verification else { return false };
        let took = Duration::from_nanos(now.saturating_sub(began));
        let is_waiting = verdicts.detector.next_deadline().is_some_and(|at| at <= now);
        // A look without evidence (units) decides only with a second one. A thing that a process never stops writing to may
        // stay undecided; the node is ready all the same, and the status shows the thing as unknown.
        let is_undecided = !is_blind && verdicts.detector.undecided() > 0;
        if is_waiting || (is_undecided && took < UNDECIDED_PATIENCE) {
            return false;
        }
        self.verification = None;
        let things = verdicts.desired.expectations.len();
        verdicts.reports.report(AgentEvent::AllVerified(things, took));
        verdicts.reports.report(AgentEvent::Ready(Subject::Verification));
        is_first
    }

    /// Has a process look at a thing that this one may not touch.
    pub(super) fn ask_worker(&mut self, id: u32, served: Served, verdicts: &mut Verdicts) {
        let expectation = &verdicts.desired.expectations[id as usize];
        let is_there = self.looker.observer.is_served(&expectation.thing.path());
        if !self.workers.ask(served, id, expectation, is_there) {
            self.not_answered(id, verdicts);
        }
    }

    /// Follows from looks that got no answer in time.
    pub(super) fn follow_workers(&mut self, verdicts: &mut Verdicts) {
        for id in self.workers.overdue() {
            self.not_answered(id, verdicts);
        }
    }

    /// A thing cannot be looked at: it is unknown until it can.
    pub(super) fn not_answered(&mut self, id: u32, verdicts: &mut Verdicts) {
        if !self.unanswered.contains_key(&id) {
            let path = verdicts.name(id).path;
            tracing::warn!(path, "The file system of the path does not answer: the verdict is unknown.");
            let mut own = None;
            if self.unanswered.len() < GAPS_AT_ONCE {
                own = Some(verdicts.open_lasting_gap(Scope::Thing(id), HANGS));
            } else {
                verdicts.set_unseen(id, Some(HANGS));
            }
            self.unanswered.insert(id, own);
        }
        let again = verdicts.now().saturating_add(RETRY_NS);
        verdicts.unanswered(id, again);
    }

    /// A thing was looked at, so its file system answers.
    pub(super) fn answered(&mut self, id: u32, verdicts: &mut Verdicts) {
        if let Some(Some(gap)) = self.unanswered.remove(&id) {
            verdicts.end_lasting_gap(gap);
        }
    }

    /// A process with access to the maps can make the programs forget an inode. A thing whose entry is not as the daemon put
    /// it there is unknown until the next look.
    pub(super) fn check_entries(&mut self, verdicts: &mut Verdicts) -> Result<(), MapsError> {
        for watch in self.looker.check_entries(ENTRIES_A_BEAT)? {
            let (direct, beyond) = self.looker.registry.all_concerned(&[watch]);
            let path = self.looker.registry.get(watch).map(|watch| watch.path.display().to_string());
            tracing::warn!(
                path,
                "The kernel programs had no entry of the path, or another one: enrolled it again."
            );
            let things: Vec<u32> = direct.into_iter().chain(beyond).collect();
            let scopes = match things.len() {
                ..=GAPS_AT_ONCE => things.into_iter().map(Scope::Thing).collect(),
                _ => vec![Scope::All],
            };
            for scope in scopes {
                verdicts.open_gap(scope, ENTRY_REMOVED);
            }
        }
        Ok(())
    }

    /// Btrfs is mounted, perhaps for the first time: the programs need its subvolumes before an inode on it is enrolled.
    pub(super) fn learn_volumes(&mut self) -> Result<(), MapsError> {
        let Some(witness) = self.looker.witness.as_mut() else { return Ok(()) };
        if !witness.maps().has_volumes()?
            && let Some(volumes) = volumes::read()
        {
            witness.maps().set_volumes(volumes)?;
        }
        Ok(())
    }
}
