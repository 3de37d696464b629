//! The `revert` policy: the declared state is written back, and the log says so.
//!
//! In: things that drifted under a revert rule. Out: repaired things, `reverted` records. What failed is tried again, less
//! and less often, while the thing is drifted; one that somebody else keeps changing is written back a few times a minute
//! and stays drifted in between.

use super::Agent;
use crate::desired::{self, Unknown};
use crate::repair::{Restored, Restorer};
use sensor_model::drift_policy::Action;
use sensor_model::expectation::Expectation;
use sensor_model::expectations::expectations;
use sensor_model::protocol::Scope;
use sensor_model::record::RecordKind;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Reverts of one thing within [`WINDOW_NS`] before it is left alone for a while.
const ATTEMPTS: usize = 3;

/// One minute.
const WINDOW_NS: u64 = 60_000_000_000;

/// The pause after an attempt after which the thing is still drifted; it doubles.
const FIRST_PAUSE_NS: u64 = 1_000_000_000;

/// The longest one.
const LONGEST_PAUSE_NS: u64 = 300_000_000_000;

/// What is to be written back, and when.
#[derive(Debug, Default)]
pub(super) struct Reverts {
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

impl Reverts {
    /// A thing drifted, or in another way: it is written back as soon as it may be.
    /// Gives the time of that.
    fn ask(&mut self, id: u32, now: u64) -> u64 {
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
    fn due(&mut self, now: u64) -> Vec<u32> {
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

impl Agent {
    /// A thing is to be written back.
    pub(super) fn ask_revert(&mut self, id: u32) {
        let now = self.clock.boot_ns();
        let at = self.reverts.ask(id, now);
        if at > now {
            let (path, seconds) = (self.name(id).path, (at - now).div_ceil(1_000_000_000));
            tracing::error!(path, seconds, "Reverted too often; it stays as it is for a while.");
        }
    }

    /// Writes back everything that is due.
    pub(super) async fn revert(&mut self) {
        for id in self.reverts.due(self.clock.boot_ns()) {
            if self.drift_of(id).is_none_or(|open| open.action != Some(Action::Revert)) {
                self.reverts.done(id);
                continue;
            }
            if self.follow.concerns(&self.desired.expectations[id as usize].thing) {
                // An apply brings it to one of its images; two writers would undo each other.
                continue;
            }
            let result = self.restore(id).await;
            let name = self.name(id);
            let path = name.path.clone();
            let mut record = self.log.record(RecordKind::Reverted);
            record.before = self.drift_of(id).and_then(|open| open.found.clone());
            record.set_name(name);
            record.operation = Some("revert".to_owned());
            record.source = Some(self.desired.expectations[id as usize].source.machine_config.to_string());
            match &result {
                Ok(restored) => {
                    record.differences.clone_from(&restored.before);
                    record.detail.insert("actions".into(), restored.actions.clone().into());
                    self.telemetry.reverted(&path, Ok(()));
                }
                Err(error) => {
                    record.detail.insert("error".into(), format!("{error:#}").into());
                    self.telemetry.reverted(&path, Err(error.as_ref()));
                }
            }
            self.group.push(record);
            // Our own observation opens took the dirty bit away; whoever wrote meanwhile is seen anyhow.
            self.detector.recheck(Scope::Thing(id), self.clock.boot_ns());
        }
    }

    async fn restore(&mut self, id: u32) -> anyhow::Result<Restored> {
        // Contents are not kept in memory: they are decoded again, and must still say the same.
        let rendered = desired::rendered(&self.options.inputs.source, Unknown::Ignore)?;
        let expectation = &self.desired.expectations[id as usize];
        // The label is not the config's to say.
        let declared = Expectation { label: None, ..expectation.clone() };
        if !expectations(&rendered)?.contains(&declared) {
            anyhow::bail!("the MachineConfig no longer says what it said when the daemon started");
        }
        let mut restorer = Restorer::new(Arc::clone(&self.looker.observer), &self.options.inputs.root);
        Ok(restorer.restore(&rendered, expectation, &self.desired.ids).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Times of all attempts at a thing that nothing helps, within an hour.
    fn attempts(mut reverts: Reverts) -> Vec<u64> {
        let mut times = Vec::new();
        while let Some(at) = reverts.next().filter(|at| *at < 3600 * SECOND) {
            assert_eq!(reverts.due(at), [1]);
            times.push(at);
        }
        times
    }

    #[test]
    fn what_failed_is_tried_again_less_and_less_often_and_never_given_up() {
        let mut reverts = Reverts::default();
        reverts.ask(1, 0);
        let times = attempts(reverts);
        assert_eq!(times[..4], [0, SECOND, 3 * SECOND, 7 * SECOND]);
        let pauses: Vec<u64> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(pauses.is_sorted(), "{pauses:?}");
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE_NS));
    }

    #[test]
    fn what_is_done_is_not_tried_again() {
        let mut reverts = Reverts::default();
        reverts.ask(1, 5);
        assert_eq!(reverts.due(5), [1]);
        reverts.done(1);
        assert_eq!(reverts.next(), None);
    }

    #[test]
    fn somebody_who_keeps_changing_a_thing_is_answered_a_few_times_a_minute() {
        let mut reverts = Reverts::default();
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
