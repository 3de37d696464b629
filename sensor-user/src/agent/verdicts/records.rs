//! Creates the records of a turn, with the names, times and actors that the verdicts have.
//!
//! In: a kind, a thing, a change or a verification. Out: a record. It owns nothing.

use super::super::diff::{declared, shown};
use super::super::episode::{AttributedChange, brief};
use super::super::open_drift::MORE_ACTORS;
use super::super::reports::AgentReport;
use super::super::verifier::VerifiedThing;
use super::Verdicts;
use crate::clock::rfc3339;
use crate::event::CheckedRecord;
use sensor_model::protocol::ThingId;
use sensor_model::record::{Actor, Record, RecordKind};
use sensor_model::verdict::VerdictKind;
use std::time::Duration;

impl Verdicts {
    /// A record of this kind, with the time and nothing else.
    pub(in crate::agent) fn new_record(&self, kind: RecordKind) -> Record {
        Record::new(kind, rfc3339(self.clock.now()), self.boot_id.clone(), self.clock.boot_ns())
    }

    /// A record with the time, the operation and the actor of a change.
    pub(in crate::agent) fn record_of_change(
        &self,
        kind: RecordKind,
        change: &CheckedRecord,
        actor: &Actor,
    ) -> Record {
        let mut record = self.new_record(kind);
        record.monotonic_ns = change.record.time_ns;
        record.time = self.wall(change.record.time_ns);
        record.operation = Some(change.operation.name().to_owned());
        record.actor = Some(actor.clone());
        record
    }

    /// A record about a thing at the moment of a change that is not itself a change of the thing.
    pub(in crate::agent) fn record_about(
        &self,
        kind: RecordKind,
        thing: ThingId,
        change: &CheckedRecord,
        actor: &Actor,
    ) -> Record {
        let mut record = self.record_of_change(kind, change, actor);
        record.set_name(self.name(thing));
        record.verdict = self.last_verdict(thing);
        record.source = Some(self.source(thing));
        if let Some(open) = self.open_drift(thing) {
            record.differences.clone_from(&open.differences);
        }
        record
    }

    /// A record that counts events between two boot times, in nanoseconds.
    pub(in crate::agent) fn record_of_count(
        &self,
        kind: RecordKind,
        thing: Option<ThingId>,
        count: u64,
        first_ns: u64,
        last_ns: u64,
    ) -> Record {
        let mut record = self.new_record(kind);
        if let Some(thing) = thing {
            record.source = Some(self.source(thing));
            record.set_name(self.name(thing));
        }
        record.monotonic_ns = last_ns;
        record.time = self.wall(last_ns);
        record.detail.insert("count".into(), count.into());
        record.detail.insert("since".into(), self.wall(first_ns).into());
        record
    }

    /// A record about a thing, with the actors of its changes and its present state.
    pub(super) fn new_thing_record(
        &mut self,
        kind: RecordKind,
        thing: ThingId,
        verified: &VerifiedThing,
    ) -> Record {
        let mut record = self.new_record(kind);
        let episode = self.episodes.get_mut(&thing).map(|episode| {
            // The episode stays: an actor that has the file open or mapped can change it without another record.
            let before = episode.clone();
            episode.reported = true;
            before
        });
        record.set_name(self.name(thing));
        record.operation = Some("sweep".to_owned());
        if let Some(episode) = &episode {
            if let Some(change) = episode.newest() {
                self.set_actor(&mut record, change);
            }
            record.actors = episode.actors();
            if episode.more() > 0 {
                record.detail.insert(MORE_ACTORS.into(), episode.more().into());
            }
            if let Some(actor) = episode.refused() {
                let actor = serde_json::to_value(brief(actor)).unwrap_or_default();
                record.detail.insert("attempt".into(), actor);
            }
        }
        record.source = Some(self.source(thing));
        record.before = match self.open_drift(thing) {
            Some(open) => open.found.clone(),
            // The last verification found the declared state. Before the first one the state is unknown.
            None if verified.was_decided => declared(self.expectation(thing)),
            None => None,
        };
        record.after = shown(&verified.observation);
        let latency = episode
            .filter(|episode| !episode.reported)
            .map(|episode| Duration::from_nanos(self.now().saturating_sub(episode.first_ns)));
        let verdict = match kind {
            RecordKind::Drift => VerdictKind::Drifted,
            RecordKind::Touched => VerdictKind::Touched,
            _ => VerdictKind::Compliant,
        };
        record.verdict = Some(verdict);
        self.reports.report(AgentReport::Verdict(verdict, latency));
        record
    }

    /// Names the actor and the time of a change in a record.
    pub(super) fn set_actor(&self, record: &mut Record, change: &AttributedChange) {
        record.time = self.wall(change.at_ns);
        record.monotonic_ns = change.at_ns;
        record.operation = Some(change.operation.to_owned());
        record.actor.clone_from(&change.actor);
    }
}
