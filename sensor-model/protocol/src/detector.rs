//! All managed things, what is due and the gaps.
//!
//! In: changes, losses, gaps, finished verifications and the time. Out: what to verify, transitions and verdicts.

use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
use crate::evidence::Evidence;
use crate::evidence::Verification;
use crate::gap_reason::GapReason;
use crate::gaps::{Gap, Gaps, Scope};
use crate::thing::{Decision, ThingState};
use crate::things::{ThingId, Things};
#[cfg(test)]
use crate::timing::Mutation;
use crate::timing::Timing;
use crate::verdict::VerdictKind;

/// A change of a thing: a ring record, an event of fanotify, a dirty bit found in a sweep, or a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThingChange {
    /// The writer is Holdfast itself: the change causes a verification, and never a report of "touched".
    pub own: bool,
    /// The [`Evidence`] of the thing's own inode and directory does not cover the change. Such changes are a rename of an
    /// ancestor, a mount, a write to a block device, and an event from a backend without evidence. The verification must then
    /// also begin a settle time after the change.
    pub outside_evidence: bool,
}

/// A change of a verdict or of a gap. Each is returned exactly once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Transition {
    /// A thing departed from its expectation, or its differences are others than before.
    Drifted {
        /// Which thing.
        thing: ThingId,
        /// Start of the episode.
        since: u64,
        /// The thing was drifted before, with other differences.
        again: bool,
    },
    /// A thing was changed and matches its expectation.
    Touched {
        /// Which thing.
        thing: ThingId,
    },
    /// A drifted thing matches its expectation again.
    Recovered {
        /// Which thing.
        thing: ThingId,
    },
    /// Evidence may have been lost.
    GapOpened(Gap),
    /// Everything in the gap's scope is verified again.
    GapClosed(Gap),
}

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerificationResult {
    /// The changes of verdicts and gaps that it caused.
    pub transitions: Vec<Transition>,
    /// The verification decided the verdict, even if that stays the same. The next observation is compared with this one, for
    /// [`Finding::Compliant`]'s `untouched` and for [`Finding::Differs`]'s `transient`.
    pub decided: bool,
}

/// The verdict of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThingVerdict {
    /// Unknown, compliant or drifted. (Touched is a [`Transition`] of a compliant thing.)
    pub verdict: VerdictKind,
    /// Since when it holds.
    pub since: u64,
    /// The gap that makes it unknown; `None` if it is known, or not verified yet.
    pub reason: Option<GapReason>,
    /// A verification is under way or due.
    pub pending: bool,
}

/// The detection protocol for all managed things.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Detector {
    timing: Timing,
    things: Things,
    /// When to verify what: `(at, thing)` of every thing with a due time.
    timers: BTreeSet<(u64, ThingId)>,
    counts: Counts,
    gaps: Gaps,
    /// Things whose last observation failed.
    unobserved: BTreeSet<ThingId>,
    /// The kernel's loss counter when it was last read.
    pub(crate) lost: u64,
}

/// The number of things for each verdict, updated with every change, so that no turn of the daemon counts all things.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Counts {
    verdicts: BTreeMap<VerdictKind, usize>,
    writers: usize,
}

impl Counts {
    fn enter(&mut self, state: &ThingState) {
        *self.verdicts.entry(state.verdict).or_default() += 1;
        self.writers += usize::from(state.writers);
    }

    fn leave(&mut self, verdict: VerdictKind, writers: bool) {
        if let Some(count) = self.verdicts.get_mut(&verdict) {
            *count = count.saturating_sub(1);
        }
        // A count of zero has no entry, so that equal states compare equal.
        self.verdicts.retain(|_, count| *count > 0);
        self.writers -= usize::from(writers);
    }
}

impl Detector {
    /// A detector without things.
    pub fn new(timing: Timing) -> Self {
        Self {
            timing,
            things: Things::default(),
            timers: BTreeSet::new(),
            counts: Counts::default(),
            gaps: Gaps::default(),
            unobserved: BTreeSet::new(),
            lost: 0,
        }
    }

