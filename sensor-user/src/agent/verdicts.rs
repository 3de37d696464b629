//! From the detector's reports to the outside: forensic records, metrics, status.

use super::diff::{declared, shown};
use super::open_drift::{MORE_ACTORS, Open};
use super::episode::{ACTORS, Deed, Noted, brief};
use super::look::{self, Sight};
use super::reload::LOG_CUT;
use super::{Agent, backend::Changes, rfc3339};
use crate::desired::CONFIG;
use crate::report::status::{Drifted, OpenGap, SCHEMA, Status};
use sensor_model::difference::Difference;
use sensor_model::drift_policy::{Action, Subject};
use sensor_model::protocol::{Gap, Report, Scope};
use sensor_model::record::{Actor, Record, RecordKind, ThingName};
use sensor_model::verdict::VerdictKind;
use std::collections::BTreeMap;
use std::time::Duration;

/// The verdict of the node, and how many things are compliant, drifted and unknown.
pub(crate) type Standing = (VerdictKind, [usize; 3]);

impl Agent {
    /// How the node stands, in numbers.
    pub(super) fn standing(&self) -> Standing {
        let kinds = [VerdictKind::Compliant, VerdictKind::Drifted, VerdictKind::Unknown];
        (self.detector.node_verdict(), kinds.map(|kind| self.detector.count(kind)))
    }

    /// Tells what a look, a gap or its end gave.
    pub(super) fn tell(&mut self, reports: Vec<Report>, sight: Option<&Sight>) {
        for report in reports {
            // A touch leaves everything as it stood.
            self.changed |= !matches!(report, Report::Touched { .. });
            match report {
                Report::Drifted { id, .. } => self.drifted(id, sight),
                Report::Touched { id } => self.touched(id, sight),
                Report::Recovered { id } => self.recovered(id, sight),
                Report::GapOpened(gap) => self.gap(&gap, true),
                Report::GapClosed(gap) => self.gap(&gap, false),
            }
        }
    }

    /// Judges what a look saw.
    pub(super) fn looked(&mut self, id: u32, mut sight: Sight, changes: &mut Changes) -> anyhow::Result<()> {
        if !sight.differences.is_empty() && !self.excuse(id, &mut sight) {
            // Another config counts by now: what this one says of the thing is nothing to be told.
            return Ok(());
        }
        let now = self.clock.boot_ns();
        self.hear(changes)?;
        if sight.differences.is_empty() || self.announced.are_shown() {
            self.follow_mounts(changes)?;
        } else {
            // What was seen may be a mount that was announced before it was there.
            self.compare_mounts(changes)?;
        }
        self.answers(id);
        let told = self.detector.vouch(id, sight.unvouched, now);
        self.tell(told, None);
        let conclusion = self.detector.conclude(id, now, &sight.outcome);
        if conclusion.decided {
            self.looker.decided(id, &sight);
        }
        self.settled(id, &sight, conclusion.decided);
        self.tell(conclusion.reports, Some(&sight));
        self.forget(id);
        Ok(())
    }

    /// After each look: forgets who changed a thing that is quiet again, and closes drifts that were
    /// open when the last daemon stopped.
    pub(super) fn settled(&mut self, id: u32, sight: &Sight, decided: bool) {
        let Some(standing) = self.detector.standing(id) else { return };
        // What nobody vouches for stays unknown; that it departs no more was seen all the same.
        let departs_no_more = decided && sight.unvouched.is_some() && sight.differences.is_empty();
        if standing.verdict != VerdictKind::Compliant && !departs_no_more {
            return;
        }
        if !self.drifts.is_empty() && self.drifts.is_unseen(&self.name(id)) {
            self.recovered(id, Some(sight));
            self.changed = true;
        }
    }

    /// Forgets who changed a thing, and that it may be reached in another way, once it is decided and quiet: the next
    /// episode has its own actor.
    pub(super) fn forget(&mut self, id: u32) {
        if self.detector.standing(id).is_some_and(|standing| !standing.in_flux) {
            self.looker.rests(id);
            self.changes.remove(&id);
        }
    }

    /// How records name a thing.
    pub(super) fn name(&self, id: u32) -> ThingName {
        ThingName::from(&self.desired.expectations[id as usize].thing)
    }

