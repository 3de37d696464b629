//! The next step of a managed node.
//!
//! In: the Node's annotations, the sensor's progress, the plan, and what the sensor found. Out: the annotations and the plan that
//! the cluster is to see, and what to do once it sees them. It is pure, and the same situation always has the same step.

use super::annotations::{
    CORDONED_BEFORE, CURRENT_CONFIG, DESIRED_CONFIG, DESIRED_DRAIN, DRAIN, LAST_APPLIED_DRAIN, OURS, OVER,
    PLAN, POST_CONFIG_ACTION, REASON, REBOOTING, SINGLE_NODE, STATE, TOPOLOGY, drain, is_cordoned_by_us,
    is_drain_for, state, uncordon,
};
use super::plan::{Planned, PlannedOutcome, annotation};
use crate::api::ReportedPlan;
use crate::reports::NodeEvent;
use crate::text::fit;
use sensor_model::socket::{ApplyPhase, ApplyProgress};
use std::collections::BTreeMap;

/// Longest reason. The Machine Config Operator cuts at the same length.
const REASON_BYTES: usize = 2000;
/// Longest note of an Event that the API server accepts.
const NOTE_BYTES: usize = 1000;

/// Whether the node matches its present config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeDrift {
    /// It does.
    InSync,
    /// Something drifted that degrades the node: the Machine Config Operator's text about the first one.
    Drifted(String),
    /// No known drift is left, although nothing proves that the node matches.
    NoneKnown,
    /// Nothing proves either.
    Unknown,
}

/// All that decides about the next step.
#[derive(Debug, Clone)]
pub struct Situation<'a> {
    /// The Node's name.
    pub node: &'a str,
    /// The Node's annotations.
    pub annotations: &'a BTreeMap<String, String>,
    /// The sensor's progress; `None` while it does not answer.
    pub progress: Option<&'a ApplyProgress>,
    /// What the sensor said about the newest config that it got from us.
    pub planned: Option<&'a Planned>,
    /// Whether the node matches its present config.
    pub drift: &'a NodeDrift,
    /// No pause after a failed attempt is left.
    pub may_attempt: bool,
    /// The plan that the node's `DriftReport` has.
    pub published: Option<&'a ReportedPlan>,
    /// Whether the Node is cordoned; `None` if it was not asked yet.
    pub is_cordoned: Option<bool>,
    /// The drain takes longer than it may.
    pub is_drain_overdue: bool,
}

/// What the cluster is to see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Every annotation of ours. One that is not in it is removed.
    pub annotations: BTreeMap<&'static str, String>,
    /// The plan in the report.
    pub plan: Option<ReportedPlan>,
    /// The Events of a change of these annotations.
    pub events: Vec<NodeEvent>,
}

/// What to do once the cluster sees what it is to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// Nothing, until the situation changes.
    Wait,
    /// Hand the desired config to the sensor.
    Plan,
    /// Ask whether the Node is cordoned.
    LookAtCordon,
    /// Order the apply of the config with this id.
    Apply(String),
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What the cluster is to see first.
    pub wanted: Wanted,
    /// What to do then.
    pub then: Then,
}

/// The next step in a situation.
pub fn next(now: &Situation<'_>) -> Step {
    let mut wanted = Wanted::carried(now.annotations);
    let (Some(desired), Some(progress)) = (now.annotations.get(DESIRED_CONFIG), now.progress) else {
        return wanted.then(Then::Wait);
    };
    if progress.is_managed_by_operator {
        // Two writers of one annotation would undo each other.
        return wanted.then(Then::Wait);
    }
    if progress.phase != ApplyPhase::Rebooting {
        wanted.annotations.remove(POST_CONFIG_ACTION);
    }
    let failed = progress.phase == ApplyPhase::Failed && progress.config.as_ref() == Some(desired);
    // The node's own record is the truth: the annotations may come from a backup of etcd. Without a record the sensor first compares the node
    // with the config, and applies what differs.
    let is_recorded = progress.current.is_some();
    let current = progress.current.as_ref().or_else(|| now.annotations.get(CURRENT_CONFIG));
    match progress.phase {
        ApplyPhase::Running => wanted.working().then(Then::Wait),
        ApplyPhase::Rebooting => {
            wanted.working().rebooting(progress.config.as_ref().unwrap_or(desired)).then(Then::Wait)
        }
        // What the last attempt has ended with is shown until the next one, which may end before there is a plan.
        _ if failed && !now.may_attempt && !now.has_refusal(desired) => {
            wanted.failed_apply(now, progress, current, desired).then(Then::Wait)
        }
        _ if !failed && is_recorded && current == Some(desired) => {
            wanted.in_sync(now, desired).then(Then::Wait)
        }
        _ => toward(now, wanted, current, desired),
    }
}

