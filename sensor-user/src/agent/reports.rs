//! From the detector's reports to the outside: forensic records, metrics, status.

use super::look::Sight;
use super::status::{Drifted, OpenGap, SCHEMA, Status};
use super::{Agent, rfc3339};
use crate::observation::snapshot;
use sensor_model::difference::Difference;
use sensor_model::drift_policy::{Action, Subject};
use sensor_model::protocol::{Gap, Report, Scope};
use sensor_model::record::{Actor, Record, RecordKind};
use sensor_model::verdict::VerdictKind;
use std::collections::BTreeMap;
use std::time::Duration;

/// An open drift.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) differences: Vec<Difference>,
    pub(super) since: String,
    pub(super) actor: Option<Actor>,
    pub(super) action: Action,
}

/// The verdict of the node, and how many things are compliant, drifted and unknown.
pub(super) type Standing = (VerdictKind, [usize; 3]);

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

    /// After each look: forgets who changed a thing that is quiet again, and closes drifts that were
    /// open when the last daemon stopped.
    pub(super) fn settled(&mut self, id: u32, sight: &Sight) {
        let Some(standing) = self.detector.standing(id) else { return };
        if standing.verdict != VerdictKind::Compliant {
            return;
        }
        let path = self.path(id);
        if self.restored.remove(&path).is_some() {
            self.recovered(id, Some(sight));
            self.changed = true;
        }
    }

    /// Forgets who changed a thing once it is decided and quiet: the next episode has its own actor.
    pub(super) fn forget(&mut self, id: u32) {
        if self.detector.standing(id).is_some_and(|standing| !standing.in_flux) {
            self.changes.remove(&id);
        }
    }

    fn path(&self, id: u32) -> String {
        self.desired.expectations[id as usize].thing.path().display().to_string()
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
        if let Some(noted) = &noted {
            record.time = self.wall(noted.at_ns);
            record.monotonic_ns = noted.at_ns;
        }
        record.path = Some(self.path(id));
        record.operation =
            Some(noted.as_ref().map_or_else(|| "sweep".to_owned(), |noted| noted.operation.to_owned()));
        record.actor = noted.as_ref().and_then(|noted| noted.actor.clone());
        record.source = Some(self.desired.expectations[id as usize].source.machine_config.clone());
        record.after = sight.and_then(|sight| snapshot(&sight.observation));
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
        let mut record = self.describe(RecordKind::Drift, id, sight);
        let path = self.path(id);
        record.differences = sight.map(|sight| sight.differences.clone()).unwrap_or_default();
        let subject = record.actor.as_ref().map(Subject::from);
        let thing = self.desired.expectations[id as usize].thing.path();
        let decision = self.desired.policy.decide(&thing, subject.as_ref());
        record.detail.insert("policy".into(), serde_json::to_value(decision.action).unwrap_or_default());
        if decision.allowed {
            record.detail.insert("allowed".into(), true.into());
        }
        let action = decision.action;
        let restored = self.restored.remove(&path);
        let since = match (&restored, self.drifts.get(&id)) {
            (_, Some(open)) => open.since.clone(),
            (Some(drift), None) => rfc3339(drift.since),
            (None, None) => record.time.clone(),
        };
        let source = record.source.clone();
        self.telemetry.drift(
            &path,
            &record.differences,
            source.as_deref(),
            record.actor.as_ref(),
            self.clock.now(),
        );
        if action == Action::Revert {
            self.reverts.push(id);
        }
        let open =
            Open { differences: record.differences.clone(), since, actor: record.actor.clone(), action };
        self.drifts.insert(id, open);
        self.group.push(record);
    }

    fn touched(&mut self, id: u32, sight: Option<&Sight>) {
        let record = self.describe(RecordKind::Touched, id, sight);
        self.telemetry.touched(&self.path(id), record.actor.as_ref());
        self.group.push(record);
    }

    fn recovered(&mut self, id: u32, sight: Option<&Sight>) {
        let mut record = self.describe(RecordKind::Recovered, id, sight);
        if let Some(open) = self.drifts.remove(&id) {
            record.detail.insert("since".into(), open.since.into());
        }
        self.telemetry.recovered(&self.path(id));
        self.group.push(record);
    }

    fn gap(&mut self, gap: &Gap, opened: bool) {
        let mut record = self.log.record(RecordKind::Gap);
        record.detail.insert("reason".into(), gap.reason.clone().into());
        record.detail.insert("number".into(), gap.number.into());
        if let Scope::Thing(id) = gap.scope {
            record.path = Some(self.path(id));
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
        let mut drifted: Vec<Drifted> = self
            .drifts
            .iter()
            .map(|(id, open)| Drifted {
                path: self.path(*id),
                differences: open.differences.clone(),
                since: open.since.clone(),
                actor: open.actor.clone(),
                source: self.desired.expectations[*id as usize].source.machine_config.clone(),
            })
            .collect();
        drifted.sort_by(|a, b| a.path.cmp(&b.path));
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
            .map(|gap| OpenGap { since: self.wall(gap.since), until: None, reason: gap.reason.clone() })
            .collect();
        Status {
            schema: SCHEMA.to_owned(),
            verdict: self.detector.node_verdict(),
            degraded: self.drifts.values().any(|open| open.action >= Action::Degrade),
            backend: self.mode.name().to_owned(),
            capabilities: self.capabilities.clone(),
            time: rfc3339(self.clock.now()),
            pid: std::process::id(),
            boot_id: self.boot_id.clone(),
            sources: self.desired.sources.clone(),
            drifted,
            gaps,
            node: self.node.clone(),
            counters,
        }
    }
}

/// The metric's label is a word from a closed list.
fn known_reason(reason: &str) -> &'static str {
    const KNOWN: [&str; 9] = [
        "fanotify-overflow",
        "sensor-start",
        "entry-removed",
        "recursion-missed",
        "ftrace-disabled",
        "ftrace-opened",
        "canary-not-seen",
        "canary-not-heard",
        "canary-not-enrolled",
    ];
    KNOWN.into_iter().find(|known| *known == reason).unwrap_or("other")
}
