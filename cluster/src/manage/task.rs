//! The task that takes the steps.
//!
//! In: the newest Node, progress and finding. Out: what the writer publishes, and requests to the sensor, one at a time.

use super::configs::Configs;
use super::plan::{Planned, PlannedOutcome, outcome};
use super::steps::{NodeDrift, Situation, Then, next};
use super::{annotations, progress};
use crate::api::DriftState;
use crate::backoff::Backoff;
use crate::publish::{AnnotationWrite, ManagedNode, NodeMetadata, WrittenNode, limited};
use crate::reads::Reads;
use crate::reports::{NodeFinding, SensorState};
use crate::socket::{SensorError, SensorSocket};
use kube::Client;
use sensor_model::socket::{ApplyPhase, ApplyProgress, SocketErrorReason};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// First pause after a failed attempt.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause after failed attempts, as the Machine Config Operator's daemon has it.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// How long a drain may take before the node is degraded, as with the Machine Config Operator's daemon.
const LONGEST_DRAIN: Duration = Duration::from_hours(1);
/// How long an answer about the cordon is believed. An admin may cordon the node while the request for the drain is not written.
const CORDON_KNOWN: Duration = Duration::from_secs(30);
/// The message of the missing MachineConfig has its full kind, as the API server writes it.
const CONFIG_KIND: &str = "machineconfig.machineconfiguration.openshift.io";

/// What the task listens to, and what it tells the writer.
#[derive(Debug)]
pub struct ManageChannels {
    /// The Node, from the watch.
    pub node: watch::Receiver<Option<NodeMetadata>>,
    /// The sensor's progress.
    pub progress: watch::Receiver<Option<ApplyProgress>>,
    /// What the sensor found.
    pub findings: watch::Receiver<Option<NodeFinding>>,
    /// What the writer has written.
    pub written: watch::Receiver<WrittenNode>,
    /// What the writer is to write.
    pub managed: watch::Sender<Option<ManagedNode>>,
}

/// The task of a managed node.
#[derive(Debug)]
pub struct Manager {
    name: String,
    reads: Reads,
    configs: Configs,
    socket: SensorSocket,
    channels: ManageChannels,
    planned: Option<Planned>,
    /// Whether the Node was cordoned, and when it was asked for.
    cordon: Option<(bool, Instant)>,
    /// The desired config that the fields above and below are about.
    desired: Option<String>,
    drift: NodeDrift,
    backoff: Backoff,
    not_before: Option<Instant>,
    /// When the last attempt began or failed.
    attempted: Option<Instant>,
    /// The drain that the node waits for, and since when at least. A restart begins anew.
    drain: Option<(String, Instant)>,
    /// The Machine Config Operator's daemon runs on the node.
    is_left_alone: bool,
    /// The version of the Node that the watch had last.
    watched: u64,
    /// The version in the answer to a write of before etcd was restored to an earlier version, or the Node was made anew.
    outdated: Option<u64>,
}

impl Manager {
    /// The task of a node. Nothing is asked or written yet.
    pub fn new(
        client: &Client,
        reads: Reads,
        name: String,
        socket: SensorSocket,
        channels: ManageChannels,
    ) -> Self {
        Self {
            name,
            reads,
            configs: Configs::new(client),
            socket,
            channels,
            planned: None,
            cordon: None,
            desired: None,
            drift: NodeDrift::Unknown,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            not_before: None,
            attempted: None,
            drain: None,
            is_left_alone: false,
            watched: 0,
            outdated: None,
        }
    }

    /// Takes steps until a channel is closed.
    pub async fn run(mut self) {
        // The first progress may be a failure of before the start: it is shown before it is tried again.
        self.channels.progress.mark_changed();
        loop {
            self.look();
            let then = self.show();
            match then {
                Then::Wait => {}
                Then::Plan => {
                    self.plan().await;
                    continue;
                }
                Then::LookAtCordon => {
                    self.look_at_cordon().await;
                    continue;
                }
                Then::Apply(id) => {
                    self.apply(&id).await;
                    continue;
                }
            }
            if !self.changed().await {
                return;
            }
        }
    }