/// The step on the way to another config.
fn toward(now: &Situation<'_>, wanted: Wanted, current: Option<&String>, desired: &str) -> Step {
    let Some(planned) = now.planned.filter(|planned| planned.config == desired) else {
        return wanted.then(if now.may_attempt { Then::Plan } else { Then::Wait });
    };
    let (id, plan, is_forced) = match &planned.outcome {
        PlannedOutcome::Plan { id, plan, is_forced } => (id, plan, *is_forced),
        PlannedOutcome::Refused(reason) => {
            return wanted.drained_only_for(now, desired).bad(state::DEGRADED, reason).then(Then::Wait);
        }
        PlannedOutcome::Unreconcilable(reason) => {
            let wanted = wanted.drained_only_for(now, desired);
            return wanted.unreconcilable(current, desired, reason).then(Then::Wait);
        }
    };
    let wanted = wanted.working().planned(plan);
    let apply = if now.may_attempt { Then::Apply(id.clone()) } else { Then::Wait };
    // The workloads of a cluster with one node have no other node to go to.
    if !plan.drain || now.annotations.get(TOPOLOGY).is_some_and(|topology| topology == SINGLE_NODE) {
        return wanted.drained_only_for(now, desired).then(apply);
    }
    let applied = now.annotations.get(LAST_APPLIED_DRAIN);
    let is_over = now.annotations.get(CORDONED_BEFORE).is_some_and(|value| value == OVER);
    let requested = now.annotations.get(DESIRED_DRAIN).filter(|_| !is_over);
    if requested.is_some_and(|request| is_drain_for(request, desired)) {
        let is_drained = applied == requested;
        if !is_drained && now.is_drain_overdue {
            return wanted.failed_drain(now.node).then(Then::Wait);
        }
        return wanted.then(if is_drained { apply } else { Then::Wait });
    }
    // The sensor's preflight would refuse, and the drain would be for nothing.
    if let NodeDrift::Drifted(text) = now.drift
        && !is_forced
    {
        // The next plan may be a forced one.
        let then = if now.may_attempt { Then::Plan } else { Then::Wait };
        let wanted = wanted.drained_only_for(now, desired);
        return wanted.preflight_failed(&preflight(current, text)).then(then);
    }
    let is_published = now.published == Some(plan) && now.annotations.get(PLAN) == Some(&annotation(plan));
    if !is_published {
        return wanted.then(Then::Wait);
    }
    let request = drain(desired, applied);
    match now.is_cordoned {
        _ if is_cordoned_by_us(now.annotations) => wanted.drain(desired, request, false).then(Then::Wait),
        Some(cordoned) => wanted.drain(desired, request, cordoned).then(Then::Wait),
        None => wanted.then(Then::LookAtCordon),
    }
}

impl Situation<'_> {
    /// Whether the sensor has refused to plan this config.
    fn has_refusal(&self, config: &str) -> bool {
        self.planned.is_some_and(|planned| {
            planned.config == config && !matches!(planned.outcome, PlannedOutcome::Plan { .. })
        })
    }
}

impl Wanted {
    /// What the cluster sees already.
    fn carried(annotations: &BTreeMap<String, String>) -> Self {
        let ours = OURS.into_iter().filter_map(|name| Some((name, annotations.get(name)?.clone())));
        Self {
            annotations: ours.collect(),
            plan: annotations.get(PLAN).and_then(|plan| serde_json::from_str(plan).ok()),
            events: Vec::new(),
        }
    }

    fn then(self, then: Then) -> Step {
        Step { wanted: self, then }
    }

    /// Whether the cluster sees all of it.
    pub fn is_seen(&self, annotations: &BTreeMap<String, String>, published: Option<&ReportedPlan>) -> bool {
        self.has_annotations(annotations) && self.plan.as_ref() == published
    }

    /// Whether these annotations are as they are to be.
    pub fn has_annotations(&self, annotations: &BTreeMap<String, String>) -> bool {
        OURS.iter().all(|name| self.annotations.get(name) == annotations.get(*name))
    }

