//! The picture of the node: the verdict, the open drifts and gaps, and how the node stands with its config.
//!
//! In: the events of the loop. Out: the status, and what the metrics show of drift. Every other way to report the node reads this
//! and nothing else. It decides nothing.

use super::forensic;
use super::metrics::Telemetry;
use super::status_file::Numbers;
use crate::agent::open_drift::{MORE_ACTORS, OpenDrift, OpenDrifts};
use crate::agent::reports::{AgentEvent, DaemonFacts, HookMode, NodeCounts, RunFacts};
use crate::clock::{Clock, rfc3339};
use jiff::Timestamp;
use sensor_model::drift_policy::DriftAction;
use sensor_model::node_state::Standing;
use sensor_model::protocol::Gap;
use sensor_model::record::ThingName;
use sensor_model::status::{DriftedThing, NodeStatus, OpenGap, SCHEMA};
use sensor_model::verdict::VerdictKind;
use std::collections::BTreeMap;

/// How the node is.
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
    /// The status shows something else.
    changed: bool,
}

impl Default for Picture {
    fn default() -> Self {
        Self {
            daemon: DaemonFacts::default(),
            run: RunFacts {
                mode: HookMode::Fanotify,
                sources: Vec::new(),
                waiting: Vec::new(),
                refused: None,
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
    /// A daemon starts, with the drifts that the log says are open.
    pub(super) fn open(
        &mut self,
        daemon: DaemonFacts,
        drifts: BTreeMap<ThingName, forensic::OpenDrift>,
        telemetry: &Telemetry,
    ) {
        self.daemon = daemon;
        self.drifts = drifts.into_iter().map(|(name, logged)| (name, restored(logged))).collect();
        self.last_drift = self.drifts.iter().map(|(_, open)| open.since).max();
        telemetry.open_drifts(&self.drifts, self.last_drift);
    }

    /// The open drifts.
    pub fn drifts(&self) -> &OpenDrifts {
        &self.drifts
    }

    /// The numbers of the last turn.
    pub(super) fn count(&mut self, counts: &NodeCounts) {
        self.counts = *counts;
    }

    /// How many things stand how.
    pub(super) fn numbers(&self) -> Numbers {
        let NodeCounts { verdict, compliant, drifted, unknown, .. } = self.counts;
        (verdict, [compliant, drifted, unknown])
    }

    /// Whether the status shows something else since the last call.
    pub(super) fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Takes an event, and counts it in the metrics.
    pub(super) fn take(&mut self, event: AgentEvent<'_>, telemetry: &Telemetry, clock: &dyn Clock) {
        match event {
            AgentEvent::RunBegan(run) => {
                self.run = run;
                self.gaps.clear();
                self.drifts.unconfirm();
                self.changed = true;
                telemetry.begins();
            }
            AgentEvent::RunEnded | AgentEvent::NotReady(..) | AgentEvent::Ready(_) => {}
            AgentEvent::BackendRuns(mode, unseen) => telemetry.backend(mode, unseen),
            AgentEvent::Hook { name, mode, attached } => telemetry.hook(name, mode, attached),
            AgentEvent::ConfigsRead(successful) => telemetry.reloaded(successful),
            AgentEvent::ChangeReceived(operation) => telemetry.event(operation),
            AgentEvent::ChangesLost(stage, reason, count) => telemetry.lost(stage, reason, count),
            AgentEvent::CanarySeen => telemetry.canary(clock.now()),
            AgentEvent::ThingVerified(took) => telemetry.verified(took),
            AgentEvent::AllVerified(things, took) => {
                telemetry.verified_all(things, took, clock.now());
                self.changed = true;
            }
            AgentEvent::Verdict(verdict, latency) => telemetry.verdict(verdict, latency),
            AgentEvent::Drifted(name, open) => self.drifted(name, *open, telemetry, clock.now()),
            AgentEvent::DriftConfirmed(name, action) => {
                self.drifts.confirm(name, action);
                self.changed = true;
            }
            AgentEvent::Touched(path, actor) => telemetry.touched(path, actor),
            AgentEvent::Recovered(name) => {
                self.changed = true;
                if self.drifts.remove(name).is_some() {
                    telemetry.recovered(name);
                    telemetry.open_drifts(&self.drifts, self.last_drift);
                }
            }
            AgentEvent::GapOpened(gap, name) => {
                telemetry.gap_opened(gap.reason);
                self.gaps.insert(gap.number, open_gap(gap, name, clock));
                self.changed = true;
            }
            AgentEvent::GapClosed(gap) => {
                telemetry.gap_closed(gap.reason);
                self.gaps.remove(&gap.number);
                self.changed = true;
            }
            AgentEvent::Reverted(path, result) => telemetry.reverted(path, result),
            AgentEvent::Counted(kind, count) => telemetry.folded(kind, count),
            AgentEvent::NodeState(standing) => {
                let is_new = standing != self.node;
                if let Some(standing) = &standing {
                    telemetry.node_state(standing.state, standing.wait);
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

    fn drifted(&mut self, name: ThingName, open: OpenDrift, telemetry: &Telemetry, now: Timestamp) {
        if telemetry.drift(&name, self.drifts.get(&name), &open) {
            self.last_drift = self.last_drift.max(Some(now));
        }
        self.drifts.insert(name, open);
        self.changed = true;
        telemetry.open_drifts(&self.drifts, self.last_drift);
    }

    /// What the status file says now.
    pub fn status(&self, clock: &dyn Clock) -> NodeStatus {
        // Drifts that no look of this run has confirmed are open, too: no look has seen them recover.
        let drifted = self.drifts.iter().map(|(name, open)| DriftedThing {
            path: name.path.clone(),
            thing: Some(name.kind),
            differences: open.differences.clone(),
            since: rfc3339(open.since),
            actor: open.actor.clone(),
            source: open.source.clone(),
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
            backend: self.run.mode.name().to_owned(),
            capabilities: self.daemon.capabilities.clone(),
            time: rfc3339(clock.now()),
            pid: std::process::id(),
            boot_id: self.daemon.boot_id.clone(),
            beat_seconds: self.daemon.beat.as_secs(),
            sources: self.run.sources.clone(),
            config_refused: self.run.refused.clone(),
            drifted: drifted.collect(),
            gaps: self.gaps.values().cloned().collect(),
            node: self.node.clone(),
            waiting: self.run.waiting.iter().cloned().map(Into::into).collect(),
            counters: counters.map(|(name, count)| (name.to_owned(), count)).into(),
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

/// What the log says of a drift.
fn restored(forensic::OpenDrift { since, last }: forensic::OpenDrift) -> OpenDrift {
    OpenDrift {
        allowed: last.detail.get("allowed").is_some_and(|allowed| *allowed == true),
        differences: last.differences,
        since: since.parse().unwrap_or_default(),
        more_actors: last.detail.contains_key(MORE_ACTORS),
        actor: last.actor,
        actors: last.actors,
        source: last.source.unwrap_or_default(),
        action: None,
        found: last.after,
        confirmed: false,
    }
}
