//! Stretches of time in which events may have been missed.
//!
//! Comes in: the reason, the things it touches, and which of them were looked at since. Goes out: open
//! gaps, and each gap once more when all that it touched was verified. It never decides a verdict.

use std::collections::BTreeSet;

/// What a gap touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Every managed thing.
    All,
    /// One thing.
    Thing(u32),
    /// Things that come and go one by one: those of which the backend cannot vouch for what they are.
    Some,
}

/// One gap.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gap {
    /// Number of the gap, unique in one run of the daemon.
    pub number: u32,
    /// Why evidence may have been lost.
    pub reason: String,
    /// What it touches.
    pub scope: Scope,
    /// When it was opened.
    pub since: u64,
    /// When everything that it touches was verified again; `None` while it is open.
    pub until: Option<u64>,
}

/// The open gaps, each with the things that are still to be verified.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Gaps {
    open: Vec<Open>,
    opened: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Open {
    gap: Gap,
    /// The cause lasts: no look counts before it ends.
    blind: bool,
    /// Things that have not been verified since.
    pending: BTreeSet<u32>,
}

impl Gaps {
    pub(super) fn open(
        &mut self,
        scope: Scope,
        reason: &str,
        blind: bool,
        since: u64,
        pending: BTreeSet<u32>,
    ) -> Gap {
        self.opened = self.opened.wrapping_add(1);
        let gap = Gap { number: self.opened, reason: reason.to_owned(), scope, since, until: None };
        self.open.push(Open { gap: gap.clone(), blind, pending });
        gap
    }

    /// The cause of a lasting gap is over: looks count from now on. Gives what it touches.
    pub(super) fn end_blindness(&mut self, number: u32) -> Option<Scope> {
        let open = self.open.iter_mut().find(|open| open.gap.number == number && open.blind)?;
        open.blind = false;
        Some(open.gap.scope)
    }

    /// Puts a thing under the lasting gap of a reason. Gives the gap when it is the first one there.
    pub(super) fn enter(&mut self, id: u32, reason: &str, now: u64) -> Option<Gap> {
        let same =
            |open: &&mut Open| open.blind && open.gap.scope == Scope::Some && open.gap.reason == reason;
        if let Some(open) = self.open.iter_mut().find(same) {
            open.pending.insert(id);
            return None;
        }
        Some(self.open(Scope::Some, reason, true, now, BTreeSet::from([id])))
    }

    /// Takes a thing out of the lasting gaps of other reasons than this one. Says whether it was under any.
    pub(super) fn leave(&mut self, id: u32, but: Option<&str>) -> bool {
        let others = self.open.iter_mut().filter(|open| {
            open.blind && open.gap.scope == Scope::Some && Some(open.gap.reason.as_str()) != but
        });
        // All of them, not the first.
        others.map(|open| usize::from(open.pending.remove(&id))).sum::<usize>() > 0
    }

    /// Puts a newly managed thing under the lasting gaps that touch everything.
    pub(super) fn include(&mut self, id: u32) {
        for open in self.open.iter_mut().filter(|open| open.blind && open.gap.scope == Scope::All) {
            open.pending.insert(id);
        }
    }

    /// A thing was verified: it is no longer waited for, except where the cause lasts.
    pub(super) fn verified(&mut self, id: u32) {
        for open in self.open.iter_mut().filter(|open| !open.blind) {
            open.pending.remove(&id);
        }
    }

    /// A thing is managed no longer.
    pub(super) fn removed(&mut self, id: u32) {
        for open in &mut self.open {
            open.pending.remove(&id);
        }
    }

    /// Closes the gaps that wait for nothing.
    pub(super) fn close(&mut self, now: u64) -> impl Iterator<Item = Gap> {
        self.open
            .extract_if(.., |open| (!open.blind || open.gap.scope == Scope::Some) && open.pending.is_empty())
            .map(move |open| Gap { until: Some(now), ..open.gap })
    }

    /// Whether a lasting gap touches the thing.
    pub(super) fn blinds(&self, id: u32) -> bool {
        self.open.iter().any(|open| open.blind && open.pending.contains(&id))
    }

    /// Things of which nobody vouches for what they are.
    pub(super) fn unvouched(&self) -> impl Iterator<Item = u32> {
        let lasting = self.open.iter().filter(|open| open.blind && open.gap.scope == Scope::Some);
        lasting.flat_map(|open| open.pending.iter().copied())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Gap> {
        self.open.iter().map(|open| &open.gap)
    }

    pub(super) fn reason_for(&self, id: u32) -> Option<&str> {
        self.open.iter().rev().find(|open| open.pending.contains(&id)).map(|open| open.gap.reason.as_str())
    }

    #[cfg(test)]
    pub(super) fn rebase(&mut self, by: u64) {
        for open in &mut self.open {
            open.gap.since = open.gap.since.saturating_sub(by);
        }
    }
}
