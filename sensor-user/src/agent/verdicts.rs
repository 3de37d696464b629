//! The verdict of each thing, and what follows from it: records, open drifts, things to write back.
//!
//! In: changes with their actors, verifications, gaps. Out: reports and records for the room `report`. It owns the detection
//! protocol, the expectations, the episodes, and the records of this turn. It uses no ring, no map and no mount table.

mod records;

use super::actors::{decide, decide_of_all, is_same, with_earlier};
use super::diff::Diffs;
use super::episode::{AttributedChange, Episode};
use super::open_drift::{MORE_ACTORS, OpenDrift, POLICY, SOURCE_KIND, STRENGTH};
use super::reports::{AgentReport, NodeCounts, Reports};
use super::revert::RevertSchedule;
use super::verifier::{VerifiedThing, Verifier};
use crate::clock::{Clock, rfc3339};
use crate::desired::Desired;
use sensor_model::difference::Difference;
use sensor_model::drift_policy::DriftAction;
use sensor_model::expectation::{Expectation, Thing};
use sensor_model::protocol::{Detector, Gap, GapReason, Scope, ThingChange, ThingId, Timing, Transition};
use sensor_model::record::{Actor, Record, RecordKind, ThingName};
use sensor_model::verdict::VerdictKind;
use std::collections::HashMap;
use std::sync::Arc;