    /// The drift of a thing, while one is open.
    pub(super) fn drift_of(&self, id: u32) -> Option<&Open> {
        // Nothing is to be paid for a name while nothing drifts.
        if self.drifts.is_empty() { None } else { self.drifts.get(&self.name(id)) }
    }

    /// A record about a thing, with who changed it last and how it is.
    fn describe(&mut self, kind: RecordKind, id: u32, sight: Option<&Sight>) -> Record {
        let mut record = self.log.record(kind);
        let noted = self.changes.get_mut(&id).map(|noted| {
            // Kept until the thing is quiet: whoever still has it open, or mapped, can change it unannounced.
            let before = noted.clone();
            noted.told = true;
            before
        });
        record.set_name(self.name(id));
        record.operation = Some("sweep".to_owned());
        if let Some(noted) = &noted {
            if let Some(deed) = noted.newest() {
                self.ascribe(&mut record, deed);
            }
            record.actors = noted.actors();
            if noted.more() > 0 {
                record.detail.insert(MORE_ACTORS.into(), noted.more().into());
            }
            if let Some(actor) = noted.refused() {
                let actor = serde_json::to_value(brief(actor)).unwrap_or_default();
                record.detail.insert("attempt".into(), actor);
            }
        }
        record.source = Some(self.desired.expectations[id as usize].source.machine_config.to_string());
        record.before = match self.drift_of(id) {
            Some(open) => open.found.clone(),
            // It was as declared when it was last looked at; before the first look nobody knows.
            None if sight.is_some_and(|sight| sight.known) => {
                declared(&self.desired.expectations[id as usize])
            }
            None => None,
        };
        record.after = sight.and_then(|sight| shown(&sight.observation));
        let latency = noted
            .filter(|noted| !noted.told)
            .map(|noted| Duration::from_nanos(self.clock.boot_ns().saturating_sub(noted.first_ns)));
        let verdict = match kind {
            RecordKind::Drift => VerdictKind::Drifted,
            RecordKind::Touched => VerdictKind::Touched,
            _ => VerdictKind::Compliant,
        };
        record.verdict = Some(verdict);
        self.telemetry.verdict(verdict, latency);
        record
    }

    fn drifted(&mut self, id: u32, sight: Option<&Sight>) {
        let name = self.name(id);
        let differences = sight.map(|sight| sight.differences.clone()).unwrap_or_default();
        // Whoever changed it since it was told is news, though it departs in the same way as before.
        let somebody = self
            .changes
            .get(&id)
            .is_some_and(|noted| !noted.told && noted.newest().is_some_and(|deed| deed.actor.is_some()));
        if !somebody && self.resumed(id, &name, &differences) {
            return;
        }
        let mut record = self.describe(RecordKind::Drift, id, sight);
        let deeds: Vec<Deed> = self.changes.get(&id).into_iter().flat_map(Noted::deeds).cloned().collect();
        let mut told = false;
        if deeds.is_empty()
            && let Some(maker) = self.drifts.maker(&name, &differences)
        {
            told = maker.allowed;
            record.actor.clone_from(&maker.actor);
            record.actors.clone_from(&maker.actors);
            if maker.more {
                record.detail.insert(MORE_ACTORS.into(), true.into());
            }
            record.operation = Some("config".to_owned());
        }
        let ours = |actor: &Actor| actor.holdfast;
        // What we write is as declared, or a step of an apply, which is no drift: somebody changed it after that before
        // its new inode was known to the kernel programs.
        if record.actor.as_ref().is_some_and(ours) {
            record.actor = None;
            record.operation = Some("sweep".to_owned());
        } else {
            let others = deeds.iter().filter(|deed| !deed.actor.as_ref().is_some_and(ours));
            // Of several, who was not allowed to.
            if let Some(deed) = others.into_iter().find(|deed| !self.decide(id, deed.actor.as_ref(), false).1)
            {
                self.ascribe(&mut record, deed);
            }
        }
        record.actors.retain(|actor| !actor.holdfast);
        if let Some(open) = self.drifts.get(&name) {
            with_earlier(&mut record, open);
        }
        if record.actors.len() == 1
            && record.actor.as_ref().is_some_and(|actor| is_same(actor, &record.actors[0]))
        {
            record.actors.clear();
        }
        record.differences = differences;
        let more = record.detail.contains_key(MORE_ACTORS);
        let (action, allowed) = self.decide_of_all(id, record.actor.as_ref(), &record.actors, more, told);
        record.detail.insert("policy".into(), serde_json::to_value(action).unwrap_or_default());
        if allowed {
            record.detail.insert("allowed".into(), true.into());
        }
        let since = self.drifts.get(&name).map_or_else(|| record.time.clone(), |open| open.since.clone());
        let source = record.source.clone();
        self.telemetry.drift(
            &name,
            &record.differences,
            source.as_deref(),
            record.actor.as_ref(),
            self.clock.now(),
        );
        if action == Action::Revert {
            self.ask_revert(id);
        }
        let open = Open {
            differences: record.differences.clone(),
            since,
            actor: record.actor.clone(),
            actors: record.actors.clone(),
            more,
            allowed,
            source: source.unwrap_or_default(),
            action: Some(action),
            found: record.after.clone(),
            seen: true,
        };
        self.drifts.set(name, open);
        if let Some(sight) = sight {
            self.want_diff(id, sight);
        }
        self.group.push(record);
    }

