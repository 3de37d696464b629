//! The detection protocol: from the kernel's hints to a verdict that is never falsely compliant.
//!
//! Comes in: events, losses, gaps, finished looks and the time (monotonic nanoseconds). Goes out: which
//! things to look at and when, [`Report`]s, verdicts. No I/O, no clock, no content. The daemon runs this
//! very code, and `checker` runs it through every interleaving of writers, losses and crashes.
//!
//! # How the daemon drives it
//!
//! 1. [`Detector::add`] for every managed thing (all are due at once, also after a restart: pinned maps
//!    keep what happened meanwhile, and a full verification covers it).
//! 2. Whenever the ring is readable, and at every canary: drain it to empty, calling
//!    [`Detector::event`] for each record; **then** read the kernel's loss counter and call
//!    [`Detector::drained`]. If that says so, sweep: read every entry and call `event` for the dirty
//!    ones. The canary matters: a hook on another CPU counts its loss only after it failed to get room,
//!    so a loss can become visible after the drain that made room.
//! 3. [`Detector::due`], look at each returned thing, [`Detector::verified`] with what was found.
//!    A look is: observation open (which makes the kernel take its part of the [`Evidence`]), read
//!    everything, make sure the path still leads to the same inode (else enrol that and start over),
//!    read the entry. Where the path leads to nothing, the observed inode is the directory's, opened
//!    *before* the name was looked up.
//! 4. Sleep until the ring is readable or [`Detector::next_deadline`].

mod config;
mod evidence;
mod gaps;
mod thing;
mod things;

#[cfg(test)]
mod checker;
#[cfg(test)]
mod tests;

pub use config::Config;
pub use evidence::{Evidence, Finding, Outcome, is_transient};
pub use gaps::{Gap, Scope};

use crate::verdict::VerdictKind;
#[cfg(test)]
use config::Mutation;
use gaps::Gaps;
use std::collections::{BTreeMap, BTreeSet};
use thing::{Decision, ThingState};
use things::Things;

/// What an event says beyond its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event {
    /// The writer is Holdfast itself: the thing is verified, and never reported as touched for it.
    pub own: bool,
    /// The change is one that the [`Evidence`] of the thing's own inode and directory does not cover: a
    /// rename of an ancestor, a mount, a block device, an event from a backend without evidence. A quiet
    /// look then also has to begin a settle time after it.
    pub beyond: bool,
}

/// What is to be told to the outside, each exactly once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Report {
    /// A thing departed from its expectation, or departs from it in another way than before.
    Drifted {
        /// Which thing.
        id: u32,
        /// Start of the episode.
        since: u64,
        /// It was reported as drifted before, with other differences.
        again: bool,
    },
    /// A thing was changed and is as expected.
    Touched {
        /// Which thing.
        id: u32,
    },
    /// A drifted thing is as expected again.
    Recovered {
        /// Which thing.
        id: u32,
    },
    /// Evidence may have been lost.
    GapOpened(Gap),
    /// Everything that a gap touched is verified again.
    GapClosed(Gap),
}

/// What a look led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion {
    /// What is to be told.
    pub reports: Vec<Report>,
    /// The look counted: it decided how the thing stands, be it as before. What it saw is what the next one
    /// is compared with, for [`Finding::Compliant`]'s `untouched` and for [`is_transient`].
    pub decided: bool,
}

/// How a thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Standing<'a> {
    /// Unknown, compliant or drifted. (Touched is an event in a compliant thing's life: see [`Report`].)
    pub verdict: VerdictKind,
    /// Since when.
    pub since: u64,
    /// Why it is unknown.
    pub reason: Option<&'a str>,
    /// A change is in progress: looks go on.
    pub in_flux: bool,
}

/// The detection protocol for all managed things, held by id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Detector {
    config: Config,
    things: Things,
    /// When to look at what: `(at, id)` of every thing with a time set.
    timers: BTreeSet<(u64, u32)>,
    tally: Tally,
    gaps: Gaps,
    /// Things of which the last look could not be made.
    unanswered: BTreeSet<u32>,
    /// The kernel's loss counter when it was last read.
    lost: u64,
}

