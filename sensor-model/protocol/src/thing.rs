//! The state of one managed thing in the detection protocol.
//!
//! In: changes, verifications, times. Out: decisions, and when to verify again. The state has neither the thing's number nor other
//! things; the detector has those. No clock and no I/O.

use crate::{
    evidence::{Evidence, Finding, Verification},
    timing::Timing,
    verdict::VerdictKind,
};

/// An optional time in eight bytes: `u64::MAX` is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(u64);

impl Moment {
    const NEVER: Self = Self(u64::MAX);

    pub(crate) fn get(self) -> Option<u64> {
        (self != Self::NEVER).then_some(self.0)
    }
}

impl From<Option<u64>> for Moment {
    fn from(time: Option<u64>) -> Self {
        time.map_or(Self::NEVER, Self)
    }
}

/// The state of one thing: 80 bytes, since ten thousand things have one each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ThingState {
    /// The reported verdict: unknown, compliant or drifted.
    pub(crate) verdict: VerdictKind,
    /// Since when it holds (start of the episode that led to it).
    pub(crate) since: u64,
    /// When the next verification is due; none if none is.
    pub(crate) at: Moment,
    /// The verification under way.
    pub(crate) running: Option<Running>,
    /// When the last verification ended, and how long it took.
    ended: u64,
    took: u32,
    /// The pause before the next verification while the thing is not settled; zero if it is settled.
    backoff: u32,
    /// Fingerprint of the reported differences.
    fingerprint: u64,
    /// From this time on a pending decision is made whatever the evidence is. Set while an episode is open.
    deadline: Moment,
    /// A verification that began earlier proves nothing about a change outside its evidence.
    settle_end: u64,
    /// A change of this episode has another writer than Holdfast.
    touched: bool,
    /// The evidence about the inode does not cover a change of this episode (an ancestor, a mount).
    outside_evidence: bool,
    /// The last verification found open writers, so the thing can change without a further event.
    pub(crate) writers: bool,
}

/// A verification under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Running {
    started: u64,
    /// It began a settle time or more after the last change.
    after_settle_time: bool,
    /// It began after the deadline of a pending decision.
    overdue: bool,
    /// What happened since its begin.
    meanwhile: Meanwhile,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Meanwhile {
    Nothing,
    /// A change: verify again.
    Change,
    /// A gap: this verification decides nothing.
    Gap,
}

/// The decision of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing yet; verify again.
    Held,
    /// Compliant; it was drifted, or touched, or neither.
    Compliant { recovered: bool, touched: bool },
    /// Drifted; not `news` if the same differences were reported before.
    Drifted { news: bool },
}

impl ThingState {
    /// A thing that is not verified yet; due at once.
    pub(crate) fn new(now: u64, timing: &Timing) -> Self {
        Self {
            verdict: VerdictKind::Unknown,
            since: now,
            at: Moment(now),
            running: None,
            ended: now,
            took: 0,
            backoff: 0,
            fingerprint: 0,
            deadline: Moment(now.saturating_add(timing.settle_ns)),
            settle_end: now.saturating_add(timing.settle_ns),
            touched: false,
            outside_evidence: false,
            writers: false,
        }
    }

    /// Handles a change.
    pub(crate) fn changed(&mut self, now: u64, own: bool, outside_evidence: bool, timing: &Timing) {
        self.touched |= !own;
        self.outside_evidence |= outside_evidence;
        self.settle_end = now.saturating_add(timing.settle_ns);
        self.pend(now, timing);
        if let Some(running) = &mut self.running {
            running.after_settle_time = false;
        }
        // A thing that changes often is not verified for each change, even if each verification finds it settled.
        let pause = if self.backoff == 0 { u64::from(timing.change_spacing_ns) } else { 0 };
        self.verify_again(now, Meanwhile::Change, pause, timing);
    }

    /// Makes the thing due without a change.
    pub(crate) fn recheck(&mut self, now: u64, timing: &Timing) {
        self.verify_again(now, Meanwhile::Change, 0, timing);
    }

    /// Handles lost evidence: a compliant thing becomes unknown, a drifted one stays drifted.
    pub(crate) fn doubt(&mut self, now: u64, timing: &Timing) {
        if self.verdict == VerdictKind::Compliant {
            self.verdict = VerdictKind::Unknown;
            self.since = now;
        }
        self.verify_again(now, Meanwhile::Gap, 0, timing);
    }

    /// Sets the time of the next verification: after the one under way, or now, but at least a `pause` after the last one.
    fn verify_again(&mut self, now: u64, meanwhile: Meanwhile, pause: u64, timing: &Timing) {
        if let Some(running) = &mut self.running {
            running.meanwhile = running.meanwhile.max(meanwhile);
        } else {
            let soonest = now.max(self.ended.saturating_add(self.spacing(timing).max(pause)));
            // `Moment::NEVER` is later than any time.
            self.at = self.at.min(Moment(soonest));
        }
    }

    /// Opens an episode, unless one is open.
    fn pend(&mut self, since: u64, timing: &Timing) {
        if self.deadline == Moment::NEVER {
            self.deadline = Moment(since.saturating_add(timing.settle_ns));
        }
    }

    /// Begins a verification.
    pub(crate) fn begin(&mut self, now: u64) {
        self.at = Moment::NEVER;
        self.running = Some(Running {
            started: now,
            after_settle_time: now >= self.settle_end,
            overdue: self.deadline.get().is_some_and(|deadline| now >= deadline),
            meanwhile: Meanwhile::Nothing,
        });
    }

    /// Ends a verification that observed nothing.
    pub(crate) fn not_observed(&mut self, now: u64, again: u64) {
        if self.verdict == VerdictKind::Compliant {
            self.verdict = VerdictKind::Unknown;
            self.since = now;
        }
        self.running = None;
        self.ended = now;
        self.at = Moment(again);
    }

