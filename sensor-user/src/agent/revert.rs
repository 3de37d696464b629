//! The `revert` policy: the declared state is written back, and the log says so.
//!
//! In: things that drifted under a revert rule. Out: repaired things, `reverted` records. What failed is tried again, less
//! and less often, while the thing is drifted; a thing that another process keeps changing is written back a few times a minute
//! and stays drifted in between.

use super::write_back::WriteBackError;
use crate::desired::{self, DesiredError, StateSource, Unknown};
use sensor_model::expectation::Expectation;
use sensor_model::expectations::{ExpectationError, expectations};
use sensor_model::merge::Rendered;
use std::collections::{BTreeSet, HashMap};

/// Reverts of one thing within [`WINDOW_NS`] before it is left alone for a while.
const ATTEMPTS: usize = 3;

/// One minute.
const WINDOW_NS: u64 = 60_000_000_000;

/// The pause after an attempt after which the thing is still drifted; it doubles.
const FIRST_PAUSE_NS: u64 = 1_000_000_000;

/// The longest one.
const LONGEST_PAUSE_NS: u64 = 300_000_000_000;

/// When each thing is due.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    due: BTreeSet<(u64, u32)>,
    things: HashMap<u32, Attempts>,
}

#[derive(Debug, Default)]
struct Attempts {
    /// Boot-time nanoseconds of those within the window.
    times: Vec<u64>,
    /// In a row that left the thing drifted.
    failures: u32,
    due: Option<u64>,
}

/// A thing was not written back.
#[derive(Debug, thiserror::Error)]
pub(super) enum RevertError {
    /// The config cannot be read now.
    #[error(transparent)]
    Config(#[from] DesiredError),
    /// It cannot be verified.
    #[error(transparent)]
    Expectation(#[from] ExpectationError),
    /// The config changed since it was read.
    #[error("the MachineConfig no longer says what it said when the daemon started")]
    Changed,
    /// It could not be written.
    #[error(transparent)]
    Write(#[from] WriteBackError),
}

impl Schedule {
    /// A thing drifted, or in another way: it is written back as soon as it may be.
    /// Gives the time of that.
    pub(super) fn ask(&mut self, id: u32, now: u64) -> u64 {
        let attempts = self.things.entry(id).or_default();
        attempts.times.retain(|at| now.saturating_sub(*at) < WINDOW_NS);
        let number = attempts.times.len();
        let at = match number.checked_sub(ATTEMPTS).and_then(|first| attempts.times.get(first)) {
            Some(first) => first.saturating_add(WINDOW_NS),
            None => now,
        };
        self.set(id, Some(at));
        at
    }

    /// It is as declared again.
    pub(super) fn done(&mut self, id: u32) {
        self.set(id, None);
        if let Some(attempts) = self.things.get_mut(&id) {
            attempts.failures = 0;
        }
    }

    /// When the next one is due, boot time.
    pub(super) fn next(&self) -> Option<u64> {
        self.due.first().map(|(at, _)| *at)
    }

    /// What is due. Each is due again after a pause, unless it is done until then.
    pub(super) fn due(&mut self, now: u64) -> Vec<u32> {
        let mut ids = Vec::new();
        while let Some(&(at, id)) = self.due.first()
            && at <= now
        {
            ids.push(id);
            let attempts = self.things.entry(id).or_default();
            let pause = FIRST_PAUSE_NS.saturating_mul(1 << attempts.failures.min(16)).min(LONGEST_PAUSE_NS);
            attempts.failures = attempts.failures.saturating_add(1);
            attempts.times.retain(|at| now.saturating_sub(*at) < WINDOW_NS);
            attempts.times.push(now);
            self.set(id, Some(now.saturating_add(pause)));
        }
        ids
    }

    fn set(&mut self, id: u32, at: Option<u64>) {
        let Some(attempts) = self.things.get_mut(&id) else { return };
        if let Some(before) = std::mem::replace(&mut attempts.due, at) {
            self.due.remove(&(before, id));
        }
        self.due.extend(at.map(|at| (at, id)));
    }
}

/// Reads the config again, with contents. It has to declare the thing as it did.
pub(super) fn still_declared(
    expectation: &Expectation,
    source: &StateSource,
) -> Result<Rendered, RevertError> {
    let config = desired::rendered(source, Unknown::Ignore)?;
    let declared = expectations(&config)?;
    // The SELinux policy says the label, not the config.
    let unlabelled = Expectation { label: None, ..expectation.clone() };
    if declared.contains(&unlabelled) { Ok(config) } else { Err(RevertError::Changed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Times of all attempts at a thing that nothing helps, within an hour.
    fn attempts(mut reverts: Schedule) -> Vec<u64> {
        let mut times = Vec::new();
        while let Some(at) = reverts.next().filter(|at| *at < 3600 * SECOND) {
            assert_eq!(reverts.due(at), [1]);
            times.push(at);
        }
        times
    }

    #[test]
    fn what_failed_is_tried_again_less_and_less_often_and_never_given_up() {
        let mut reverts = Schedule::default();
        reverts.ask(1, 0);
        let times = attempts(reverts);
        assert_eq!(times[..4], [0, SECOND, 3 * SECOND, 7 * SECOND]);
        let pauses: Vec<u64> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(pauses.is_sorted(), "{pauses:?}");
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE_NS));
    }

    #[test]
    fn what_is_done_is_not_tried_again() {
        let mut reverts = Schedule::default();
        reverts.ask(1, 5);
        assert_eq!(reverts.due(5), [1]);
        reverts.done(1);
        assert_eq!(reverts.next(), None);
    }

    #[test]
    fn somebody_who_keeps_changing_a_thing_is_answered_a_few_times_a_minute() {
        let mut reverts = Schedule::default();
        let mut times = Vec::new();
        for now in (0..600).map(|second| second * SECOND) {
            // It was written back, and is changed again at once.
            reverts.done(1);
            reverts.ask(1, now);
            times.extend(reverts.due(now).iter().map(|_| now));
        }
        assert_eq!(times.len(), 30, "{times:?}");
    }
}