/// The verdicts of one run of the loop.
pub(super) struct Verdicts {
    /// The time of changes and records.
    pub(super) clock: Arc<dyn Clock>,
    boot_id: String,
    /// The expectations and the drift policy.
    pub(super) desired: Desired,
    /// The detection protocol.
    pub(super) detector: Detector,
    /// The actors of each thing's changes since its last settled verification.
    pub(super) episodes: HashMap<ThingId, Episode>,
    /// Takes reports and records.
    pub(super) reports: Box<dyn Reports>,
    /// Records of this turn, which are written as one group.
    pub(super) records: Vec<Record>,
    /// The diffs that this turn adds to records.
    pub(super) diffs: Diffs,
    /// The times at which drifted things are written back.
    pub(super) reverts: RevertSchedule,
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
            reverts: RevertSchedule::default(),
        }
    }

    /// Reports what happened.
    pub(super) fn report(&mut self, report: AgentReport<'_>) {
        self.reports.report(report);
    }

    /// Adds a record to the group of this turn.
    pub(super) fn add_record(&mut self, record: Record) {
        self.records.push(record);
    }

    /// What a thing should be.
    pub(super) fn expectation(&self, thing: ThingId) -> &Expectation {
        &self.desired.expectations[thing.index()]
    }

    /// How many things are managed.
    pub(super) fn things(&self) -> usize {
        self.desired.expectations.len()
    }

    /// The last verdict of a thing.
    pub(super) fn last_verdict(&self, thing: ThingId) -> Option<VerdictKind> {
        self.detector.thing_verdict(thing).map(|thing| thing.verdict)
    }

    /// Whether a thing is due for a verification now.
    pub(super) fn is_any_due(&self) -> bool {
        let now = self.now();
        self.detector.next_deadline().is_some_and(|at| at <= now)
    }

    /// Whether a further verification can decide the verdict of an unknown thing.
    pub(super) fn is_any_undecided(&self) -> bool {
        self.detector.undecided() > 0
    }

    /// Has everything verified.
    pub(super) fn verify_everything(&mut self) {
        let now = self.now();
        self.detector.recheck(Scope::All, now);
    }

    /// Has the hierarchies verified again over which something stands: `rpm-ostree apply-live` changes them without a mount.
    pub(super) fn recheck_covered(&mut self) {
        let now = self.now();
        for thing in (0..).map(ThingId).take(self.things()) {
            let is_hierarchy = matches!(self.expectation(thing).thing, Thing::Hierarchy { .. });
            if is_hierarchy && self.last_verdict(thing) == Some(VerdictKind::Drifted) {
                self.detector.recheck(Scope::Thing(thing), now);
            }
        }
    }

    /// Boot time in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        self.clock.boot_ns()
    }

    /// A boot time as wall-clock time, RFC 3339.
    pub(super) fn wall(&self, boot_ns: u64) -> String {
        rfc3339(self.clock.wall_at(boot_ns))
    }

    /// The name of a thing in records.
    pub(super) fn name(&self, thing: ThingId) -> ThingName {
        ThingName::from(&self.expectation(thing).thing)
    }

    /// The open drift of a thing.
    pub(super) fn open_drift(&self, thing: ThingId) -> Option<&OpenDrift> {
        let drifts = self.reports.drifts();
        // A name costs an allocation, so this makes none while no drift is open.
        if drifts.is_empty() { None } else { drifts.get(&self.name(thing)) }
    }

    /// The verdict at this moment. A compliant thing that changed since its last verification is unknown.
    pub(super) fn verdict_now(&self, thing: ThingId) -> Option<VerdictKind> {
        let standing = self.detector.thing_verdict(thing)?;
        let is_open = standing.verdict == VerdictKind::Compliant && standing.pending;
        Some(if is_open { VerdictKind::Unknown } else { standing.verdict })
    }

    /// Whether a thing has drifted, or was compliant and is being verified because of a change.
    pub(super) fn may_differ(&self, thing: ThingId) -> bool {
        self.detector.thing_verdict(thing).is_some_and(|standing| match standing.verdict {
            VerdictKind::Drifted => true,
            VerdictKind::Compliant => standing.pending,
            VerdictKind::Touched | VerdictKind::Unknown => false,
        })
    }

    /// The counts of all things by verdict.
    pub(super) fn count(&self, records_lost: u64, is_verifying: bool) -> NodeCounts {
        let count = |verdict| self.detector.count(verdict);
        NodeCounts {
            verdict: self.detector.node_verdict(),
            managed: self.desired.expectations.len(),
            compliant: count(VerdictKind::Compliant),
            drifted: count(VerdictKind::Drifted),
            unknown: count(VerdictKind::Unknown),
            records_lost,
            is_verifying,
        }
    }

    /// What declares a thing: a MachineConfig, a layer or package, or the rule that closes the directory.
    pub(super) fn source(&self, thing: ThingId) -> String {
        self.expectation(thing).source.name().to_owned()
    }

    /// Adds a change of a thing to its episode. `refused`: the kernel refuses it, as far as owner and capabilities show.
    pub(super) fn add_change(&mut self, thing: ThingId, change: AttributedChange, refused: bool) {
        match (self.episodes.get_mut(&thing), refused) {
            (Some(episode), false) => episode.add(change),
            (Some(episode), true) => episode.attempt(change),
            (None, false) => drop(self.episodes.insert(thing, Episode::new(change))),
            (None, true) => drop(self.episodes.insert(thing, Episode::attempted(change))),
        }
    }

    /// Whether something changed the thing since the verdict was decided.
    pub(super) fn has_changed(&self, thing: ThingId) -> bool {
        self.episodes.contains_key(&thing)
    }

    /// Adds a change of a thing to its episode whose record was lost, and with it the actor.
    pub(super) fn add_unnamed_change(&mut self, thing: ThingId) {
        let now = self.now();
        self.episodes.entry(thing).and_modify(Episode::add_unnamed).or_insert_with(|| Episode::lost(now));
    }

    /// Has things verified because they may have changed.
    pub(super) fn verify_soon(&mut self, things: impl IntoIterator<Item = ThingId>, change: ThingChange) {
        let now = self.now();
        for thing in things {
            self.detector.changed(thing, now, change);
        }
    }

    /// Opens a gap because changes of any thing may have been missed. Every open episode may have one more actor.
    pub(super) fn changes_missed(&mut self, reason: GapReason) {
        self.episodes.values_mut().for_each(Episode::add_unnamed);
        self.open_gap(Scope::All, reason);
    }

    /// Opens a gap, which closes when everything in its scope is verified.
    pub(super) fn open_gap(&mut self, scope: Scope, reason: GapReason) {
        let transitions = self.detector.open_gap(scope, reason, self.now());
        self.report_gaps(transitions);
    }

    /// Opens a gap, and gives its number. It lasts until [`Verdicts::end_lasting_gap`].
    pub(super) fn open_lasting_gap(&mut self, scope: Scope, reason: GapReason) -> u32 {
        let gap = self.detector.open_blindness(scope, reason, self.now());
        let number = gap.number;
        self.report_gaps(vec![Transition::GapOpened(gap)]);
        number
    }

    /// The cause of a lasting gap is over.
    pub(super) fn end_lasting_gap(&mut self, number: u32) {
        let transitions = self.detector.end_blindness(number, self.now());
        self.report_gaps(transitions);
    }

    /// Sets why changes of a thing may not arrive; `None` if they do.
    pub(super) fn set_unseen(&mut self, thing: ThingId, reason: Option<GapReason>) {
        let transitions = self.detector.set_unreported(thing, reason, self.now());
        self.report_gaps(transitions);
    }

    /// A thing could not be observed. `again`: the boot time of the next attempt.
    pub(super) fn not_observed(&mut self, thing: ThingId, again: u64) {
        let transitions = self.detector.not_observed(thing, self.now(), again);
        self.report_gaps(transitions);
    }

    /// Reaches a verdict from a verification. The caller has added all changes before it. `now`: the end of the verification.
    pub(super) fn conclude(
        &mut self,
        thing: ThingId,
        seen: &VerifiedThing,
        now: u64,
        verifier: &mut Verifier,
    ) {
        let transitions = self.detector.set_unreported(thing, seen.unseen_because, now);
        self.report_gaps(transitions);
        let conclusion = self.detector.conclude(thing, now, &seen.verification);
        if conclusion.decided {
            verifier.remember_decided(thing, seen);
        }
        self.close_unconfirmed_drift(thing, seen, conclusion.decided);
        for transition in conclusion.transitions {
            match transition {
                Transition::Drifted { thing, .. } => self.report_drift(thing, seen, verifier),
                Transition::Touched { thing } => self.report_touch(thing, seen),
                Transition::Recovered { thing } => self.report_recovery(thing, seen),
                Transition::GapOpened(gap) => self.report_gap(&gap, true),
                Transition::GapClosed(gap) => self.report_gap(&gap, false),
            }
        }
        // The next episode has its own actors.
        if self.detector.thing_verdict(thing).is_some_and(|standing| !standing.pending) {
            verifier.clear_rerouted(thing);
            self.episodes.remove(&thing);
        }
    }

    fn report_gaps(&mut self, transitions: Vec<Transition>) {
        for transition in transitions {
            match transition {
                Transition::GapOpened(gap) => self.report_gap(&gap, true),
                Transition::GapClosed(gap) => self.report_gap(&gap, false),
                Transition::Drifted { .. } | Transition::Touched { .. } | Transition::Recovered { .. } => {}
            }
        }
    }

    /// Reports the recovery of a drift of an earlier run that this run's first verification did not find.
    fn close_unconfirmed_drift(&mut self, thing: ThingId, verified: &VerifiedThing, decided: bool) {
        let Some(standing) = self.detector.thing_verdict(thing) else { return };
        // A thing whose changes may not arrive stays unknown, although the verification found no difference.
        let has_no_difference =
            decided && verified.unseen_because.is_some() && verified.differences.is_empty();
        if standing.verdict != VerdictKind::Compliant && !has_no_difference {
            return;
        }
        let drifts = self.reports.drifts();
        if !drifts.is_empty() && drifts.is_unconfirmed(&self.name(thing)) {
            self.report_recovery(thing, verified);
        }
    }

    /// Reports a drift, with the actors who may have caused it and the policy's action.
    fn report_drift(&mut self, thing: ThingId, seen: &VerifiedThing, verifier: &mut Verifier) {
        let name = self.name(thing);
        let differences = seen.differences.clone();
        // A change by a new actor gets a record, even if the differences are the same.
        let has_new_actor = self.episodes.get(&thing).is_some_and(|episode| {
            !episode.reported && episode.newest().is_some_and(|change| change.actor.is_some())
        });
        if !has_new_actor && self.confirm_reported(thing, &name, &differences, verifier) {
            return;
        }
        let mut record = self.new_thing_record(RecordKind::Drift, thing, seen);
        let made: Vec<AttributedChange> =
            self.episodes.get(&thing).into_iter().flat_map(Episode::changes).cloned().collect();
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
        // Holdfast itself writes the declared state, or a state that an apply passes through. So another process changed the thing afterwards,
        // before the new inode was enrolled.
        if record.actor.as_ref().is_some_and(ours) {
            record.actor = None;
            record.operation = Some("sweep".to_owned());
        } else {
            let others = made.iter().filter(|change| !change.actor.as_ref().is_some_and(ours));
            // Of several actors, the record names one that was not allowed.
            let unallowed = others
                .into_iter()
                .find(|change| !decide(&self.desired, thing, change.actor.as_ref(), false, verifier).1);
            if let Some(change) = unallowed {
                self.set_actor(&mut record, change);
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
            decide_of_all(&self.desired, thing, actor, &record.actors, more_actors, was_allowed, verifier);
        record.detail.insert(POLICY.into(), serde_json::to_value(action).unwrap_or_default());
        if allowed {
            record.detail.insert("allowed".into(), true.into());
        }
        let source = &self.expectation(thing).source;
        let (source_kind, strength) = (source.kind(), source.strength());
        record.detail.insert(SOURCE_KIND.into(), source_kind.as_str().into());
        if let Some(strength) = strength {
            record.detail.insert(STRENGTH.into(), strength.as_str().into());
        }
        let began = || record.time.parse().unwrap_or_default();
        let since = self.reports.drifts().get(&name).map_or_else(began, |open| open.since);
        if action == DriftAction::Revert {
            self.schedule_revert(thing);
        }
        let open = OpenDrift {
            differences: record.differences.clone(),
            since,
            actor: record.actor.clone(),
            actors: record.actors.clone(),
            more_actors,
            allowed,
            source: record.source.clone().unwrap_or_default(),
            source_kind: Some(source_kind),
            strength,
            action: Some(action),
            found: record.after.clone(),
            confirmed: true,
        };
        self.reports.report(AgentReport::Drifted(name, Box::new(open)));
        self.diffs.want(self.records.len(), thing, &self.desired, seen);
        self.records.push(record);
    }

    /// Confirms a drift that an earlier run or daemon reported, and applies the present policy. `false`: there is none.
    fn confirm_reported(
        &mut self,
        thing: ThingId,
        name: &ThingName,
        differences: &[Difference],
        verifier: &mut Verifier,
    ) -> bool {
        let Some(open) = self.reports.drifts().reported(name, differences) else { return false };
        let (actor, actors, more) = (open.actor.clone(), open.actors.clone(), open.more_actors);
        let was_allowed = open.allowed;
        let (action, allowed) =
            decide_of_all(&self.desired, thing, actor.as_ref(), &actors, more, was_allowed, verifier);
        self.reports.report(AgentReport::DriftConfirmed(name, action, allowed));
        if action == DriftAction::Revert {
            self.schedule_revert(thing);
        }
        true
    }

    /// Reports a change of a thing that matches its expectation again.
    fn report_touch(&mut self, thing: ThingId, verified: &VerifiedThing) {
        let record = self.new_thing_record(RecordKind::Touched, thing, verified);
        let path = record.path.as_deref().unwrap_or_default();
        self.reports.report(AgentReport::Touched(path, record.actor.as_ref()));
        self.records.push(record);
    }

    /// Reports that a drifted thing matches its expectation again.
    fn report_recovery(&mut self, thing: ThingId, verified: &VerifiedThing) {
        let mut record = self.new_thing_record(RecordKind::Recovered, thing, verified);
        let name = self.name(thing);
        if let Some(open) = self.reports.drifts().get(&name) {
            record.detail.insert("since".into(), rfc3339(open.since).into());
        }
        self.reverts.done(thing);
        self.reports.report(AgentReport::Recovered(&name));
        self.records.push(record);
    }

    /// Schedules a thing to be written back.
    fn schedule_revert(&mut self, thing: ThingId) {
        let now = self.now();
        let at = self.reverts.schedule(thing, now);
        if at > now {
            let (path, seconds) = (self.name(thing).path, (at - now).div_ceil(1_000_000_000));
            tracing::error!(path, seconds, "Wrote the path back too often: the next attempt has to wait.");
        }
    }

    /// The thing was written back just now.
    pub(super) fn wrote_back(&mut self, thing: ThingId) {
        let now = self.now();
        if let Some(at) = self.reverts.wrote(thing, now) {
            let (path, seconds) = (self.name(thing).path, (at - now).div_ceil(1_000_000_000));
            tracing::warn!(
                path,
                seconds,
                "Wrote the path back too often: a next attempt would have to wait."
            );
        }
    }

    /// Reports and records a gap that opened, or closed.
    fn report_gap(&mut self, gap: &Gap, opened: bool) {
        let mut record = self.new_record(RecordKind::Gap);
        record.detail.insert("reason".into(), gap.reason.as_str().into());
        record.detail.insert("number".into(), gap.number.into());
        let name = match gap.scope {
            Scope::Thing(thing) => Some(self.name(thing)),
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
            AgentReport::GapOpened(gap, name)
        } else {
            AgentReport::GapClosed(gap)
        });
        self.records.push(record);
    }
}
