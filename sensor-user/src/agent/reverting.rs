//! Drifted things under a `revert` rule: the daemon writes them back, or has another process do it.
//!
//! In: things whose next attempt is due, and the results of attempts. Out: the record and the metric of each attempt, and one more
//! verification of the thing. It owns nothing. A daemon that may write managed paths writes in its turn. Otherwise it orders the writes
//! and goes on, because the process that writes waits for an answer of this loop.

use super::episode::brief;
use super::open_drift::OpenDrift;
use super::ordered_reverts::{OrderedRevert, RevertOrders, RevertResult};
use super::reports::AgentReport;
use super::revert::{RevertError, still_declared};
use super::state::Agent;
use super::write_back::{WriteBackRequest, WrittenBack};
use sensor_model::drift_policy::DriftAction;
use sensor_model::protocol::{Scope, ThingId};
use sensor_model::record::{Actor, RecordKind, ThingName};
use std::error::Error;
use std::future::poll_fn;

/// Things of one order. The others are part of the next one.
const MOST: usize = 32;

impl Agent {
    /// The boot time of the next attempt; `None` while an order is under way, whose end begins the next turn, and in a run that is over.
    pub(super) fn next_revert(&self) -> Option<u64> {
        let is_idle = !self.is_order_under_way() && self.run_end.is_none();
        if is_idle { self.verdicts.reverts.next() } else { None }
    }

    fn is_order_under_way(&self) -> bool {
        self.revert_orders.as_ref().is_some_and(|orders| orders.is_under_way())
    }

    /// Writes the declared state of due things back, or orders that.
    pub(super) async fn write_back_due(&mut self) {
        let is_ordered = self.revert_orders.is_some();
        // The expectations of a run that ends may be those of the config before. The next run finds each drift again.
        if self.run_end.is_some() || self.is_order_under_way() {
            return;
        }
        let most = if is_ordered { MOST } else { usize::MAX };
        // During an apply the process that writes back would only find the lock taken.
        let waits = is_ordered && self.apply_tracker.has_open_apply();
        let mut ordered = Vec::new();
        for thing in self.verdicts.reverts.due(self.verdicts.now(), most) {
            let open = self.verdicts.open_drift(thing);
            let is_due = open.is_some_and(|open| open.action == Some(DriftAction::Revert));
            if !is_due || !(self.options.writes_managed_paths || is_ordered) {
                self.verdicts.reverts.done(thing);
                continue;
            }
            if waits || self.apply_tracker.writes(&self.verdicts.expectation(thing).thing) {
                // The apply writes it; two writers would undo each other's work.
                continue;
            }
            let actors = open.map(OpenDrift::makers).unwrap_or_default();
            let attempt = OrderedRevert {
                thing: self.verdicts.expectation(thing).thing.clone(),
                found: open.and_then(|open| open.found.clone()),
                actors: if is_ordered { actors.iter().map(brief).collect() } else { actors },
            };
            if is_ordered {
                ordered.push(attempt);
                continue;
            }
            let result = self.write_back_thing(thing, &attempt.actors).await;
            self.record_attempt(Some(thing), attempt, &result);
        }
        if let Some(orders) = self.revert_orders.as_mut().filter(|_| !ordered.is_empty()) {
            orders.begin(ordered, self.options.inputs.is_replaced());
        }
    }

    /// Records the results of an order that is over. A new config may have released a thing meanwhile.
    pub(super) fn record_reverts(&mut self, results: Vec<RevertResult>) {
        for RevertResult { ordered, result } in results {
            let mut things = (0..).map(ThingId).zip(&self.verdicts.desired.expectations);
            let thing = things.find(|(_, expectation)| expectation.thing == ordered.thing);
            let thing = thing.map(|(thing, _)| thing);
            self.record_attempt(thing, ordered, &result);
        }
    }

    /// Records and reports an attempt, and has the thing verified again.
    fn record_attempt<E: Error + 'static>(
        &mut self,
        thing: Option<ThingId>,
        attempt: OrderedRevert,
        result: &Result<WrittenBack, E>,
    ) {
        let name = ThingName::from(&attempt.thing);
        let path = name.path.clone();
        let mut record = self.verdicts.new_record(RecordKind::Reverted);
        record.before = attempt.found;
        record.set_name(name);
        record.operation = Some("revert".to_owned());
        record.source = thing.map(|thing| self.verdicts.source(thing));
        match result {
            Ok(written) => {
                // A verification may have found an ordered thing as declared before its result came.
                if let Some(thing) = thing.filter(|thing| self.verdicts.open_drift(*thing).is_some()) {
                    self.verdicts.wrote_back(thing);
                }
                record.differences.clone_from(&written.before);
                record.detail.insert("actions".into(), written.actions.clone().into());
                if !written.quarantined.is_empty() {
                    let moved = serde_json::to_value(&written.quarantined).unwrap_or_default();
                    record.detail.insert("quarantined".into(), moved);
                    let makers: Vec<Actor> = attempt.actors.iter().map(brief).collect();
                    record.detail.insert("made_by".into(), serde_json::to_value(makers).unwrap_or_default());
                }
                if let Some(error) = &written.left {
                    record.detail.insert("error".into(), error.to_string().into());
                    self.verdicts.report(AgentReport::Reverted(&path, Err(error)));
                } else {
                    self.verdicts.report(AgentReport::Reverted(&path, Ok(())));
                }
            }
            Err(error) => {
                record.detail.insert("error".into(), error.to_string().into());
                self.verdicts.report(AgentReport::Reverted(&path, Err(error)));
            }
        }
        self.verdicts.add_record(record);
        if let Some(thing) = thing {
            // A write back observes the thing, which clears the dirty bit. The next verification finds what was written meanwhile.
            let now = self.verdicts.now();
            self.verdicts.detector.recheck(Scope::Thing(thing), now);
        }
    }

    async fn write_back_thing(
        &mut self,
        thing: ThingId,
        actors: &[Actor],
    ) -> Result<WrittenBack, RevertError> {
        let expectation = self.verdicts.expectation(thing);
        // The daemon keeps no contents in memory: it reads the config again, which must declare the thing as before.
        let config = still_declared(expectation, &self.options.inputs.source)?;
        let (observer, ids) = (&self.verifications.verifier.observer, &self.verdicts.desired.ids);
        let writers: Vec<u32> = self.holdfast_writers.processes().map(|(process, _)| process).collect();
        let wanted =
            WriteBackRequest { observer, config: &config, expectation, ids, actors, writers: &writers };
        Ok(self.write_back.write_back(wanted).await?)
    }
}

/// Waits for the results of an order; for ever without one. The caller may drop the future at any point.
pub(super) async fn next_reverts(orders: &mut Option<Box<dyn RevertOrders>>) -> Vec<RevertResult> {
    match orders {
        Some(orders) => poll_fn(|context| orders.poll_over(context)).await,
        None => std::future::pending().await,
    }
}
