//! The verdict of each thing, and what follows from it: records, open drifts, what is to be written back.
//!
//! In: changes with their actors, looks, gaps. Out: events and records for the room `report`. It runs the detection protocol
//! and knows no ring, no map and no mount table.

use super::actors::{decide, decide_of_all, is_same, with_earlier};
use super::diff::{Diffs, declared, shown};
use super::episode::{AttributedChange, Episode, brief};
use super::open_drift::{MORE_ACTORS, OpenDrift};
use super::reports::{AgentEvent, Reports, Tally};
use super::revert::Schedule;
use super::verifier::{LookResult, Looker};
use crate::clock::{Clock, rfc3339};
use crate::desired::Desired;
use crate::event::Change;
use sensor_model::difference::Difference;
use sensor_model::drift_policy::DriftAction;
use sensor_model::protocol::{Detector, Event, Gap, Scope, Timing, Transition};
use sensor_model::record::{Actor, Record, RecordKind, ThingName};
use sensor_model::verdict::VerdictKind;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The verdicts of one run of the loop.
pub(super) struct Verdicts {
    pub(super) clock: Arc<dyn Clock>,
    boot_id: String,
    pub(super) desired: Desired,
    pub(super) detector: Detector,
    /// Who changed each thing since it was last verified.
    pub(super) episodes: HashMap<u32, Episode>,
    pub(super) reports: Box<dyn Reports>,
    /// Records of this turn, written as one group.
    pub(super) records: Vec<Record>,
    pub(super) diffs: Diffs,
    /// Things to be written back.
    pub(super) reverts: Schedule,
}

impl Verdicts {
    /// Nothing has a verdict yet.
    pub(super) fn new(
        clock: Arc<dyn Clock>,
        boot_id: String,
        desired: Desired,
        reports: Box<dyn Reports>,
    ) -> Self {
        Self {
            clock,
            boot_id,
            desired,
            detector: Detector::new(Timing::default()),
            episodes: HashMap::new(),
            reports,
            records: Vec::new(),
            diffs: Diffs::default(),
            reverts: Schedule::default(),
        }
    }