/// How many things stand how, kept in step, so that no turn of the daemon looks at all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Tally {
    verdicts: BTreeMap<VerdictKind, usize>,
    writers: usize,
}

impl Tally {
    fn enter(&mut self, thing: &ThingState) {
        *self.verdicts.entry(thing.verdict).or_default() += 1;
        self.writers += usize::from(thing.writers);
    }

    fn leave(&mut self, verdict: VerdictKind, writers: bool) {
        if let Some(count) = self.verdicts.get_mut(&verdict) {
            *count = count.saturating_sub(1);
        }
        // No entry for none, so that equal states are equal however they were reached.
        self.verdicts.retain(|_, count| *count > 0);
        self.writers -= usize::from(writers);
    }
}

/// Why a thing is unknown that no gap touches.
const NOT_VERIFIED: &str = "not verified yet";

impl Detector {
    /// Nothing managed yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            things: Things::default(),
            timers: BTreeSet::new(),
            tally: Tally::default(),
            gaps: Gaps::default(),
            unanswered: BTreeSet::new(),
            lost: 0,
        }
    }

    /// So many things will be added.
    pub fn reserve(&mut self, things: usize) {
        self.things.reserve(things);
    }

    /// Manages a thing from now on; it is unknown and due at once. A known id starts over. Ids are numbers from 0 on.
    pub fn add(&mut self, id: u32, now: u64) {
        self.forget(id);
        let thing = ThingState::new(now, &self.config);
        self.tally.enter(&thing);
        self.things.insert(id, thing);
        self.gaps.include(id);
        self.timers.insert((now, id));
    }

    /// Manages a thing no longer; gives back gaps that waited only for it.
    pub fn remove(&mut self, id: u32, now: u64) -> Vec<Report> {
        self.forget(id);
        self.gaps.removed(id);
        self.gaps.close(now).map(Report::GapClosed).collect()
    }

    /// A change was announced, by a ring record or by a dirty bit found in a sweep. Unknown ids (a record
    /// that outlived its thing) are ignored.
    pub fn event(&mut self, id: u32, now: u64, event: Event) {
        self.with(id, |thing, config| thing.event(now, event.own, event.beyond, config));
    }

    /// The ring was drained to empty and *then* the kernel's loss counter read. `true`: records were
    /// lost since the last call; read every map entry and pass each dirty one to [`Detector::event`].
    #[must_use = "after a loss only the dirty bits know what changed"]
    pub fn drained(&mut self, lost: u64) -> bool {
        let more = lost != self.lost;
        self.lost = lost;
        #[cfg(test)]
        let more = more && self.config.mutation != Some(Mutation::SkipSweep);
        more
    }

    /// Look again though no change was announced: the periodic full verification, a new expectation.
    pub fn recheck(&mut self, scope: Scope, now: u64) {
        for id in self.ids(scope) {
            self.with(id, |thing, config| thing.recheck(now, config));
        }
    }

    /// Evidence may have been lost before now. What the gap touches is unknown (a drifted thing stays
    /// drifted) until a look that begins after now decides it; the gap closes with the last of them, which
    /// is at once when it touches nothing.
    pub fn open_gap(&mut self, scope: Scope, reason: &str, now: u64) -> Vec<Report> {
        let ids = self.doubt(scope, now);
        let gap = self.gaps.open(scope, reason, false, now, ids);
        let mut told = vec![Report::GapOpened(gap)];
        told.extend(self.gaps.close(now).map(Report::GapClosed));
        told
    }

    /// Events do not come from now on (`ftrace_enabled=0`, a canary that does not return): a gap whose
    /// cause lasts. Looks still find drift and recovery, but nothing becomes compliant before
    /// [`Detector::end_blindness`] with the gap's number.
    pub fn open_blindness(&mut self, scope: Scope, reason: &str, now: u64) -> Gap {
        let ids = self.doubt(scope, now);
        self.gaps.open(scope, reason, true, now, ids)
    }

    /// Events come again: what the gap touches is looked at once more, and that counts.
    pub fn end_blindness(&mut self, number: u32, now: u64) -> Vec<Report> {
        let Some(scope) = self.gaps.end_blindness(number) else { return Vec::new() };
        self.doubt(scope, now);
        self.gaps.close(now).map(Report::GapClosed).collect()
    }

    /// Before [`Detector::conclude`] of a look: `Some` when the thing is such that nobody tells of its changes (a
    /// file system that others write to, an object that cannot be watched). Drift and recovery are found by
    /// looking at it, with every full verification; compliance is not vouched for: it stays unknown, under one
    /// lasting gap for all things of that reason. `None`: its changes are told; had it been such a thing, it is
    /// looked at once more.
    pub fn vouch(&mut self, id: u32, unvouched: Option<&str>, now: u64) -> Vec<Report> {
        if self.things.get(id).is_none() {
            return Vec::new();
        }
        let left = self.gaps.leave(id, unvouched);
        let mut told = Vec::new();
        match unvouched {
            Some(reason) => told.extend(self.gaps.enter(id, reason, now).map(Report::GapOpened)),
            None if left => self.with(id, |thing, config| thing.doubt(now, config)),
            None => {}
        }
        told.extend(self.gaps.close(now).map(Report::GapClosed));
        told
    }

    /// The next things to look at, the longest due first, `limit` at most. Each has to be answered with
    /// [`Detector::verified`]; it is not given out again before.
    pub fn due(&mut self, now: u64, limit: usize) -> Vec<u32> {
        let mut ids = Vec::new();
        while ids.len() < limit
            && let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.with(id, |thing, _| thing.begin(now));
            ids.push(id);
        }
        ids
    }

    /// A look has ended. It may also be one that was not asked for; that one never decides by the
    /// time that has passed, only by its evidence.
    pub fn verified(&mut self, id: u32, now: u64, outcome: &Outcome) -> Vec<Report> {
        self.conclude(id, now, outcome).reports
    }

    /// The same as [`Detector::verified`], and whether the look decided how the thing stands.
    pub fn conclude(&mut self, id: u32, now: u64, outcome: &Outcome) -> Conclusion {
        let mut told = Vec::new();
        let mut decided = false;
        #[cfg(test)]
        let outcome = &self.mutate(outcome);
        let blind = self.gaps.blinds(id);
        self.unanswered.remove(&id);
        self.with(id, |thing, config| {
            let before = thing.verdict;
            let decision = thing.end(now, outcome, blind, config);
            decided = decision != Decision::Held;
            match decision {
                Decision::Drifted { news: true } => {
                    let again = before == VerdictKind::Drifted;
                    told.push(Report::Drifted { id, since: thing.since, again });
                }
                Decision::Compliant { recovered: true, .. } => told.push(Report::Recovered { id }),
                Decision::Compliant { touched: true, .. } => told.push(Report::Touched { id }),
                Decision::Held | Decision::Compliant { .. } | Decision::Drifted { .. } => {}
            }
        });
        if decided {
            self.gaps.verified(id);
            told.extend(self.gaps.close(now).map(Report::GapClosed));
        }
        Conclusion { reports: told, decided }
    }

    /// A look has ended that could not be made, at a thing under a lasting gap: nothing was seen, so nothing is decided, and
    /// what was compliant is unknown. No other gap waits for it any more. The next look is at `again`, unless an event asks
    /// for one before.
    pub fn unanswered(&mut self, id: u32, now: u64, again: u64) -> Vec<Report> {
        self.with(id, |thing, _| thing.unanswered(now, again));
        if self.things.get(id).is_some() {
            self.unanswered.insert(id);
        }
        if self.gaps.blinds(id) {
            self.gaps.verified(id);
        }
        self.gaps.close(now).map(Report::GapClosed).collect()
    }

    /// When [`Detector::due`] will have something, if no event comes before.
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Whether reads and writes are to be hooked: something managed was seen open for writing. The hook is
    /// not needed for a right verdict (looks go on meanwhile), but for a prompt one and for its actor.
    pub fn wants_rw_hook(&self) -> bool {
        self.tally.writers > 0
    }

    /// How a thing stands; `None` when it is not managed.
    pub fn standing(&self, id: u32) -> Option<Standing<'_>> {
        let thing = self.things.get(id)?;
        let reason =
            (thing.verdict == VerdictKind::Unknown).then(|| self.gaps.reason_for(id).unwrap_or(NOT_VERIFIED));
        let in_flux = thing.look.is_some() || thing.at.get().is_some();
        Some(Standing { verdict: thing.verdict, since: thing.since, reason, in_flux })
    }

    /// The worst verdict of all things: drifted, else unknown, else compliant. An open gap makes a node
    /// unknown even where nothing is managed.
    pub fn node_verdict(&self) -> VerdictKind {
        let doubt = self.gaps.iter().next().map(|_| VerdictKind::Unknown);
        self.tally.verdicts.keys().copied().chain(doubt).max().unwrap_or(VerdictKind::Compliant)
    }

    /// How many things stand as `verdict`.
    pub fn count(&self, verdict: VerdictKind) -> usize {
        self.tally.verdicts.get(&verdict).copied().unwrap_or(0)
    }

    /// How many unknown things are to be decided by a further look: not those of which nobody vouches for what they are,
    /// once they were looked at, and not those that could not be looked at.
    pub fn undecided(&self) -> usize {
        let rests = |id: &u32| {
            self.standing(*id)
                .is_some_and(|standing| standing.verdict == VerdictKind::Unknown && !standing.in_flux)
        };
        let unvouched = self.gaps.unvouched().filter(|id| rests(id) && !self.unanswered.contains(id));
        let is_unknown =
            |id: &&u32| self.things.get(**id).is_some_and(|thing| thing.verdict == VerdictKind::Unknown);
        let resting = unvouched.count() + self.unanswered.iter().filter(is_unknown).count();
        self.count(VerdictKind::Unknown).saturating_sub(resting)
    }

    /// The open gaps, oldest first.
    pub fn gaps(&self) -> impl Iterator<Item = &Gap> {
        self.gaps.iter()
    }

    /// Ids of all managed things.
    pub fn managed(&self) -> impl Iterator<Item = u32> {
        self.things.iter().map(|(id, _)| id)
    }

    fn doubt(&mut self, scope: Scope, now: u64) -> BTreeSet<u32> {
        let ids = self.ids(scope);
        for &id in &ids {
            self.with(id, |thing, config| thing.doubt(now, config));
        }
        ids.into_iter().collect()
    }

    fn ids(&self, scope: Scope) -> Vec<u32> {
        match scope {
            Scope::All => self.managed().collect(),
            Scope::Thing(id) => self.things.get(id).map(|_| id).into_iter().collect(),
            // They are known by their gap only.
            Scope::Some => Vec::new(),
        }
    }

    /// Changes one thing and keeps its timer in step.
    fn with(&mut self, id: u32, change: impl FnOnce(&mut ThingState, &Config)) {
        let Some(thing) = self.things.get_mut(id) else { return };
        let before = thing.at.get();
        let (verdict, writers) = (thing.verdict, thing.writers);
        change(thing, &self.config);
        if (thing.verdict, thing.writers) != (verdict, writers) {
            self.tally.leave(verdict, writers);
            self.tally.enter(thing);
        }
        let after = thing.at.get();
        if after != before {
            if let Some(at) = before {
                self.timers.remove(&(at, id));
            }
            if let Some(at) = after {
                self.timers.insert((at, id));
            }
        }
    }

    fn forget(&mut self, id: u32) {
        let Some(thing) = self.things.remove(id) else { return };
        self.unanswered.remove(&id);
        self.tally.leave(thing.verdict, thing.writers);
        if let Some(at) = thing.at.get() {
            self.timers.remove(&(at, id));
        }
    }

    #[cfg(test)]
    fn mutate(&self, outcome: &Outcome) -> Outcome {
        let mut outcome = *outcome;
        if self.config.mutation == Some(Mutation::IgnoreSecondRead) {
            outcome.evidence =
                Some(Evidence { observed_counter: 0, counter: 0, writers: false, locked: false });
        }
        outcome
    }

    /// Moves the origin of time forward; see [`ThingState::rebase`].
    #[cfg(test)]
    fn rebase(&mut self, by: u64) {
        for thing in self.things.values_mut() {
            thing.rebase(by);
        }
        self.gaps.rebase(by);
        self.timers =
            self.things.iter().filter_map(|(id, thing)| thing.at.get().map(|at| (at, id))).collect();
    }
}
