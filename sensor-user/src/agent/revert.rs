//! The `revert` policy: when the daemon writes a thing's declared state back.
//!
//! In: things that drifted under a revert rule. Out: the things that are due. It owns the times of past and next attempts. A failed
//! attempt is repeated after growing pauses, while the thing is drifted. If another process keeps changing a thing, the daemon
//! writes it back three times a minute, and the thing stays drifted in between.

use super::write_back::WriteBackError;
use crate::desired::{self, DesiredError, StateSource, Unknown};
use sensor_model::absent::declares;
use sensor_model::expectation::{Expectation, ExpectationSource, Expected};
use sensor_model::expectations::{ExpectationError, expectations};
use sensor_model::merge::Rendered;
use sensor_model::protocol::ThingId;
use std::collections::{BTreeSet, HashMap};

/// Attempts for one thing within [`WINDOW_NS`].
const ATTEMPTS: usize = 3;

/// One minute.
const WINDOW_NS: u64 = 60_000_000_000;

/// The first pause after an attempt that left the thing drifted. Each further pause is twice as long.
const FIRST_PAUSE_NS: u64 = 1_000_000_000;

/// The longest pause.
const LONGEST_PAUSE_NS: u64 = 300_000_000_000;

/// The time of the next attempt for each thing.
#[derive(Debug, Default)]
pub(super) struct RevertSchedule {
    due: BTreeSet<(u64, ThingId)>,
    things: HashMap<ThingId, Attempts>,
}

#[derive(Debug, Default)]
struct Attempts {
    /// Boot-time nanoseconds of the attempts within the window.
    times: Vec<u64>,
    /// Attempts in a row that left the thing drifted.
    failures: u32,
    due: Option<u64>,
}

impl Attempts {
    /// The earliest time of an attempt that keeps to the limit.
    fn earliest(&mut self, now: u64) -> u64 {
        self.times.retain(|at| now.saturating_sub(*at) < WINDOW_NS);
        let first = self.times.len().checked_sub(ATTEMPTS).and_then(|first| self.times.get(first));
        first.map_or(now, |first| first.saturating_add(WINDOW_NS))
    }
}

