//! The picture of the node: the verdict, the open drifts and gaps, and the state of its config.
//!
//! In: the reports of the loop, and the numbers of each turn. Out: the status. Each report also goes to the metrics from here. The
//! status reads nothing else. The forensic log takes the loop's records, and `/readyz` has a state of its own. It decides nothing.

use super::forensic;
use super::metrics::Metrics;
use super::status_file::VerdictCounts;
use crate::agent::open_drift::{MORE_ACTORS, OpenDrift, OpenDrifts, POLICY, SOURCE_KIND, STRENGTH};
use crate::agent::reports::{AgentReport, BackendName, DaemonFacts, NodeCounts, RunFacts};
use crate::clock::{Clock, rfc3339};
use jiff::Timestamp;
use sensor_model::drift_policy::DriftAction;
use sensor_model::node_state::Standing;
use sensor_model::protocol::Gap;
use sensor_model::record::{Record, ThingName};
use sensor_model::status::{DriftedThing, LeftOut, NodeStatus, OpenGap, SCHEMA};
use sensor_model::verdict::VerdictKind;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::Duration;

/// The picture of the node.
#[derive(Debug)]
pub struct Picture {
    daemon: DaemonFacts,
    run: RunFacts,
    counts: NodeCounts,
    drifts: OpenDrifts,
    /// When the newest drift was detected.
    last_drift: Option<Timestamp>,
    /// By their numbers, and so the oldest first.
    gaps: BTreeMap<u32, OpenGap>,
    node: Option<Standing>,
    /// The status has changed since [`Picture::has_changed`] was last called.
    changed: bool,
}

impl Default for Picture {
    fn default() -> Self {
        Self {
            daemon: DaemonFacts::default(),
            run: RunFacts {
                backend: BackendName::Fanotify,
                sources: Vec::new(),
                config: None,
                waiting: Vec::new(),
                refused: None,
                booted_image: None,
            },
            counts: NodeCounts {
                verdict: VerdictKind::Unknown,
                managed: 0,
                compliant: 0,
                drifted: 0,
                unknown: 0,
                records_lost: 0,
                is_verifying: false,
            },
            drifts: OpenDrifts::default(),
            last_drift: None,
            gaps: BTreeMap::new(),
            node: None,
            changed: false,
        }
    }
}

impl Picture {
    /// A daemon starts, with the open drifts of the log.
    pub(super) fn open(
        &mut self,
        daemon: DaemonFacts,
        drifts: BTreeMap<ThingName, forensic::LoggedDrift>,
        metrics: &Metrics,
    ) {
        self.daemon = daemon;
        self.drifts = drifts.into_iter().map(|(name, logged)| (name, from_log(logged))).collect();
        self.last_drift = self.drifts.iter().map(|(_, open)| open.since).max();
        metrics.open_drifts(&self.drifts, self.last_drift);
    }

    /// The open drifts.
    pub fn drifts(&self) -> &OpenDrifts {
        &self.drifts
    }

    /// The numbers of the last turn.
    pub(super) fn count(&mut self, counts: &NodeCounts) {
        self.counts = *counts;
    }

    /// The verdict of the node, and how many things have which verdict.
    pub(super) fn counts(&self) -> VerdictCounts {
        let NodeCounts { verdict, compliant, drifted, unknown, .. } = self.counts;
        VerdictCounts { verdict, compliant, drifted, unknown }
    }