    /// Whether a drift was told already, by the last run or the last daemon. It goes on as it was, under the policy that
    /// counts now.
    fn resumed(&mut self, id: u32, name: &ThingName, differences: &[Difference]) -> bool {
        let Some(open) = self.drifts.resume(name, differences) else { return false };
        let (actor, actors, more) = (open.actor.clone(), open.actors.clone(), open.more);
        let told = open.allowed;
        let (action, _) = self.decide_of_all(id, actor.as_ref(), &actors, more, told);
        self.drifts.decide(name, action);
        if action == Action::Revert {
            self.ask_revert(id);
        }
        true
    }

    /// What the policy says of a drift of a thing by somebody, and whether they are allowed to make it. `told`: they were
    /// when it was told, and the executable was the right one then.
    fn decide(&mut self, id: u32, actor: Option<&Actor>, told: bool) -> (Action, bool) {
        let thing = self.desired.expectations[id as usize].thing.path();
        // An older version's record may name us; see [`Agent::drifted`].
        let subject = actor.filter(|actor| !actor.holdfast).map(Subject::from);
        let policy = &self.desired.policy;
        let without = subject.map(|subject| Subject { exe: None, ..subject });
        let decision = policy.decide(&thing, without.as_ref());
        if decision.allowed {
            return (decision.action, true);
        }
        let by_exe = policy.decide(&thing, subject.as_ref());
        // Only a file that the policy names is looked at, and not what anybody executes.
        if by_exe.allowed && (told || actor.is_some_and(|actor| self.looker.is_host_file(actor))) {
            return (by_exe.action, true);
        }
        (decision.action, false)
    }

    /// The same of all who could have made it, of whom each has to be allowed. `more`: there are some that are not named.
    fn decide_of_all(
        &mut self,
        id: u32,
        actor: Option<&Actor>,
        actors: &[Actor],
        more: bool,
        told: bool,
    ) -> (Action, bool) {
        for actor in actors {
            let decided = self.decide(id, Some(actor), told);
            if !decided.1 {
                return decided;
            }
        }
        self.decide(id, actor.filter(|_| !more), told)
    }

    /// Says whose change a record is about, and when it was.
    fn ascribe(&self, record: &mut Record, deed: &Deed) {
        record.time = self.wall(deed.at_ns);
        record.monotonic_ns = deed.at_ns;
        record.operation = Some(deed.operation.to_owned());
        record.actor.clone_from(&deed.actor);
    }

    fn touched(&mut self, id: u32, sight: Option<&Sight>) {
        let record = self.describe(RecordKind::Touched, id, sight);
        self.telemetry.touched(record.path.as_deref().unwrap_or_default(), record.actor.as_ref());
        self.group.push(record);
    }

    fn recovered(&mut self, id: u32, sight: Option<&Sight>) {
        let mut record = self.describe(RecordKind::Recovered, id, sight);
        let name = self.name(id);
        if let Some(open) = self.drifts.close(&name) {
            record.detail.insert("since".into(), open.since.into());
        }
        self.reverts.done(id);
        self.telemetry.recovered(&name);
        self.group.push(record);
    }