    /// Allocates room for a number of things.
    pub fn reserve(&mut self, things: usize) {
        self.things.reserve(things);
    }

    /// Manages a thing from now on. It is unknown and due at once. A known one starts over. The caller numbers things from 0 on.
    pub fn add(&mut self, thing: ThingId, now: u64) {
        self.forget(thing);
        let state = ThingState::new(now, &self.timing);
        self.counts.enter(&state);
        self.things.insert(thing, state);
        self.gaps.include(thing);
        self.timers.insert((now, thing));
    }

    /// Stops managing a thing. Returns the gaps that close because they waited only for it.
    pub fn remove(&mut self, thing: ThingId, now: u64) -> Vec<Transition> {
        self.forget(thing);
        self.gaps.removed(thing);
        self.gaps.close(now).map(Transition::GapClosed).collect()
    }

    /// Handles a change of a thing. If the thing is no longer managed, the change is ignored.
    pub fn changed(&mut self, thing: ThingId, now: u64, change: ThingChange) {
        self.with(thing, |state, timing| state.changed(now, change.own, change.outside_evidence, timing));
    }

    /// Handles the kernel's loss counter, read *after* the ring was drained until it was empty. Returns `true` if records were
    /// lost since the last call: the caller then reads every map entry and calls [`Detector::changed`] for each dirty one.
    #[must_use = "after a loss only the dirty bits know what changed"]
    pub fn drained(&mut self, lost: u64) -> bool {
        let more = lost != self.lost;
        self.lost = lost;
        #[cfg(test)]
        let more = more && self.timing.mutation != Some(Mutation::SkipSweep);
        more
    }

    /// Makes things due without a change: for the periodic full verification, or a new expectation.
    pub fn recheck(&mut self, scope: Scope, now: u64) {
        for thing in self.in_scope(scope) {
            self.with(thing, |state, timing| state.recheck(now, timing));
        }
    }

    /// Opens a gap: evidence may have been lost before now. Every thing in its scope is unknown (a drifted thing stays drifted)
    /// until a verification that begins after now decides it. The gap closes with the last of these, or at once if its scope is
    /// empty.
    pub fn open_gap(&mut self, scope: Scope, reason: GapReason, now: u64) -> Vec<Transition> {
        let things = self.doubt(scope, now);
        let gap = self.gaps.open(scope, reason, false, now, things);
        let mut transitions = vec![Transition::GapOpened(gap)];
        transitions.extend(self.gaps.close(now).map(Transition::GapClosed));
        transitions
    }

    /// Opens a lasting gap: no events arrive from now on (`ftrace_enabled=0`, a canary without its event). Verifications still
    /// find drift and recovery, but nothing becomes compliant before [`Detector::end_blindness`] with the gap's number.
    pub fn open_blindness(&mut self, scope: Scope, reason: GapReason, now: u64) -> Gap {
        let things = self.doubt(scope, now);
        self.gaps.open(scope, reason, true, now, things)
    }

    /// Ends a lasting gap: events arrive again. Everything in its scope is verified once more, which can make it compliant.
    pub fn end_blindness(&mut self, number: u32, now: u64) -> Vec<Transition> {
        let Some(scope) = self.gaps.end_blindness(number) else { return Vec::new() };
        self.doubt(scope, now);
        self.gaps.close(now).map(Transition::GapClosed).collect()
    }

    /// Sets, before [`Detector::conclude`], whether events report the changes of a thing. `None`: they do. If they did not
    /// before, the thing is verified once more.
    ///
    /// `Some` with the reason: they do not, because other hosts write to the file system, or the object cannot be watched. Full
    /// verifications then find drift and recovery. But the thing never becomes compliant: it stays unknown, under one lasting gap
    /// for all things of that reason.
    pub fn set_unreported(&mut self, thing: ThingId, reason: Option<GapReason>, now: u64) -> Vec<Transition> {
        if self.things.get(thing).is_none() {
            return Vec::new();
        }
        let left = self.gaps.leave(thing, reason);
        let mut transitions = Vec::new();
        match reason {
            Some(reason) => {
                transitions.extend(self.gaps.enter(thing, reason, now).map(Transition::GapOpened));
            }
            None if left => self.with(thing, |state, timing| state.doubt(now, timing)),
            None => {}
        }
        transitions.extend(self.gaps.close(now).map(Transition::GapClosed));
        transitions
    }