    /// Whether the status has changed since the last call.
    pub(super) fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Takes a report, and counts it in the metrics.
    pub(super) fn take(&mut self, report: AgentReport<'_>, metrics: &Metrics, clock: &dyn Clock) {
        match report {
            AgentReport::RunBegan(run) => {
                self.run = run;
                self.gaps.clear();
                self.drifts.unconfirm();
                self.changed = true;
                metrics.run_begins();
            }
            AgentReport::RunEnded | AgentReport::NotReady(..) | AgentReport::Ready(_) => {}
            AgentReport::BackendRuns(backend, unseen) => metrics.backend(backend, unseen),
            AgentReport::Hook { name, attachment, attached } => metrics.hook(name, attachment, attached),
            AgentReport::ConfigsRead(successful) => metrics.reloaded(successful),
            AgentReport::ChangeReceived(operation) => metrics.event(operation),
            AgentReport::ChangesLost(stage, reason, count) => metrics.lost(stage, reason, count),
            AgentReport::CanarySeen => metrics.canary(clock.now()),
            AgentReport::ThingVerified(took) => metrics.verified(took),
            AgentReport::AllVerified(things, took) => {
                metrics.verified_all(things, took, clock.now());
                self.changed = true;
            }
            AgentReport::Verdict(verdict, latency) => metrics.verdict(verdict, latency),
            AgentReport::Drifted(name, open) => self.drifted(name, *open, metrics, clock.now()),
            AgentReport::DriftConfirmed(name, action, allowed) => {
                self.drifts.confirm(name, action, allowed);
                self.changed = true;
            }
            AgentReport::Touched(path, actor) => metrics.touched(path, actor),
            AgentReport::Recovered(name) => {
                self.changed = true;
                if let Some(open) = self.drifts.remove(name) {
                    // A clock that was set back meanwhile makes no negative time.
                    let after = Duration::try_from(clock.now().duration_since(open.since));
                    metrics.recovered(name, after.unwrap_or_default());
                    metrics.open_drifts(&self.drifts, self.last_drift);
                }
            }
            AgentReport::GapOpened(gap, name) => {
                metrics.gap_opened(gap.reason);
                self.gaps.insert(gap.number, open_gap(gap, name, clock));
                self.changed = true;
            }
            AgentReport::GapClosed(gap) => {
                metrics.gap_closed(gap.reason);
                self.gaps.remove(&gap.number);
                self.changed = true;
            }
            AgentReport::Reverted(path, result) => metrics.reverted(path, result),
            AgentReport::ImageScan(progress, stale_from) => metrics.image_scan(&progress, stale_from),
            AgentReport::UnknownExecution(operation) => metrics.unknown_execution(operation),
            AgentReport::WithoutRecord(kind, count) => metrics.without_record(kind, count),
            AgentReport::NodeState(standing) => {
                let is_new = standing != self.node;
                if let Some(standing) = &standing {
                    metrics.node_state(standing.state, standing.wait);
                    if is_new {
                        tracing::info!(
                            state = standing.state.as_str(),
                            reason = standing.reason,
                            waiting_for = standing.waiting_for,
                            "The state of the node's config changed."
                        );
                    }
                }
                self.changed |= is_new;
                self.node = standing;
            }
        }
    }

    fn drifted(&mut self, name: ThingName, open: OpenDrift, metrics: &Metrics, now: Timestamp) {
        if metrics.drift(&name, self.drifts.get(&name), &open) {
            self.last_drift = self.last_drift.max(Some(now));
        }
        self.drifts.insert(name, open);
        self.changed = true;
        metrics.open_drifts(&self.drifts, self.last_drift);
    }