    /// Takes in what changed.
    fn look(&mut self) {
        self.note_version();
        let desired = self.node().and_then(|node| node.annotations.get(annotations::DESIRED_CONFIG).cloned());
        if desired != self.desired {
            if self.desired.is_none() {
                // The progress may have been known before the Node, and be a failure of this config.
                self.channels.progress.mark_changed();
            }
            self.desired = desired;
            self.cordon = None;
            self.planned = None;
            self.may_attempt_now();
        }
        if self.channels.progress.has_changed().unwrap_or_default() {
            let progress = self.channels.progress.borrow_and_update().clone();
            let failed = progress.as_ref().is_some_and(|progress| {
                progress.phase == ApplyPhase::Failed && progress.config == self.desired
            });
            if failed {
                self.pause();
            }
            let is_left_alone = progress.is_some_and(|progress| progress.is_managed_by_operator);
            if is_left_alone != self.is_left_alone {
                self.is_left_alone = is_left_alone;
                if is_left_alone {
                    tracing::warn!(
                        "The Machine Config Operator's daemon runs on this node: Holdfast leaves its annotations alone, and applies nothing."
                    );
                } else {
                    tracing::info!(
                        "The Machine Config Operator's daemon does not run any more: Holdfast manages this node."
                    );
                }
            }
        }
        let node = self.node();
        let awaited = node.as_ref().and_then(|node| annotations::awaited_drain(&node.annotations));
        self.drain = awaited.map(|request| match self.drain.take() {
            Some((known, since)) if known == *request => (known, since),
            _ => (request.clone(), Instant::now()),
        });
        let drift = drift_of(self.channels.findings.borrow_and_update().as_ref());
        let is_over = matches!(drift, NodeDrift::InSync | NodeDrift::NoneKnown);
        if matches!(self.drift, NodeDrift::Drifted(_)) && is_over {
            // The update that the drift blocked need not wait for the end of a long pause.
            self.may_attempt_soon();
        }
        self.drift = drift;
        if self.may_attempt() && !matches!(self.planned_outcome(), Some(PlannedOutcome::Plan { .. })) {
            self.planned = None;
        }
    }

    fn planned_outcome(&self) -> Option<&PlannedOutcome> {
        self.planned.as_ref().map(|planned| &planned.outcome)
    }

    /// Notes whether the version of the Node went back. Then the answers to the writes of before have later versions, and are outdated.
    fn note_version(&mut self) {
        let watched = self.channels.node.borrow().as_ref().map_or(0, |node| node.resource_version);
        if watched < self.watched {
            self.outdated = self.channels.written.borrow().node.as_ref().map(|node| node.resource_version);
        }
        self.watched = watched;
    }

    /// The newest Node of the watch and of the answers to our own writes.
    fn node(&self) -> Option<NodeMetadata> {
        let watched = self.channels.node.borrow().clone();
        let written = self.channels.written.borrow().node.clone();
        match (watched, written) {
            (Some(watched), Some(written))
                if written.resource_version > watched.resource_version
                    && self.outdated != Some(written.resource_version) =>
            {
                Some(written)
            }
            (watched, _) => watched,
        }
    }

    /// Lets the writer publish what is wanted. Gives what to do if the cluster sees it already.
    fn show(&mut self) -> Then {
        self.channels.written.mark_unchanged();
        self.channels.node.mark_unchanged();
        self.note_version();
        let Some(node) = self.node() else { return Then::Wait };
        let published = self.channels.written.borrow().plan.clone();
        let progress = self.channels.progress.borrow().clone();
        let step = next(&Situation {
            node: &self.name,
            annotations: &node.annotations,
            progress: progress.as_ref(),
            planned: self.planned.as_ref(),
            drift: &self.drift,
            may_attempt: self.may_attempt(),
            published: published.as_ref(),
            is_cordoned: self.is_cordoned(),
            is_drain_overdue: self.drain_due().is_some_and(|due| due <= Instant::now()),
        });
        let is_seen = step.wanted.is_seen(&node.annotations, published.as_ref());
        let is_done = step
            .wanted
            .annotations
            .get(annotations::STATE)
            .is_some_and(|state| state == annotations::state::DONE);
        if is_seen && is_done {
            self.backoff.reset();
        }
        let removed = step.wanted.surplus(&node.annotations);
        let annotations = (!step.wanted.has_annotations(&node.annotations)).then_some(AnnotationWrite {
            annotations: step.wanted.annotations,
            removed,
            based_on: node.resource_version,
            events: step.wanted.events,
        });
        let managed = Some(ManagedNode { plan: step.wanted.plan, annotations });
        self.channels.managed.send_if_modified(|last| {
            let is_other = *last != managed;
            *last = managed;
            is_other
        });
        if is_seen { step.then } else { Then::Wait }
    }

    /// Waits for the next change. Gives whether there may be another one.
    async fn changed(&mut self) -> bool {
        let now = Instant::now();
        let dues = [self.not_before, self.drain_due(), self.cordon_due()];
        let due = dues.into_iter().flatten().filter(|due| *due > now).min();
        let channels = &mut self.channels;
        tokio::select! {
            changed = channels.node.changed() => changed.is_ok(),
            changed = channels.written.changed() => changed.is_ok(),
            changed = channels.findings.changed() => changed.is_ok(),
            changed = channels.progress.changed() => {
                channels.progress.mark_changed();
                changed.is_ok()
            }
            () = sleep_until(due.unwrap_or(now)), if due.is_some() => true,
        }
    }

    /// When the present drain has taken too long.
    fn drain_due(&self) -> Option<Instant> {
        self.drain.as_ref().map(|(_, since)| *since + LONGEST_DRAIN)
    }

    /// When the answer about the cordon is too old.
    fn cordon_due(&self) -> Option<Instant> {
        self.cordon.map(|(_, asked)| asked + CORDON_KNOWN)
    }