    /// The annotations of ours that the Node has and is not to have.
    pub fn surplus(&self, annotations: &BTreeMap<String, String>) -> Vec<&'static str> {
        let is_surplus =
            |name: &&str| annotations.contains_key(*name) && !self.annotations.contains_key(*name);
        OURS.into_iter().filter(is_surplus).collect()
    }

    fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.annotations.insert(name, value.into());
    }

    fn state(&self) -> Option<&str> {
        self.annotations.get(STATE).map(String::as_str)
    }

    /// An update is under way. A bad state stays visible while it is tried again.
    fn working(mut self) -> Self {
        if !matches!(self.state(), Some(state::DEGRADED | state::UNRECONCILABLE)) {
            self.set(STATE, state::WORKING);
            self.set(REASON, "");
        }
        self
    }

    fn planned(mut self, plan: &ReportedPlan) -> Self {
        self.set(PLAN, annotation(plan));
        self.plan = Some(plan.clone());
        self
    }

    fn drain(mut self, desired: &str, request: String, is_cordoned: bool) -> Self {
        self.set(DESIRED_DRAIN, request);
        self.annotations.remove(CORDONED_BEFORE);
        if is_cordoned {
            self.set(CORDONED_BEFORE, "true");
        } else {
            self = self.tell("Cordon", "the node is cordoned for an update");
        }
        self.tell("Drain", &format!("the node is drained for the MachineConfig {desired}"))
    }

    /// Longer than the Machine Config Operator's daemon waits. The request stays, so the update goes on after a late drain.
    fn failed_drain(self, node: &str) -> Self {
        let text = format!(
            "failed to drain node: {node} after 1 hour. Please see machine-config-controller logs for more information"
        );
        self.bad(state::DEGRADED, &text).warn("FailedToDrain", &text)
    }

    fn rebooting(mut self, config: &str) -> Self {
        self.set(POST_CONFIG_ACTION, REBOOTING);
        self.tell("Reboot", &format!("the node reboots into the MachineConfig {config}"))
    }

    fn bad(mut self, state: &str, reason: &str) -> Self {
        self.set(STATE, state);
        self.set(REASON, fit(reason, REASON_BYTES));
        self
    }

    fn warn(mut self, reason: &'static str, note: &str) -> Self {
        self.events.push(NodeEvent {
            is_warning: true,
            reason,
            action: "Update",
            note: fit(note, NOTE_BYTES),
        });
        self
    }

    fn tell(mut self, reason: &'static str, note: &str) -> Self {
        self.events.push(NodeEvent {
            is_warning: false,
            reason,
            action: "Update",
            note: fit(note, NOTE_BYTES),
        });
        self
    }

    fn preflight_failed(self, text: &str) -> Self {
        self.bad(state::DEGRADED, text).warn("PreflightConfigDriftCheckFailed", text)
    }

    fn unreconcilable(self, current: Option<&String>, desired: &str, reason: &str) -> Self {
        let text = match current {
            Some(current) => format!("can't reconcile config {current} with {desired}: {reason}"),
            None => format!("can't reconcile config {desired}: {reason}"),
        };
        self.bad(state::UNRECONCILABLE, &text).warn("FailedToReconcile", &text)
    }

    /// The last attempt failed.
    fn failed_apply(
        self,
        now: &Situation<'_>,
        progress: &ApplyProgress,
        current: Option<&String>,
        desired: &str,
    ) -> Self {
        let message = progress.message.as_deref().unwrap_or("the apply failed without a reason");
        match now.drift {
            _ if progress.unreconcilable => self.unreconcilable(current, desired, message),
            NodeDrift::Drifted(text) if progress.drifted => self.preflight_failed(&preflight(current, text)),
            // The drift is over or not known yet. The text of before stays until the next attempt.
            _ if progress.drifted && self.state() == Some(state::DEGRADED) => self,
            _ if progress.drifted => self.preflight_failed(message),
            _ => self.bad(state::DEGRADED, message),
        }
    }

    /// Withdraws the requested drain. Our own cordon ends; a cordon from before the drain stays. In that case the request is removed if the drain
    /// controller has not carried it out yet: otherwise it would still drain the node.
    fn without_drain(mut self, now: &Situation<'_>, desired: &str) -> Self {
        // Without a request of ours for a drain, a cordon is not ours.
        let requested = self.annotations.get(DESIRED_DRAIN).filter(|request| request.starts_with(DRAIN));
        let Some(requested) = requested else { return self };
        let is_carried_out = now.annotations.get(LAST_APPLIED_DRAIN) == Some(requested);
        if !self.annotations.contains_key(CORDONED_BEFORE) {
            self.set(DESIRED_DRAIN, uncordon(desired, now.annotations.get(LAST_APPLIED_DRAIN)));
            return self.tell("Uncordon", "the node may get workloads again");
        }
        if is_carried_out {
            self.set(CORDONED_BEFORE, OVER);
        } else {
            self.annotations.remove(DESIRED_DRAIN);
            self.annotations.remove(CORDONED_BEFORE);
        }
        self
    }

    /// The same without a drain that was requested for another config than the desired one.
    fn drained_only_for(self, now: &Situation<'_>, desired: &str) -> Self {
        let requested = self.annotations.get(DESIRED_DRAIN);
        if requested.is_some_and(|request| !is_drain_for(request, desired)) {
            return self.without_drain(now, desired);
        }
        self
    }

    /// The node has the desired config.
    fn in_sync(mut self, now: &Situation<'_>, desired: &str) -> Self {
        self.annotations.remove(PLAN);
        self.plan = None;
        let ends_update = self.annotations.get(CURRENT_CONFIG).is_none_or(|current| current != desired);
        if ends_update {
            self.set(CURRENT_CONFIG, desired);
            self = self.tell("NodeDone", &format!("the node has the MachineConfig {desired}"));
        }
        self = self.without_drain(now, desired);
        match now.drift {
            NodeDrift::Drifted(text) => self.bad(state::DEGRADED, text),
            // Nothing proves that a recorded drift is over. What an update failed by is over with the update.
            NodeDrift::Unknown if self.state() == Some(state::DEGRADED) && !ends_update => self,
            NodeDrift::Unknown | NodeDrift::NoneKnown | NodeDrift::InSync => self.bad(state::DONE, ""),
        }
    }
}

/// The Machine Config Operator's text of a drift that blocks an update.
fn preflight(current: Option<&String>, text: &str) -> String {
    let current = current.map_or("the present config", String::as_str);
    format!("unexpected on-disk state validating against {current}: {text}")
}