    /// The status of the node now.
    pub fn status(&self, clock: &dyn Clock) -> NodeStatus {
        // Drifts of an earlier run that this run has not observed yet are still open.
        let drifted = self.drifts.iter().map(|(name, open)| DriftedThing {
            path: name.path.clone(),
            thing: Some(name.kind),
            differences: open.differences.clone(),
            since: rfc3339(open.since),
            actor: open.actor.clone(),
            source: open.source.clone(),
            source_kind: open.source_kind,
            strength: open.strength,
            action: open.action,
            allowed: open.allowed,
        });
        let NodeCounts { verdict, managed, compliant, drifted: drifts, unknown, records_lost, .. } =
            self.counts;
        let counters = [
            ("managed", managed as u64),
            ("compliant", compliant as u64),
            ("drifted", drifts as u64),
            ("unknown", unknown as u64),
            ("records_lost", records_lost),
        ];
        NodeStatus {
            schema: SCHEMA.to_owned(),
            verdict,
            degraded: self.drifts.iter().any(|(_, open)| open.action >= Some(DriftAction::Degrade)),
            backend: self.run.backend.as_str().to_owned(),
            capabilities: self.daemon.capabilities.clone(),
            time: rfc3339(clock.now()),
            pid: std::process::id(),
            boot_id: self.daemon.boot_id.clone(),
            beat_seconds: self.daemon.beat.as_secs(),
            sources: self.run.sources.clone(),
            config: self.run.config.clone(),
            config_refused: self.run.refused.clone(),
            booted_image: self.run.booted_image.clone(),
            drifted: drifted.collect(),
            gaps: self.gaps.values().cloned().collect(),
            node: self.node.clone(),
            waiting: self.run.waiting.iter().cloned().map(Into::into).collect(),
            counters: counters.map(|(name, count)| (name.to_owned(), count)).into(),
            left_out: LeftOut::default(),
        }
    }
}

fn open_gap(gap: &Gap, name: Option<ThingName>, clock: &dyn Clock) -> OpenGap {
    OpenGap {
        since: rfc3339(clock.wall_at(gap.since)),
        until: None,
        reason: gap.reason.to_string(),
        path: name.map(|name| name.path),
    }
}

/// An open drift as the log has it.
fn from_log(forensic::LoggedDrift { since, last }: forensic::LoggedDrift) -> OpenDrift {
    OpenDrift {
        source_kind: named(&last, SOURCE_KIND),
        strength: named(&last, STRENGTH),
        // Without it the node would not be degraded until the first verification has found the drift again.
        action: named(&last, POLICY),
        allowed: last.detail.get("allowed").is_some_and(|allowed| *allowed == true),
        differences: last.differences,
        since: since.parse().unwrap_or_default(),
        more_actors: last.detail.contains_key(MORE_ACTORS),
        actor: last.actor,
        actors: last.actors,
        source: last.source.unwrap_or_default(),
        found: last.after,
        confirmed: false,
    }
}

/// A value of a closed list in a record's `detail`. `None` without one, and for one of a newer daemon.
fn named<T: DeserializeOwned>(record: &Record, key: &str) -> Option<T> {
    T::deserialize(record.detail.get(key)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::report::metrics::BuildInfo;
    use sensor_model::record::{RecordKind, ThingKind};

    #[test]
    fn a_daemon_that_starts_degrades_the_node_by_the_drifts_of_the_log_before_it_has_verified_them() {
        let degraded = |actions: &[Option<&str>]| {
            let logged = actions.iter().enumerate().map(|(number, action)| {
                let mut last = Record::new(RecordKind::Drift, String::new(), String::new(), 0);
                let name = ThingName { kind: ThingKind::File, path: format!("/etc/{number}") };
                last.set_name(name.clone());
                last.detail.extend(action.map(|action| (POLICY.to_owned(), action.into())));
                (name, forensic::LoggedDrift { since: "2026-01-01T00:00:00Z".to_owned(), last })
            });
            let build = BuildInfo {
                version: String::new(),
                commit: String::new(),
                object: String::new(),
                kernel: String::new(),
            };
            let (mut picture, metrics) = (Picture::default(), Metrics::new(build, Timestamp::UNIX_EPOCH));
            picture.open(DaemonFacts::default(), logged.collect(), &metrics);
            let status = picture.status(&SystemClock);
            assert_eq!(status.drifted.len(), actions.len());
            status.degraded
        };
        assert!(degraded(&[Some("observe"), Some("degrade")]));
        assert!(degraded(&[Some("deny")]));
        // A newer daemon may have written an action that this one does not know.
        assert!(!degraded(&[Some("observe"), Some("another"), None]));
    }
}