    /// Ends a verification: decides, and sets the time of the next one. `blind`: no events arrive at present, so the thing cannot
    /// become compliant.
    pub(crate) fn end(
        &mut self,
        now: u64,
        verification: &Verification,
        blind: bool,
        timing: &Timing,
    ) -> Decision {
        // The detector did not ask for this verification, so its begin is unknown.
        let unasked =
            Running { started: now, after_settle_time: false, overdue: false, meanwhile: Meanwhile::Nothing };
        let running = self.running.take().unwrap_or(unasked);
        self.ended = now;
        self.took =
            u32::try_from(now.saturating_sub(running.started)).unwrap_or(u32::MAX).min(timing.backoff_max_ns);

        let covered = running.after_settle_time || !self.outside_evidence;
        let evidence = verification.evidence.as_ref();
        let settled = covered && evidence.map_or(running.after_settle_time, Evidence::is_settled);
        // What was read is consistent, but open writers may change it without a further event.
        let consistent =
            covered && evidence.map_or(running.after_settle_time, Evidence::is_settled_but_for_writers);
        self.writers = !settled && evidence.is_some_and(|evidence| evidence.writers);
        let before = (self.verdict, self.since);
        let decision = self.decide(&running, verification.finding, settled, consistent, timing);
        if blind && self.verdict == VerdictKind::Compliant {
            self.verdict = VerdictKind::Unknown;
            if before.0 == VerdictKind::Unknown {
                // It was unknown before, so it is unknown since the same time.
                self.since = before.1;
            }
        }
        self.at = self.next_verification(now, &running, settled, evidence, decision, timing).into();
        decision
    }

    fn decide(
        &mut self,
        running: &Running,
        finding: Finding,
        settled: bool,
        consistent: bool,
        timing: &Timing,
    ) -> Decision {
        if running.meanwhile == Meanwhile::Gap {
            return Decision::Held;
        }
        let news = match finding {
            Finding::Compliant { .. } => self.verdict != VerdictKind::Compliant,
            Finding::Differs { fingerprint, .. } => {
                self.verdict != VerdictKind::Drifted || self.fingerprint != fingerprint
            }
        };
        if news {
            self.pend(running.started, timing);
        }
        match finding {
            Finding::Compliant { untouched } => {
                // Open writers alone do not keep a compliant thing undecided for ever: verifications continue as long as the
                // file is open.
                let undisturbed = settled && running.meanwhile == Meanwhile::Nothing;
                let acceptable = undisturbed || (running.overdue && consistent);
                if !acceptable {
                    return Decision::Held;
                }
                let recovered = self.verdict == VerdictKind::Drifted;
                let touched = self.touched && !untouched && !recovered;
                self.set_verdict(VerdictKind::Compliant, 0, running, timing);
                Decision::Compliant { recovered, touched }
            }
            Finding::Differs { fingerprint, transient } => {
                let plain = settled && !transient;
                if news && !plain && !running.overdue {
                    return Decision::Held;
                }
                self.set_verdict(VerdictKind::Drifted, fingerprint, running, timing);
                Decision::Drifted { news }
            }
        }
    }

    /// Sets the verdict, which ends the episode.
    fn set_verdict(&mut self, verdict: VerdictKind, fingerprint: u64, running: &Running, timing: &Timing) {
        if self.verdict != verdict {
            self.verdict = verdict;
            self.since = self
                .deadline
                .get()
                .map_or(running.started, |deadline| deadline.saturating_sub(timing.settle_ns));
        }
        self.fingerprint = fingerprint;
        self.deadline = Moment::NEVER;
        self.touched = false;
    }

    /// The time of the next verification, if no change arrives earlier.
    fn next_verification(
        &mut self,
        now: u64,
        running: &Running,
        settled: bool,
        evidence: Option<&Evidence>,
        decision: Decision,
        timing: &Timing,
    ) -> Option<u64> {
        if running.meanwhile != Meanwhile::Nothing {
            return Some(now.saturating_add(self.spacing(timing)));
        }
        if settled {
            self.backoff = 0;
            self.outside_evidence = false;
            // Of a settled observation only a transient difference is held back: until its deadline.
            return match decision {
                Decision::Held => Some(self.deadline.get().unwrap_or(now).max(now)),
                Decision::Compliant { .. } | Decision::Drifted { .. } => None,
            };
        }
        self.backoff = self.backoff.saturating_mul(2).clamp(timing.backoff_first_ns, timing.backoff_max_ns);
        let only_time_is_missing = evidence.is_none_or(Evidence::is_settled);
        let at = if only_time_is_missing {
            self.settle_end.max(now.saturating_add(1))
        } else {
            now.saturating_add(u64::from(self.backoff.max(self.took)))
        };
        Some(self.deadline.get().filter(|deadline| *deadline > now).map_or(at, |deadline| at.min(deadline)))
    }

    /// The least time between two verifications. They may take half of one CPU's time, and a thing that is not settled is not
    /// verified for each change.
    fn spacing(&self, timing: &Timing) -> u64 {
        u64::from(self.backoff.min(timing.change_spacing_ns).max(self.took))
    }

    /// Moves the origin of time forward by `by`, so that the checker's states do not grow with time.
    #[cfg(test)]
    pub(crate) fn rebase(&mut self, by: u64) {
        let times = [&mut self.since, &mut self.ended, &mut self.settle_end];
        let started = self.running.as_mut().map(|running| &mut running.started);
        for time in times.into_iter().chain(started) {
            *time = time.saturating_sub(by);
        }
        for moment in [&mut self.at, &mut self.deadline] {
            *moment = moment.get().map(|time| time.saturating_sub(by)).into();
        }
    }
}
