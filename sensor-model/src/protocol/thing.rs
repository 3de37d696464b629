//! The state of one managed thing in the detection protocol.
//!
//! Comes in: events, looks, time. Goes out: what to report and when to look again. It knows neither its
//! id nor its neighbours; [`super::Detector`] holds those. No clock and no I/O: times are given.

use super::{
    config::Config,
    evidence::{Evidence, Finding, Outcome},
};
use crate::verdict::VerdictKind;

/// A time that may be none, in as much room as one that is not: the end of time is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Moment(u64);

impl Moment {
    const NEVER: Self = Self(u64::MAX);

    pub(super) fn get(self) -> Option<u64> {
        (self != Self::NEVER).then_some(self.0)
    }
}

impl From<Option<u64>> for Moment {
    fn from(time: Option<u64>) -> Self {
        time.map_or(Self::NEVER, Self)
    }
}

/// What the protocol knows of one thing, which ten thousand things have each: 80 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ThingState {
    /// The verdict that was reported: unknown, compliant or drifted.
    pub(super) verdict: VerdictKind,
    /// Since when it holds (start of the episode that led to it).
    pub(super) since: u64,
    /// When to look next; none while nothing is due.
    pub(super) at: Moment,
    /// The look under way.
    pub(super) look: Option<Look>,
    /// When the last look ended, and how long it took.
    looked: u64,
    took: u32,
    /// The pause before the next look while the thing is in flux; zero when it is not.
    backoff: u32,
    /// Fingerprint of the reported differences.
    fingerprint: u64,
    /// From when on a pending decision is taken whatever the evidence; set while an episode is open.
    deadline: Moment,
    /// A look begun before this time proves nothing by itself about `beyond` changes, or without evidence.
    settled_after: u64,
    /// A change by somebody else was seen in this episode.
    touched: bool,
    /// A change was seen that evidence about the inode does not cover (an ancestor, a mount).
    beyond: bool,
    /// The last look found open writers, so that the thing can change without a further event.
    pub(super) writers: bool,
}

/// A look under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Look {
    started: u64,
    /// It began a settle time or more after the last event.
    settled: bool,
    /// It began after the deadline of a pending decision.
    overdue: bool,
    /// What happened since it began.
    meanwhile: Meanwhile,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Meanwhile {
    Nothing,
    /// An event: look again.
    Event,
    /// A gap: the look counts for nothing.
    Gap,
}

/// What a look led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// Nothing yet; look again.
    Held,
    /// Compliant, after having been drifted, or touched, or neither.
    Compliant { recovered: bool, touched: bool },
    /// Drifted; `news` unless the same differences were reported before.
    Drifted { news: bool },
}

impl ThingState {
    /// A thing nobody has looked at; due at once.
    pub(super) fn new(now: u64, config: &Config) -> Self {
        Self {
            verdict: VerdictKind::Unknown,
            since: now,
            at: Moment(now),
            look: None,
            looked: now,
            took: 0,
            backoff: 0,
            fingerprint: 0,
            deadline: Moment(now.saturating_add(config.settle_ns)),
            settled_after: now.saturating_add(config.settle_ns),
            touched: false,
            beyond: false,
            writers: false,
        }
    }

    /// A change was announced.
    pub(super) fn event(&mut self, now: u64, own: bool, beyond: bool, config: &Config) {
        self.touched |= !own;
        self.beyond |= beyond;
        self.settled_after = now.saturating_add(config.settle_ns);
        self.pend(now, config);
        if let Some(look) = &mut self.look {
            look.settled = false;
        }
        // What changes again and again is not looked at again and again either when each look finds it at rest.
        let pause = if self.backoff == 0 { u64::from(config.event_spacing_ns) } else { 0 };
        self.look_again(now, Meanwhile::Event, pause, config);
    }

    /// The verdict is to be checked again though no change was announced.
    pub(super) fn recheck(&mut self, now: u64, config: &Config) {
        self.look_again(now, Meanwhile::Event, 0, config);
    }

    /// Evidence was lost: what was known is not known any more, except that a drifted thing stays so.
    pub(super) fn doubt(&mut self, now: u64, config: &Config) {
        if self.verdict == VerdictKind::Compliant {
            self.verdict = VerdictKind::Unknown;
            self.since = now;
        }
        self.look_again(now, Meanwhile::Gap, 0, config);
    }

    /// Sets the time of the next look: after the one under way, or now, or as soon as the thing may be
    /// looked at again, which is a `pause` after the last look or later.
    fn look_again(&mut self, now: u64, meanwhile: Meanwhile, pause: u64, config: &Config) {
        if let Some(look) = &mut self.look {
            look.meanwhile = look.meanwhile.max(meanwhile);
        } else {
            let soonest = now.max(self.looked.saturating_add(self.spacing(config).max(pause)));
            // Never is later than any time.
            self.at = self.at.min(Moment(soonest));
        }
    }

    /// An episode is open since then, unless one was.
    fn pend(&mut self, since: u64, config: &Config) {
        if self.deadline == Moment::NEVER {
            self.deadline = Moment(since.saturating_add(config.settle_ns));
        }
    }

    /// A look begins.
    pub(super) fn begin(&mut self, now: u64) {
        self.at = Moment::NEVER;
        self.look = Some(Look {
            started: now,
            settled: now >= self.settled_after,
            overdue: self.deadline.get().is_some_and(|deadline| now >= deadline),
            meanwhile: Meanwhile::Nothing,
        });
    }

    /// A look has ended that saw nothing.
    pub(super) fn unanswered(&mut self, now: u64, again: u64) {
        if self.verdict == VerdictKind::Compliant {
            self.verdict = VerdictKind::Unknown;
            self.since = now;
        }
        self.look = None;
        self.looked = now;
        self.at = Moment(again);
    }