    /// Boot time in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        self.clock.boot_ns()
    }

    /// A boot time on the wall clock, RFC 3339.
    pub(super) fn wall(&self, boot_ns: u64) -> String {
        rfc3339(self.clock.wall_at(boot_ns))
    }

    /// How records name a thing.
    pub(super) fn name(&self, id: u32) -> ThingName {
        ThingName::from(&self.desired.expectations[id as usize].thing)
    }

    /// The open drift of a thing.
    pub(super) fn open_drift(&self, id: u32) -> Option<&OpenDrift> {
        let drifts = self.reports.drifts();
        // A name costs an allocation, which is not needed while nothing drifts.
        if drifts.is_empty() { None } else { drifts.get(&self.name(id)) }
    }

    /// The verdict at this moment. A compliant thing that changed since its last look is unknown.
    pub(super) fn verdict_now(&self, id: u32) -> Option<VerdictKind> {
        let standing = self.detector.thing_verdict(id)?;
        let is_open = standing.verdict == VerdictKind::Compliant && standing.pending;
        Some(if is_open { VerdictKind::Unknown } else { standing.verdict })
    }

    /// The node in numbers.
    pub(super) fn tally(&self, records_lost: u64, is_verifying: bool) -> Tally {
        let count = |verdict| self.detector.count(verdict);
        Tally {
            verdict: self.detector.node_verdict(),
            managed: self.desired.expectations.len(),
            compliant: count(VerdictKind::Compliant),
            drifted: count(VerdictKind::Drifted),
            unknown: count(VerdictKind::Unknown),
            records_lost,
            is_verifying,
        }
    }

    /// A record of this kind, with the time and nothing else.
    pub(super) fn new_record(&self, kind: RecordKind) -> Record {
        Record::new(kind, rfc3339(self.clock.now()), self.boot_id.clone(), self.clock.boot_ns())
    }

    /// A record about a thing at the moment of a change that is not itself a change of the thing.
    pub(super) fn record_about(&self, kind: RecordKind, id: u32, change: &Change, actor: &Actor) -> Record {
        let mut record = self.new_record(kind);
        record.monotonic_ns = change.record.time_ns;
        record.time = self.wall(change.record.time_ns);
        record.set_name(self.name(id));
        record.operation = Some(change.operation.name().to_owned());
        record.actor = Some(actor.clone());
        record.verdict = self.detector.thing_verdict(id).map(|standing| standing.verdict);
        record.source = Some(self.source(id));
        if let Some(open) = self.open_drift(id) {
            record.differences.clone_from(&open.differences);
        }
        record
    }

    /// A record that counts what happened from one time to another, boot-time nanoseconds.
    pub(super) fn record_of_count(
        &self,
        kind: RecordKind,
        id: Option<u32>,
        count: u64,
        first_ns: u64,
        last_ns: u64,
    ) -> Record {
        let mut record = self.new_record(kind);
        if let Some(id) = id {
            record.source = Some(self.source(id));
            record.set_name(self.name(id));
        }
        record.monotonic_ns = last_ns;
        record.time = self.wall(last_ns);
        record.detail.insert("count".into(), count.into());
        record.detail.insert("since".into(), self.wall(first_ns).into());
        record
    }

    /// The MachineConfig that declares a thing.
    pub(super) fn source(&self, id: u32) -> String {
        self.desired.expectations[id as usize].source.name().to_owned()
    }

    /// A change of a thing. `refused`: the kernel refuses it, as far as owner and capabilities show.
    pub(super) fn note(&mut self, id: u32, change: AttributedChange, refused: bool) {
        match (self.episodes.get_mut(&id), refused) {
            (Some(episode), false) => episode.add(change),
            (Some(episode), true) => episode.attempt(change),
            (None, false) => drop(self.episodes.insert(id, Episode::new(change))),
            (None, true) => drop(self.episodes.insert(id, Episode::attempted(change))),
        }
    }

    /// A change of a thing whose record was lost, and with it the actor.
    pub(super) fn note_lost(&mut self, id: u32) {
        let now = self.now();
        self.episodes.entry(id).and_modify(Episode::add_unnamed).or_insert_with(|| Episode::lost(now));
    }

    /// Things are to be looked at since they may have changed.
    pub(super) fn changed(&mut self, ids: impl IntoIterator<Item = u32>, event: Event) {
        let now = self.now();
        for id in ids {
            self.detector.event(id, now, event);
        }
    }

    /// A change of anything may have been missed. Its unknown actor counts for every thing that changes now.
    pub(super) fn missed(&mut self, reason: &str) {
        self.episodes.values_mut().for_each(Episode::add_unnamed);
        self.open_gap(Scope::All, reason);
    }

    /// Opens a gap, which closes when everything that it touches was verified.
    pub(super) fn open_gap(&mut self, scope: Scope, reason: &str) {
        let reports = self.detector.open_gap(scope, reason, self.now());
        self.report_gaps(reports);
    }

    /// Opens a gap that lasts until [`Verdicts::end_lasting_gap`] with the number that this gives.
    pub(super) fn open_lasting_gap(&mut self, scope: Scope, reason: &str) -> u32 {
        let gap = self.detector.open_blindness(scope, reason, self.now());
        let number = gap.number;
        self.report_gaps(vec![Transition::GapOpened(gap)]);
        number
    }

    /// The cause of a lasting gap is over.
    pub(super) fn end_lasting_gap(&mut self, number: u32) {
        let reports = self.detector.end_blindness(number, self.now());
        self.report_gaps(reports);
    }

    /// Changes of a thing may go unseen, for this reason, or are seen.
    pub(super) fn set_unseen(&mut self, id: u32, reason: Option<&str>) {
        let reports = self.detector.set_unreported(id, reason, self.now());
        self.report_gaps(reports);
    }

    /// A thing could not be looked at. It is looked at again at this boot time.
    pub(super) fn unanswered(&mut self, id: u32, again: u64) {
        let reports = self.detector.not_observed(id, self.now(), again);
        self.report_gaps(reports);
    }

    /// Follows from a look, once all changes that came before it are noted. `now`: when the look ended.
    pub(super) fn conclude(&mut self, id: u32, seen: &LookResult, now: u64, looker: &mut Looker) {
        let reports = self.detector.set_unreported(id, seen.unseen_because, now);
        self.report_gaps(reports);
        let conclusion = self.detector.conclude(id, now, &seen.outcome);
        if conclusion.decided {
            looker.decided(id, seen);
        }
        self.confirm_recovery(id, seen, conclusion.decided);
        for report in conclusion.transitions {
            match report {
                Transition::Drifted { id, .. } => self.drifted(id, seen, looker),
                Transition::Touched { id } => self.touched(id, seen),
                Transition::Recovered { id } => self.recovered(id, seen),
                Transition::GapOpened(gap) => self.gap(&gap, true),
                Transition::GapClosed(gap) => self.gap(&gap, false),
            }
        }
        // The next episode has its own actors.
        if self.detector.thing_verdict(id).is_some_and(|standing| !standing.pending) {
            looker.settled(id);
            self.episodes.remove(&id);
        }
    }

    fn report_gaps(&mut self, reports: Vec<Transition>) {
        for report in reports {
            match report {
                Transition::GapOpened(gap) => self.gap(&gap, true),
                Transition::GapClosed(gap) => self.gap(&gap, false),
                Transition::Drifted { .. } | Transition::Touched { .. } | Transition::Recovered { .. } => {}
            }
        }
    }

    /// Closes a drift of an earlier run that this run's first look did not find.
    fn confirm_recovery(&mut self, id: u32, seen: &LookResult, decided: bool) {
        let Some(standing) = self.detector.thing_verdict(id) else { return };
        // A thing whose changes may go unseen stays unknown; its look found no difference all the same.
        let has_no_difference = decided && seen.unseen_because.is_some() && seen.differences.is_empty();
        if standing.verdict != VerdictKind::Compliant && !has_no_difference {
            return;
        }
        let drifts = self.reports.drifts();
        if !drifts.is_empty() && drifts.is_unconfirmed(&self.name(id)) {
            self.recovered(id, seen);
        }
    }

    /// A record about a thing, with who changed it last and how it is.
    fn describe(&mut self, kind: RecordKind, id: u32, seen: &LookResult) -> Record {
        let mut record = self.new_record(kind);
        let episode = self.episodes.get_mut(&id).map(|episode| {
            // Kept until the episode ends: an actor that has the file open or mapped changes it without another record.
            let before = episode.clone();
            episode.reported = true;
            before
        });
        record.set_name(self.name(id));
        record.operation = Some("sweep".to_owned());
        if let Some(episode) = &episode {
            if let Some(change) = episode.newest() {
                self.ascribe(&mut record, change);
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
        record.source = Some(self.source(id));
        record.before = match self.open_drift(id) {
            Some(open) => open.found.clone(),
            // The last look found it as declared. Before the first look nothing is known.
            None if seen.known => declared(&self.desired.expectations[id as usize]),
            None => None,
        };
        record.after = shown(&seen.observation);
        let latency = episode
            .filter(|episode| !episode.reported)
            .map(|episode| Duration::from_nanos(self.now().saturating_sub(episode.first_ns)));
        let verdict = match kind {
            RecordKind::Drift => VerdictKind::Drifted,
            RecordKind::Touched => VerdictKind::Touched,
            _ => VerdictKind::Compliant,
        };
        record.verdict = Some(verdict);
        self.reports.report(AgentEvent::Verdict(verdict, latency));
        record
    }

    fn drifted(&mut self, id: u32, seen: &LookResult, looker: &mut Looker) {
        let name = self.name(id);
        let differences = seen.differences.clone();
        // A new actor is news, even if the thing departs in the same way as before.
        let has_new_actor = self.episodes.get(&id).is_some_and(|episode| {
            !episode.reported && episode.newest().is_some_and(|change| change.actor.is_some())
        });
        if !has_new_actor && self.was_reported(id, &name, &differences, looker) {
            return;
        }
        let mut record = self.describe(RecordKind::Drift, id, seen);
        let made: Vec<AttributedChange> =
            self.episodes.get(&id).into_iter().flat_map(Episode::changes).cloned().collect();
        let mut was_allowed = false;
        if made.is_empty()
            && let Some(cause) = self.reports.drifts().cause(&name, &differences)
        {
            was_allowed = cause.allowed;
            record.actor.clone_from(&cause.actor);
            record.actors.clone_from(&cause.actors);
            if cause.more_actors {
                record.detail.insert(MORE_ACTORS.into(), true.into());
            }
            record.operation = Some("config".to_owned());
        }
        let ours = |actor: &Actor| actor.holdfast;
        // What Holdfast writes is as declared, or a step of an apply, which is no drift. So another process changed it after
        // that, before the kernel programs knew the new inode.
        if record.actor.as_ref().is_some_and(ours) {
            record.actor = None;
            record.operation = Some("sweep".to_owned());
        } else {
            let others = made.iter().filter(|change| !change.actor.as_ref().is_some_and(ours));
            // Of several actors, the record names one that was not allowed.
            let unallowed = others
                .into_iter()
                .find(|change| !decide(&self.desired, id, change.actor.as_ref(), false, looker).1);
            if let Some(change) = unallowed {
                self.ascribe(&mut record, change);
            }
        }
        record.actors.retain(|actor| !actor.holdfast);
        if let Some(open) = self.reports.drifts().get(&name) {
            with_earlier(&mut record, open);
        }
        if record.actors.len() == 1
            && record.actor.as_ref().is_some_and(|actor| is_same(actor, &record.actors[0]))
        {
            record.actors.clear();
        }
        record.differences = differences;
        let more_actors = record.detail.contains_key(MORE_ACTORS);
        let actor = record.actor.as_ref();
        let (action, allowed) =
            decide_of_all(&self.desired, id, actor, &record.actors, more_actors, was_allowed, looker);
        record.detail.insert("policy".into(), serde_json::to_value(action).unwrap_or_default());
        if allowed {
            record.detail.insert("allowed".into(), true.into());
        }
        let began = || record.time.parse().unwrap_or_default();
        let since = self.reports.drifts().get(&name).map_or_else(began, |open| open.since);
        if action == DriftAction::Revert {
            self.ask_revert(id);
        }
        let open = OpenDrift {
            differences: record.differences.clone(),
            since,
            actor: record.actor.clone(),
            actors: record.actors.clone(),
            more_actors,
            allowed,
            source: record.source.clone().unwrap_or_default(),
            action: Some(action),
            found: record.after.clone(),
            confirmed: true,
        };
        self.reports.report(AgentEvent::Drifted(name, Box::new(open)));
        self.diffs.want(self.records.len(), id, &self.desired, seen);
        self.records.push(record);
    }

    /// Whether the drift was reported by an earlier run or daemon. It goes on as it was, under the present policy.
    fn was_reported(
        &mut self,
        id: u32,
        name: &ThingName,
        differences: &[Difference],
        looker: &mut Looker,
    ) -> bool {
        let Some(open) = self.reports.drifts().reported(name, differences) else { return false };
        let (actor, actors, more) = (open.actor.clone(), open.actors.clone(), open.more_actors);
        let allowed = open.allowed;
        let (action, _) = decide_of_all(&self.desired, id, actor.as_ref(), &actors, more, allowed, looker);
        self.reports.report(AgentEvent::DriftConfirmed(name, action));
        if action == DriftAction::Revert {
            self.ask_revert(id);
        }
        true
    }

    /// Names the actor and the time of a change in a record.
    fn ascribe(&self, record: &mut Record, change: &AttributedChange) {
        record.time = self.wall(change.at_ns);
        record.monotonic_ns = change.at_ns;
        record.operation = Some(change.operation.to_owned());
        record.actor.clone_from(&change.actor);
    }

    fn touched(&mut self, id: u32, seen: &LookResult) {
        let record = self.describe(RecordKind::Touched, id, seen);
        let path = record.path.as_deref().unwrap_or_default();
        self.reports.report(AgentEvent::Touched(path, record.actor.as_ref()));
        self.records.push(record);
    }

    fn recovered(&mut self, id: u32, seen: &LookResult) {
        let mut record = self.describe(RecordKind::Recovered, id, seen);
        let name = self.name(id);
        if let Some(open) = self.reports.drifts().get(&name) {
            record.detail.insert("since".into(), rfc3339(open.since).into());
        }
        self.reverts.done(id);
        self.reports.report(AgentEvent::Recovered(&name));
        self.records.push(record);
    }

    /// A thing is to be written back.
    fn ask_revert(&mut self, id: u32) {
        let now = self.now();
        let at = self.reverts.ask(id, now);
        if at > now {
            let (path, seconds) = (self.name(id).path, (at - now).div_ceil(1_000_000_000));
            tracing::error!(path, seconds, "Wrote the path back too often: the next attempt has to wait.");
        }
    }

    fn gap(&mut self, gap: &Gap, opened: bool) {
        let mut record = self.new_record(RecordKind::Gap);
        record.detail.insert("reason".into(), gap.reason.clone().into());
        record.detail.insert("number".into(), gap.number.into());
        let name = match gap.scope {
            Scope::Thing(id) => Some(self.name(id)),
            Scope::All | Scope::Some => None,
        };
        if let Some(name) = &name {
            record.set_name(name.clone());
        }
        record.detail.insert("since".into(), self.wall(gap.since).into());
        if let Some(until) = gap.until {
            record.detail.insert("until".into(), self.wall(until).into());
        }
        record.verdict = Some(if opened { VerdictKind::Unknown } else { self.detector.node_verdict() });
        self.reports.report(if opened {
            AgentEvent::GapOpened(gap, name)
        } else {
            AgentEvent::GapClosed(gap)
        });
        self.records.push(record);
    }
}