/// A thing was not written back.
#[derive(Debug, thiserror::Error)]
pub(super) enum RevertError {
    /// The config cannot be read.
    #[error(transparent)]
    Config(#[from] DesiredError),
    /// A thing of the config cannot be verified.
    #[error(transparent)]
    Expectation(#[from] ExpectationError),
    /// The config changed after the daemon read it.
    #[error("the MachineConfig no longer says what it said when the daemon started")]
    Changed,
    /// The state could not be written.
    #[error(transparent)]
    Write(#[from] WriteBackError),
}

impl RevertSchedule {
    /// Schedules a thing that drifted, or has other differences now. Gives the time of the attempt.
    pub(super) fn schedule(&mut self, thing: ThingId, now: u64) -> u64 {
        let attempts = self.things.entry(thing).or_default();
        let at = attempts.earliest(now);
        self.set(thing, Some(at));
        at
    }

    /// The thing was written back just now. If it is drifted still, or again, the next attempt keeps to the limit for each minute, also if
    /// the pause after this attempt ends before. Gives the time of that attempt if it has to wait for the limit.
    pub(super) fn wrote(&mut self, thing: ThingId, now: u64) -> Option<u64> {
        let attempts = self.things.get_mut(&thing)?;
        let earliest = attempts.earliest(now);
        if earliest <= now {
            return None;
        }
        let at = attempts.due?.max(earliest);
        self.set(thing, Some(at));
        Some(at)
    }

    /// Removes a thing that matches its declaration again.
    pub(super) fn done(&mut self, thing: ThingId) {
        self.set(thing, None);
        if let Some(attempts) = self.things.get_mut(&thing) {
            attempts.failures = 0;
        }
    }

    /// Boot time of the next attempt.
    pub(super) fn next(&self) -> Option<u64> {
        self.due.first().map(|(at, _)| *at)
    }

    /// At most this number of the things that are due. Each is due again after a pause, unless [`RevertSchedule::done`] removes it
    /// before.
    pub(super) fn due(&mut self, now: u64, most: usize) -> Vec<ThingId> {
        let mut things = Vec::new();
        while let Some(&(at, thing)) = self.due.first()
            && at <= now
            && things.len() < most
        {
            things.push(thing);
            let attempts = self.things.entry(thing).or_default();
            let pause = FIRST_PAUSE_NS.saturating_mul(1 << attempts.failures.min(16)).min(LONGEST_PAUSE_NS);
            attempts.failures = attempts.failures.saturating_add(1);
            attempts.times.retain(|at| now.saturating_sub(*at) < WINDOW_NS);
            attempts.times.push(now);
            self.set(thing, Some(now.saturating_add(pause)));
        }
        things
    }

    fn set(&mut self, thing: ThingId, at: Option<u64>) {
        let Some(attempts) = self.things.get_mut(&thing) else { return };
        if let Some(before) = std::mem::replace(&mut attempts.due, at) {
            self.due.remove(&(before, thing));
        }
        self.due.extend(at.map(|at| (at, thing)));
    }
}

/// Reads the config again, with contents. It must still declare the thing as before.
pub(super) fn still_declared(
    expectation: &Expectation,
    source: &StateSource,
) -> Result<Rendered, RevertError> {
    let config = desired::rendered(source, Unknown::Ignore)?;
    if matches!(expectation.source, ExpectationSource::ClosedBy(_)) {
        // A rule of the policy is about what nothing declares. A config that came since may declare the object at the path.
        let path = expectation.thing.path();
        let is_declared =
            expectation.expected == Expected::Absent && declares(&expectations(&config)?, &path);
        return if is_declared { Err(RevertError::Changed) } else { Ok(config) };
    }
    let declared = expectations(&config)?;
    // The label comes from the SELinux policy, not from the config.
    let unlabelled = Expectation { label: None, ..expectation.clone() };
    if declared.contains(&unlabelled) { Ok(config) } else { Err(RevertError::Changed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Times of all attempts within an hour for a thing that stays drifted.
    fn attempts(mut reverts: RevertSchedule) -> Vec<u64> {
        let mut times = Vec::new();
        while let Some(at) = reverts.next().filter(|at| *at < 3600 * SECOND) {
            assert_eq!(reverts.due(at, usize::MAX), [ThingId(1)]);
            times.push(at);
        }
        times
    }

    #[test]
    fn a_failed_attempt_is_repeated_after_growing_pauses_for_ever() {
        let mut reverts = RevertSchedule::default();
        reverts.schedule(ThingId(1), 0);
        let times = attempts(reverts);
        assert_eq!(times[..4], [0, SECOND, 3 * SECOND, 7 * SECOND]);
        let pauses: Vec<u64> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(pauses.is_sorted(), "{pauses:?}");
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE_NS));
    }

    #[test]
    fn a_thing_that_is_drifted_after_each_write_is_written_back_three_times_a_minute() {
        let mut reverts = RevertSchedule::default();
        reverts.schedule(ThingId(1), 0);
        let mut times = Vec::new();
        while let Some(at) = reverts.next().filter(|at| *at < 600 * SECOND) {
            // The verification after it finds the same differences: nothing schedules the thing anew.
            assert_eq!(reverts.due(at, usize::MAX), [ThingId(1)]);
            reverts.wrote(ThingId(1), at);
            times.push(at);
        }
        assert_eq!(times[..4], [0, SECOND, 3 * SECOND, 60 * SECOND]);
        for four in times.windows(4) {
            assert!(four[3] - four[0] >= WINDOW_NS, "{four:?}");
        }
    }

    #[test]
    fn things_beyond_the_number_that_is_asked_for_stay_due() {
        let mut reverts = RevertSchedule::default();
        for thing in 1..4 {
            reverts.schedule(ThingId(thing), 0);
        }
        assert_eq!(reverts.due(0, 2), [ThingId(1), ThingId(2)]);
        assert_eq!(reverts.due(0, 2), [ThingId(3)]);
    }

    #[test]
    fn a_thing_that_matches_again_is_not_due() {
        let mut reverts = RevertSchedule::default();
        reverts.schedule(ThingId(1), 5);
        assert_eq!(reverts.due(5, usize::MAX), [ThingId(1)]);
        reverts.done(ThingId(1));
        assert_eq!(reverts.next(), None);
    }

    #[test]
    fn a_thing_that_is_changed_all_the_time_is_written_back_a_few_times_a_minute() {
        let mut reverts = RevertSchedule::default();
        let mut times = Vec::new();
        for now in (0..600).map(|second| second * SECOND) {
            // Another process changes the thing right after the daemon wrote it back.
            reverts.done(ThingId(1));
            reverts.schedule(ThingId(1), now);
            times.extend(reverts.due(now, usize::MAX).iter().map(|_| now));
        }
        assert_eq!(times.len(), 30, "{times:?}");
    }
}
