//! Stretches of time in which events may have been missed.
//!
//! In: the reason of a gap, its scope, and the things that are verified since. Out: the open gaps, and each gap once more when
//! everything in its scope is verified. It never decides a verdict.

use crate::{gap_reason::GapReason, things::ThingId};
use std::collections::BTreeSet;

/// The things that a gap is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Every managed thing.
    All,
    /// One thing.
    Thing(ThingId),
    /// Things that enter and leave the gap one by one: those whose changes no event reports.
    Some,
}

/// One gap.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gap {
    /// Number of the gap, unique in one run of the daemon.
    pub number: u32,
    /// Why evidence may have been lost.
    pub reason: GapReason,
    /// Its scope.
    pub scope: Scope,
    /// When it was opened.
    pub since: u64,
    /// When everything in its scope was verified again; `None` while it is open.
    pub until: Option<u64>,
}

/// The open gaps, each with the things that must still be verified.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Gaps {
    open: Vec<PendingGap>,
    opened: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PendingGap {
    gap: Gap,
    /// The cause lasts: no verification closes the gap before the cause ends.
    blind: bool,
    /// Things that are not verified since.
    pending: BTreeSet<ThingId>,
}

impl Gaps {
    pub(crate) fn open(
        &mut self,
        scope: Scope,
        reason: GapReason,
        blind: bool,
        since: u64,
        pending: BTreeSet<ThingId>,
    ) -> Gap {
        self.opened = self.opened.wrapping_add(1);
        let gap = Gap { number: self.opened, reason, scope, since, until: None };
        self.open.push(PendingGap { gap: gap.clone(), blind, pending });
        gap
    }

    /// Ends the cause of a lasting gap: verifications close it from now on. Returns its scope.
    pub(crate) fn end_blindness(&mut self, number: u32) -> Option<Scope> {
        let open = self.open.iter_mut().find(|open| open.gap.number == number && open.blind)?;
        open.blind = false;
        Some(open.gap.scope)
    }

    /// Adds a thing to the lasting gap of a reason. Returns the gap if the thing is the first one in it.
    pub(crate) fn enter(&mut self, thing: ThingId, reason: GapReason, now: u64) -> Option<Gap> {
        let same =
            |open: &&mut PendingGap| open.blind && open.gap.scope == Scope::Some && open.gap.reason == reason;
        if let Some(open) = self.open.iter_mut().find(same) {
            open.pending.insert(thing);
            return None;
        }
        Some(self.open(Scope::Some, reason, true, now, BTreeSet::from([thing])))
    }

    /// Removes a thing from the lasting gaps of other reasons than this one. Returns whether it was in any.
    pub(crate) fn leave(&mut self, thing: ThingId, but: Option<GapReason>) -> bool {
        let others = self
            .open
            .iter_mut()
            .filter(|open| open.blind && open.gap.scope == Scope::Some && Some(open.gap.reason) != but);
        // `any` would stop at the first gap.
        others.map(|open| usize::from(open.pending.remove(&thing))).sum::<usize>() > 0
    }

    /// Adds a newly managed thing to the lasting gaps of all things.
    pub(crate) fn include(&mut self, thing: ThingId) {
        for open in self.open.iter_mut().filter(|open| open.blind && open.gap.scope == Scope::All) {
            open.pending.insert(thing);
        }
    }

    /// Removes a verified thing from the gaps whose cause does not last.
    pub(crate) fn verified(&mut self, thing: ThingId) {
        for open in self.open.iter_mut().filter(|open| !open.blind) {
            open.pending.remove(&thing);
        }
    }

    /// Removes a thing that is no longer managed.
    pub(crate) fn removed(&mut self, thing: ThingId) {
        for open in &mut self.open {
            open.pending.remove(&thing);
        }
    }

    /// Closes the gaps that wait for no thing.
    pub(crate) fn close(&mut self, now: u64) -> impl Iterator<Item = Gap> {
        self.open
            .extract_if(.., |open| (!open.blind || open.gap.scope == Scope::Some) && open.pending.is_empty())
            .map(move |open| Gap { until: Some(now), ..open.gap })
    }

    /// Whether the thing is in a lasting gap.
    pub(crate) fn blinds(&self, thing: ThingId) -> bool {
        self.open.iter().any(|open| open.blind && open.pending.contains(&thing))
    }

    /// Things whose changes no event reports.
    pub(crate) fn unreported(&self) -> impl Iterator<Item = ThingId> {
        let lasting = self.open.iter().filter(|open| open.blind && open.gap.scope == Scope::Some);
        lasting.flat_map(|open| open.pending.iter().copied())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Gap> {
        self.open.iter().map(|open| &open.gap)
    }

    pub(crate) fn reason_for(&self, thing: ThingId) -> Option<GapReason> {
        self.open.iter().rev().find(|open| open.pending.contains(&thing)).map(|open| open.gap.reason)
    }

    #[cfg(test)]
    pub(crate) fn rebase(&mut self, by: u64) {
        for open in &mut self.open {
            open.gap.since = open.gap.since.saturating_sub(by);
        }
    }
}