    /// A look has ended: decides, and sets when to look next. `blind`: events do not come at present, so
    /// that compliance can be seen but not vouched for.
    pub(super) fn end(&mut self, now: u64, outcome: &Outcome, blind: bool, config: &Config) -> Decision {
        // A look that was not asked for: nothing is known of when it began.
        let unasked = Look { started: now, settled: false, overdue: false, meanwhile: Meanwhile::Nothing };
        let look = self.look.take().unwrap_or(unasked);
        self.looked = now;
        self.took =
            u32::try_from(now.saturating_sub(look.started)).unwrap_or(u32::MAX).min(config.backoff_max_ns);

        let covered = look.settled || !self.beyond;
        let evidence = outcome.evidence.as_ref();
        let quiet = covered && evidence.map_or(look.settled, Evidence::is_quiet);
        // What was read is whole, but open writers may change it without a further event.
        let whole = covered && evidence.map_or(look.settled, Evidence::only_writers);
        self.writers = !quiet && evidence.is_some_and(|evidence| evidence.writers);
        let before = (self.verdict, self.since);
        let decision = self.decide(&look, outcome.finding, quiet, whole, config);
        if blind && self.verdict == VerdictKind::Compliant {
            self.verdict = VerdictKind::Unknown;
            if before.0 == VerdictKind::Unknown {
                // Seen to be compliant once more and still not vouched for: it stands as it stood.
                self.since = before.1;
            }
        }
        self.at = self.next_look(now, &look, quiet, evidence, decision, config).into();
        decision
    }

    fn decide(
        &mut self,
        look: &Look,
        finding: Finding,
        quiet: bool,
        whole: bool,
        config: &Config,
    ) -> Decision {
        if look.meanwhile == Meanwhile::Gap {
            return Decision::Held;
        }
        let news = match finding {
            Finding::Compliant { .. } => self.verdict != VerdictKind::Compliant,
            Finding::Differs { fingerprint, .. } => {
                self.verdict != VerdictKind::Drifted || self.fingerprint != fingerprint
            }
        };
        if news {
            self.pend(look.started, config);
        }
        match finding {
            Finding::Compliant { untouched } => {
                // Open writers alone do not keep a compliant thing undecided for ever: it goes on being
                // looked at as long as they stay.
                let undisturbed = quiet && look.meanwhile == Meanwhile::Nothing;
                let acceptable = undisturbed || (look.overdue && whole);
                if !acceptable {
                    return Decision::Held;
                }
                let recovered = self.verdict == VerdictKind::Drifted;
                let touched = self.touched && !untouched && !recovered;
                self.stand(VerdictKind::Compliant, 0, look, config);
                Decision::Compliant { recovered, touched }
            }
            Finding::Differs { fingerprint, transient } => {
                let plain = quiet && !transient;
                if news && !plain && !look.overdue {
                    return Decision::Held;
                }
                self.stand(VerdictKind::Drifted, fingerprint, look, config);
                Decision::Drifted { news }
            }
        }
    }

    /// Takes a verdict, which ends the episode.
    fn stand(&mut self, verdict: VerdictKind, fingerprint: u64, look: &Look, config: &Config) {
        if self.verdict != verdict {
            self.verdict = verdict;
            self.since = self
                .deadline
                .get()
                .map_or(look.started, |deadline| deadline.saturating_sub(config.settle_ns));
        }
        self.fingerprint = fingerprint;
        self.deadline = Moment::NEVER;
        self.touched = false;
    }

    /// When to look next, if nothing is announced before.
    fn next_look(
        &mut self,
        now: u64,
        look: &Look,
        quiet: bool,
        evidence: Option<&Evidence>,
        decision: Decision,
        config: &Config,
    ) -> Option<u64> {
        if look.meanwhile != Meanwhile::Nothing {
            return Some(now.saturating_add(self.spacing(config)));
        }
        if quiet {
            self.backoff = 0;
            self.beyond = false;
            // Only a transient difference is held though the look was quiet: until its deadline.
            return match decision {
                Decision::Held => Some(self.deadline.get().unwrap_or(now).max(now)),
                Decision::Compliant { .. } | Decision::Drifted { .. } => None,
            };
        }
        self.backoff = self.backoff.saturating_mul(2).clamp(config.backoff_first_ns, config.backoff_max_ns);
        let only_time_is_missing = evidence.is_none_or(Evidence::is_quiet);
        let at = if only_time_is_missing {
            self.settled_after.max(now.saturating_add(1))
        } else {
            now.saturating_add(u64::from(self.backoff.max(self.took)))
        };
        Some(self.deadline.get().filter(|deadline| *deadline > now).map_or(at, |deadline| at.min(deadline)))
    }

    /// The least time between two looks. A look may take half of one CPU's time, no more; a thing in flux
    /// is not looked at for each of its events.
    fn spacing(&self, config: &Config) -> u64 {
        u64::from(self.backoff.min(config.event_spacing_ns).max(self.took))
    }

    /// Moves the origin of time forward by `by`; the checker's states must not grow with time.
    #[cfg(test)]
    pub(super) fn rebase(&mut self, by: u64) {
        let times = [&mut self.since, &mut self.looked, &mut self.settled_after];
        let started = self.look.as_mut().map(|look| &mut look.started);
        for time in times.into_iter().chain(started) {
            *time = time.saturating_sub(by);
        }
        for moment in [&mut self.at, &mut self.deadline] {
            *moment = moment.get().map(|time| time.saturating_sub(by)).into();
        }
    }
}