    fn gap(&mut self, gap: &Gap, opened: bool) {
        let mut record = self.log.record(RecordKind::Gap);
        record.detail.insert("reason".into(), gap.reason.clone().into());
        record.detail.insert("number".into(), gap.number.into());
        if let Scope::Thing(id) = gap.scope {
            record.set_name(self.name(id));
        }
        record.detail.insert("since".into(), self.wall(gap.since).into());
        if let Some(until) = gap.until {
            record.detail.insert("until".into(), self.wall(until).into());
        }
        record.verdict = Some(if opened { VerdictKind::Unknown } else { self.detector.node_verdict() });
        let reason = known_reason(&gap.reason);
        if opened {
            self.telemetry.gap_opened(reason);
        } else {
            self.telemetry.gap_closed(reason);
        }
        self.group.push(record);
    }

    /// How the node stands now.
    pub(super) fn status(&self) -> Status {
        // Also what was open before and was not looked at since: nobody has seen it recover.
        let drifted = self.drifts.iter().map(|(name, open)| Drifted {
            path: name.path.clone(),
            thing: Some(name.kind),
            differences: open.differences.clone(),
            since: open.since.clone(),
            actor: open.actor.clone(),
            source: open.source.clone(),
        });
        let drifted = drifted.collect();
        let count = |verdict| self.detector.count(verdict) as u64;
        let counters = BTreeMap::from([
            ("managed".to_owned(), self.desired.expectations.len() as u64),
            ("compliant".to_owned(), count(VerdictKind::Compliant)),
            ("drifted".to_owned(), count(VerdictKind::Drifted)),
            ("unknown".to_owned(), count(VerdictKind::Unknown)),
            ("records_lost".to_owned(), self.lost_records),
        ]);
        let gaps = self
            .detector
            .gaps()
            .map(|gap| OpenGap {
                since: self.wall(gap.since),
                until: None,
                reason: gap.reason.clone(),
                path: match gap.scope {
                    Scope::Thing(id) => Some(self.name(id).path),
                    Scope::All | Scope::Some => None,
                },
            })
            .collect();
        Status {
            schema: SCHEMA.to_owned(),
            verdict: self.detector.node_verdict(),
            degraded: self.drifts.iter().any(|(_, open)| open.action >= Some(Action::Degrade)),
            backend: self.mode.name().to_owned(),
            capabilities: self.capabilities.clone(),
            time: rfc3339(self.clock.now()),
            pid: std::process::id(),
            boot_id: self.boot_id.clone(),
            beat_seconds: self.options.canary_every.as_secs(),
            sources: self.desired.sources.clone(),
            config_refused: self.readiness.reasons().remove(CONFIG),
            drifted,
            gaps,
            node: self.node.clone(),
            waiting: self.desired.waiting.iter().cloned().map(Into::into).collect(),
            counters,
        }
    }
}

/// Adds whoever made a drift that is still open to those who changed the thing since: what is found now may be theirs.
fn with_earlier(record: &mut Record, open: &Open) {
    let mut actors: Vec<Actor> =
        if open.actors.is_empty() { open.actor.iter().map(brief).collect() } else { open.actors.clone() };
    let since = if record.actors.is_empty() {
        record.actor.iter().map(brief).collect()
    } else {
        record.actors.clone()
    };
    for actor in since {
        actors.retain(|earlier| !is_same(earlier, &actor));
        actors.push(actor);
    }
    // The newest are named.
    let beyond = actors.len().saturating_sub(ACTORS);
    actors.drain(..beyond);
    // Nobody knows who made a drift that has no actor.
    if (beyond > 0 || open.more || open.actor.is_none()) && !record.detail.contains_key(MORE_ACTORS) {
        record.detail.insert(MORE_ACTORS.into(), beyond.max(1).into());
    }
    record.actors = actors;
}

/// Whether two are one process.
fn is_same(one: &Actor, other: &Actor) -> bool {
    (one.pid, one.start_ns) == (other.pid, other.start_ns)
}

/// The metric's label is a word from a closed list.
fn known_reason(reason: &str) -> &'static str {
    const KNOWN: [&str; 15] = [
        "fanotify-overflow",
        look::UNWATCHED,
        look::FOREIGN,
        look::HANGS,
        "mounts-unreadable",
        "sensor-start",
        LOG_CUT,
        "entry-removed",
        "recursion-missed",
        "ftrace-disabled",
        "ftrace-opened",
        "canary-not-seen",
        "canary-not-heard",
        "canary-not-written",
        "canary-not-enrolled",
    ];
    KNOWN.into_iter().find(|known| *known == reason).unwrap_or("other")
}