    /// Whether the Node is cordoned; `None` if it was not asked lately.
    fn is_cordoned(&self) -> Option<bool> {
        let (is_cordoned, asked) = self.cordon?;
        (asked.elapsed() < CORDON_KNOWN).then_some(is_cordoned)
    }

    fn may_attempt(&self) -> bool {
        self.not_before.is_none_or(|due| due <= Instant::now())
    }

    fn may_attempt_now(&mut self) {
        self.not_before = None;
        self.backoff.reset();
    }

    /// The next attempt is after the shortest pause. The later pauses keep their length, so a user who changes a file and changes it back in a
    /// loop causes no more attempts than the shortest pause allows.
    fn may_attempt_soon(&mut self) {
        let soon = self.attempted.map(|attempted| attempted + FIRST_PAUSE);
        self.not_before = self.not_before.zip(soon).map(|(due, soon)| due.min(soon));
    }

    /// The next attempt is after a pause.
    fn pause(&mut self) {
        let now = Instant::now();
        self.attempted = Some(now);
        self.not_before = Some(now + self.backoff.next_pause());
    }

    /// Hands the desired config to the sensor.
    async fn plan(&mut self) {
        let Some(name) = self.desired.clone() else { return };
        let outcome = match self.configs.desired(&name).await {
            Ok(Some(config)) => match self.socket.put_config(&config).await {
                Ok(planned) => Some(outcome(&planned)),
                Err(error) => Self::not_planned(&error),
            },
            Ok(None) => Some(PlannedOutcome::Refused(format!("{CONFIG_KIND} \"{name}\" not found"))),
            Err(error) => {
                let error = anyhow::Error::from(error);
                tracing::warn!(
                    error = format!("{error:#}"),
                    config = name,
                    "The desired config was not read."
                );
                None
            }
        };
        let goes_on = match &outcome {
            Some(PlannedOutcome::Plan { plan, is_forced, .. }) => {
                // Drift keeps the node from being drained, until it is over or the plan is a forced one.
                *is_forced || !plan.drain || !matches!(self.drift, NodeDrift::Drifted(_))
            }
            _ => false,
        };
        if !goes_on {
            self.pause();
        }
        self.planned = outcome.map(|outcome| Planned { config: name, outcome });
    }

    /// Why the sensor has no plan. `None` if it may have one later.
    fn not_planned(error: &SensorError) -> Option<PlannedOutcome> {
        let SensorError::Refused { error: refused, .. } = error else {
            tracing::debug!(%error, "the sensor does not take the config");
            return None;
        };
        match refused.reason {
            SocketErrorReason::Refused | SocketErrorReason::TooLarge => {
                Some(PlannedOutcome::Refused(refused.error.clone()))
            }
            _ if progress::is_other_mode(error) => None,
            _ => {
                tracing::debug!(%error, "the sensor does not take the config now");
                None
            }
        }
    }

    async fn look_at_cordon(&mut self) {
        let asked = Instant::now();
        match limited("Node", self.reads.node(&self.name)).await {
            Ok(node) => {
                let spec = node.spec.unwrap_or_default();
                self.cordon = Some((spec.unschedulable.unwrap_or_default(), asked));
            }
            Err(error) => {
                tracing::debug!(%error, "the Node was not read");
                tokio::time::sleep(self.backoff.next_pause()).await;
            }
        }
    }

    /// Orders the apply.
    async fn apply(&mut self, id: &str) {
        // Until the progress shows the order, another one would be a repetition.
        self.pause();
        // The result of the attempt may make another plan, with a drain of its own.
        self.planned = None;
        self.cordon = None;
        match self.socket.apply(id).await {
            Ok(_) => tracing::info!(config = self.desired, "The sensor applies the config."),
            Err(error) => {
                let error = anyhow::Error::from(error);
                tracing::warn!(
                    error = format!("{error:#}"),
                    config = self.desired,
                    "The sensor did not take the order."
                );
            }
        }
    }
}

/// Whether the node matches its present config, by the sensor's newest status.
fn drift_of(finding: Option<&NodeFinding>) -> NodeDrift {
    let Some(finding) = finding.filter(|found| matches!(found.sensor, SensorState::Answers { .. })) else {
        return NodeDrift::Unknown;
    };
    match finding.status.state {
        DriftState::InSync => NodeDrift::InSync,
        // A policy may only warn.
        DriftState::Drifted if !finding.status.degraded => NodeDrift::InSync,
        DriftState::Drifted => {
            NodeDrift::Drifted(finding.text.clone().unwrap_or_else(|| "the node has drifted".to_owned()))
        }
        DriftState::Unknown if finding.has_no_known_drift() => NodeDrift::NoneKnown,
        // Mode `manage` never has an update by another program.
        DriftState::Updating | DriftState::Unknown => NodeDrift::Unknown,
    }
}

#[cfg(test)]
mod tests;