    /// The next things to verify, the longest due first, at most `limit`. The caller reports each result by
    /// [`Detector::conclude`]; before that the thing is not returned again.
    pub fn due(&mut self, now: u64, limit: usize) -> Vec<ThingId> {
        let mut things = Vec::new();
        while things.len() < limit
            && let Some(&(at, thing)) = self.timers.first()
            && at <= now
        {
            self.with(thing, |state, _| state.begin(now));
            things.push(thing);
        }
        things
    }

    /// The transitions of a finished verification.
    #[cfg(test)]
    pub(crate) fn verified(
        &mut self,
        thing: ThingId,
        now: u64,
        verification: &Verification,
    ) -> Vec<Transition> {
        self.conclude(thing, now, verification).transitions
    }

    /// Handles a finished verification. One that [`Detector::due`] did not return decides only by its evidence, never by the
    /// time that has passed.
    pub fn conclude(&mut self, thing: ThingId, now: u64, verification: &Verification) -> VerificationResult {
        let mut transitions = Vec::new();
        let mut decided = false;
        #[cfg(test)]
        let verification = &self.mutate(verification);
        let blind = self.gaps.blinds(thing);
        self.unobserved.remove(&thing);
        self.with(thing, |state, timing| {
            let before = state.verdict;
            let decision = state.end(now, verification, blind, timing);
            decided = decision != Decision::Held;
            match decision {
                Decision::Drifted { news: true } => {
                    let again = before == VerdictKind::Drifted;
                    transitions.push(Transition::Drifted { thing, since: state.since, again });
                }
                Decision::Compliant { recovered: true, .. } => {
                    transitions.push(Transition::Recovered { thing });
                }
                Decision::Compliant { touched: true, .. } => transitions.push(Transition::Touched { thing }),
                Decision::Held | Decision::Compliant { .. } | Decision::Drifted { .. } => {}
            }
        });
        if decided {
            self.gaps.verified(thing);
            transitions.extend(self.gaps.close(now).map(Transition::GapClosed));
        }
        VerificationResult { transitions, decided }
    }

    /// Handles a verification that could not observe a thing under a lasting gap. It decides nothing; a compliant thing becomes
    /// unknown. No other gap waits for the thing any more. The next verification is due at `again`, or earlier by a change.
    pub fn not_observed(&mut self, thing: ThingId, now: u64, again: u64) -> Vec<Transition> {
        self.with(thing, |state, _| state.not_observed(now, again));
        if self.things.get(thing).is_some() {
            self.unobserved.insert(thing);
        }
        if self.gaps.blinds(thing) {
            self.gaps.verified(thing);
        }
        self.gaps.close(now).map(Transition::GapClosed).collect()
    }

    /// The time at which [`Detector::due`] returns something, unless a change arrives earlier.
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Whether the hook on reads and writes is needed: a verification found a managed file open for writing. The verdict is right
    /// without the hook, because verifications continue; with it the verdict is prompt and has an actor.
    pub fn needs_rw_hook(&self) -> bool {
        self.counts.writers > 0
    }

    /// The verdict of a thing; `None` if it is not managed.
    pub fn thing_verdict(&self, thing: ThingId) -> Option<ThingVerdict> {
        let state = self.things.get(thing)?;
        let is_unknown = state.verdict == VerdictKind::Unknown;
        let reason = is_unknown.then(|| self.gaps.reason_for(thing)).flatten();
        let pending = state.running.is_some() || state.at.get().is_some();
        Some(ThingVerdict { verdict: state.verdict, since: state.since, reason, pending })
    }

    /// The worst verdict of all things: drifted, else unknown, else compliant. An open gap makes the node unknown even if nothing
    /// is managed.
    pub fn node_verdict(&self) -> VerdictKind {
        let doubt = self.gaps.iter().next().map(|_| VerdictKind::Unknown);
        self.counts.verdicts.keys().copied().chain(doubt).max().unwrap_or(VerdictKind::Compliant)
    }

    /// The number of things with this verdict.
    pub fn count(&self, verdict: VerdictKind) -> usize {
        self.counts.verdicts.get(&verdict).copied().unwrap_or(0)
    }

    /// The number of unknown things that a further verification can decide. Things whose changes no event reports do not count
    /// once they are verified, nor do things that could not be observed.
    pub fn undecided(&self) -> usize {
        let is_verified = |thing: &ThingId| {
            self.thing_verdict(*thing)
                .is_some_and(|state| state.verdict == VerdictKind::Unknown && !state.pending)
        };
        let unreported =
            self.gaps.unreported().filter(|thing| is_verified(thing) && !self.unobserved.contains(thing));
        let is_unknown = |thing: &&ThingId| {
            self.things.get(**thing).is_some_and(|state| state.verdict == VerdictKind::Unknown)
        };
        let verified = unreported.count() + self.unobserved.iter().filter(is_unknown).count();
        self.count(VerdictKind::Unknown).saturating_sub(verified)
    }

    /// The open gaps, oldest first.
    pub fn gaps(&self) -> impl Iterator<Item = &Gap> {
        self.gaps.iter()
    }

    /// All managed things.
    pub fn managed(&self) -> impl Iterator<Item = ThingId> {
        self.things.iter().map(|(thing, _)| thing)
    }

    fn doubt(&mut self, scope: Scope, now: u64) -> BTreeSet<ThingId> {
        let things = self.in_scope(scope);
        for &thing in &things {
            self.with(thing, |state, timing| state.doubt(now, timing));
        }
        things.into_iter().collect()
    }

    fn in_scope(&self, scope: Scope) -> Vec<ThingId> {
        match scope {
            Scope::All => self.managed().collect(),
            Scope::Thing(thing) => self.things.get(thing).map(|_| thing).into_iter().collect(),
            // The gap itself lists these things.
            Scope::Some => Vec::new(),
        }
    }

    /// Changes one thing, and updates its timer and the counts.
    fn with(&mut self, thing: ThingId, change: impl FnOnce(&mut ThingState, &Timing)) {
        let Some(state) = self.things.get_mut(thing) else { return };
        let before = state.at.get();
        let (verdict, writers) = (state.verdict, state.writers);
        change(state, &self.timing);
        if (state.verdict, state.writers) != (verdict, writers) {
            self.counts.leave(verdict, writers);
            self.counts.enter(state);
        }
        let after = state.at.get();
        if after != before {
            if let Some(at) = before {
                self.timers.remove(&(at, thing));
            }
            if let Some(at) = after {
                self.timers.insert((at, thing));
            }
        }
    }

    fn forget(&mut self, thing: ThingId) {
        let Some(state) = self.things.remove(thing) else { return };
        self.unobserved.remove(&thing);
        self.counts.leave(state.verdict, state.writers);
        if let Some(at) = state.at.get() {
            self.timers.remove(&(at, thing));
        }
    }

    #[cfg(test)]
    fn mutate(&self, verification: &Verification) -> Verification {
        let mut verification = *verification;
        if self.timing.mutation == Some(Mutation::IgnoreSecondRead) {
            verification.evidence =
                Some(Evidence { observed_counter: 0, counter: 0, writers: false, locked: false });
        }
        verification
    }

    /// Moves the origin of time forward; see [`ThingState::rebase`].
    #[cfg(test)]
    pub(crate) fn rebase(&mut self, by: u64) {
        for state in self.things.values_mut() {
            state.rebase(by);
        }
        self.gaps.rebase(by);
        self.timers =
            self.things.iter().filter_map(|(thing, state)| state.at.get().map(|at| (at, thing))).collect();
    }
}
