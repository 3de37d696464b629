//! The writes to the API server.
//!
//! In: what the reporter knows about its node. Out: the node's `DriftReport`, the conditions of its Node and its taint, Events and a Lease. Only
//! one request is under way at a time, and only what changed is written. A failed write is tried again with the state of then.
//! Every write but that of the taint is a server-side apply of our own fields, and an annotation of ours that another writer set is removed
//! by name. No field of another writer is touched.

mod attempts;
mod compared;
mod error;
mod event_budget;
mod event_queue;
mod events;
mod kept_log;
#[cfg(test)]
mod lease_tests;
#[cfg(test)]
mod log_tests;
mod managed;
mod objects;
mod place;
mod policies;
#[cfg(test)]
mod repetition_tests;
mod report;
mod taint;
#[cfg(test)]
mod tests;

pub use error::PublishError;
pub use managed::{AnnotationWrite, ManagedNode, NodeMetadata, WrittenNode};
pub(crate) use managed::{PREFIX, STATE, WORKING};
pub use objects::{FIELD_MANAGER, LEASE_DURATION};
pub use place::ReporterPlace;
pub use policies::PolicyStanding;

use crate::api::{DriftReport, DriftReportStatus, ReportedOsImage, ReportedPlan, ReportedPolicy};
use crate::metrics::{ReporterMetrics, WrittenObject};
use crate::reads::Reads;
use crate::reports::{
    ComparedConfig, Condition, ConditionStatus, NodeFinding, PodNames, SensorState, conditions,
};
use attempts::WriteAttempts;
use event_budget::EventBudget;
use event_queue::{EventQueue, UncertainEvent};
use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node, events::v1::Event};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kept_log::KeptLog;
use kube::api::{Api, PartialObjectMeta, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;
use taint::SeenTaints;
use tokio::time::{Instant, timeout};

/// An unchanged report is written again after this time, with the log's newest entry, and the conditions with their heartbeat.
const REFRESH: Duration = Duration::from_mins(10);

/// Longest time of one request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Writes what the reporter knows.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact")]
pub struct Publisher {
    place: ReporterPlace,
    reads: Reads,
    nodes: Api<Node>,
    reports: Api<DriftReport>,
    leases: Api<Lease>,
    events: Api<Event>,
    /// The Node's uid. Unknown before the first answer, and after the Node was removed.
    uid: Option<String>,
    /// The uid of the Node that the watch has seen last.
    seen_uid: Option<String>,
    /// When the Node was made. A report that is older and names no Node belonged to an earlier Node of this name.
    node_made: Option<Time>,
    /// The report exists, with the Node as its owner.
    is_owned: bool,
    /// The entry of the node's log that the report keeps.
    log: KeptLog,
    /// The report that the last Event led to.
    reported: Option<DriftReportStatus>,
    /// The sensor has answered this reporter.
    has_answered: bool,
    /// The report of an earlier reporter about this Node.
    last_report: Option<DriftReportStatus>,
    /// The names of pods and containers in that report.
    last_names: PodNames,
    /// The report of an earlier reporter is known: an answer had it, or showed that there is none.
    is_learnt: bool,
    /// Whether that report is known, or cannot be. Before, an Event could repeat one of that reporter.
    may_announce: bool,
    /// Since when the API server refuses the report.
    refused_since: Option<Instant>,
    /// An Event whose creation got no answer.
    uncertain: Option<UncertainEvent>,
    /// Status of each condition, and since when.
    since: BTreeMap<&'static str, (ConditionStatus, Timestamp)>,
    node: WriteAttempts<()>,
    report: WriteAttempts<DriftReportStatus>,
    conditions: WriteAttempts<[Condition; 2]>,
    event: WriteAttempts<()>,
    event_budget: EventBudget,
    queue: EventQueue,
    lease: WriteAttempts<()>,
    annotations: WriteAttempts<AnnotationWrite>,
    /// The annotations whose Events were queued last.
    announced: Option<BTreeMap<&'static str, String>>,
    /// The plan of the report, of an earlier reporter until mode `manage` has decided about it.
    plan: Option<ReportedPlan>,
    is_plan_decided: bool,
    /// The policies of the cluster; `None` until they are known.
    policies: Option<PolicyStanding>,
    /// The policies of the report of an earlier reporter.
    reported_policies: Vec<ReportedPolicy>,
    /// What the cluster says about the OS image; `None` until this reporter has compared it.
    os_image: Option<ReportedOsImage>,
    config: ComparedConfig,
    taint: WriteAttempts<bool>,
    /// The Node's taints; `None` if they have to be asked for.
    seen_taints: Option<SeenTaints>,
    written: WrittenNode,
    metrics: ReporterMetrics,
}

impl Publisher {
    /// A publisher for this place. Nothing is asked or written yet.
    pub fn new(client: &Client, reads: Reads, place: ReporterPlace) -> Self {
        Self {
            reads,
            nodes: Api::all(client.clone()),
            reports: Api::all(client.clone()),
            leases: Api::namespaced(client.clone(), &place.namespace),
            events: Api::namespaced(client.clone(), objects::EVENT_NAMESPACE),
            place,
            uid: None,
            seen_uid: None,
            node_made: None,
            is_owned: false,
            log: KeptLog::default(),
            reported: None,
            has_answered: false,
            last_report: None,
            last_names: PodNames::default(),
            is_learnt: false,
            may_announce: false,
            refused_since: None,
            uncertain: None,
            since: BTreeMap::new(),
            // Never refreshed: it is asked for again if the Node is another one.
            node: WriteAttempts::new(Duration::ZERO),
            report: WriteAttempts::new(REFRESH),
            conditions: WriteAttempts::new(REFRESH),
            event: WriteAttempts::new(Duration::ZERO),
            event_budget: EventBudget::new(),
            queue: EventQueue::new(),
            lease: WriteAttempts::new(objects::LEASE_RENEWAL),
            annotations: WriteAttempts::new(REFRESH),
            announced: None,
            plan: None,
            is_plan_decided: false,
            policies: None,
            reported_policies: Vec::new(),
            os_image: None,
            config: ComparedConfig::default(),
            taint: WriteAttempts::new(Duration::ZERO),
            seen_taints: None,
            written: WrittenNode::default(),
            metrics: ReporterMetrics::default(),
        }
    }

    /// The same publisher, which counts its writes there.
    #[must_use]
    pub fn counting(self, metrics: ReporterMetrics) -> Self {
        Self { metrics, ..self }
    }

    /// The same publisher, which compares the log of the sensor at this socket with the report before each write of the report.
    #[must_use]
    pub fn comparing(self, socket: PathBuf) -> Self {
        Self { log: KeptLog::of(socket), ..self }
    }

    /// Sets the policies of the cluster for the next rounds; `None` while they are not known.
    pub fn set_policies(&mut self, policies: Option<PolicyStanding>) {
        self.policies = policies;
    }

    /// Takes the uid of the Node that the watch sees. The next round writes everything to a Node that was made anew.
    pub fn see_node(&mut self, uid: &str) {
        let last = self.seen_uid.replace(uid.to_owned());
        // The watch may be behind what a round has learned.
        if last.is_some_and(|last| last != uid) && self.uid.as_deref().is_some_and(|known| known != uid) {
            self.start_anew();
        }
    }

    /// Writes what changed, in this order: report, annotations, conditions, taint, Event, Lease. Without a finding only annotations and
    /// Lease, and without `managed` no annotation. One failure does not keep the others from being written. Gives the time at which
    /// the next round is due if nothing changes.
    pub async fn round(&mut self, finding: Option<&NodeFinding>, managed: Option<&ManagedNode>) -> Instant {
        let uid = match &self.uid {
            Some(uid) => uid.clone(),
            None => match self.learn().await {
                Ok(uid) => uid,
                Err(again) => return again,
            },
        };
        let mut again = Instant::now() + REFRESH;
        if let Some(managed) = managed {
            self.plan.clone_from(&managed.plan);
            self.is_plan_decided = true;
        }
        if let Some(finding) = finding {
            self.has_answered |= matches!(finding.sensor, SensorState::Answers { .. });
            again = again.min(self.write_report(&uid, finding).await);
            self.metrics.log_is_rewritten(self.log.rewritten().is_some());
            self.count_state(&self.compared(finding));
        }
        if let Some(write) = managed.and_then(|managed| managed.annotations.as_ref()) {
            again = again.min(self.write_annotations(&uid, write).await);
        }
        if let Some(finding) = finding {
            let known = NodeFinding { status: self.completed(finding), ..finding.clone() };
            again = again.min(self.write_conditions(&uid, conditions(&known)).await);
            // The Node is another one: an Event or a Lease of the old one would be wrong.
            if self.uid.is_none() {
                return again;
            }
            // Boxed: the future of a round would be too large.
            let found = Box::new(NodeFinding { status: self.compared(finding), ..finding.clone() });
            again = again.min(self.write_taint(&found).await);
            again = again.min(self.write_event(&uid, &found).await);
        }
        // After the Event of a drift, which is the more important one.
        again = again.min(self.send_queued().await);
        again.min(self.renew_lease(&uid).await)
    }

    /// When the Lease was written last.
    pub fn renewed(&self) -> Option<Instant> {
        self.lease.written_at()
    }

    /// Learns the Node's uid, and the conditions that an earlier reporter wrote.
    async fn learn(&mut self) -> Result<String, Instant> {
        if let Some(later) = self.node.later(&()) {
            return Err(later);
        }
        let learnt = limited("Node", self.reads.node(&self.place.node)).await.and_then(|node| {
            let uid = node.uid().ok_or(PublishError::NoUid)?;
            Ok((uid, node))
        });
        match learnt {
            Ok((uid, node)) => {
                self.node.done((), Ok(()));
                self.uid = Some(uid.clone());
                self.node_made.clone_from(&node.metadata.creation_timestamp);
                self.since = known_conditions(&node);
                self.seen_taints = Some(SeenTaints::of(&node));
                Ok(uid)
            }
            Err(error) => Err(self.node.done((), Err(error))),
        }
    }

    /// What was written last.
    pub const fn written(&self) -> &WrittenNode {
        &self.written
    }

    async fn write_annotations(&mut self, uid: &str, write: &AnnotationWrite) -> Instant {
        if let Some(later) = self.annotations.later(write) {
            return later;
        }
        // The Events are first: an update that is over with the annotations would have none. Those that wait are lost with the process.
        if self.announced.as_ref() != Some(&write.annotations) {
            self.queue_events(uid, &write.events);
            self.announced = Some(write.annotations.clone());
        }
        // The annotations have the reason, too, so an Event that has to wait does not delay them.
        self.send_queued().await;
        let answer = self.apply_annotations(write).await;
        self.metrics.wrote(WrittenObject::Annotations, PublishError::write_result(&answer));
        if let Ok(node) = &answer {
            self.written.node = Some(NodeMetadata::of(&node.metadata));
        }
        self.annotations.done(write.clone(), answer.map(drop))
    }

    /// Applies the annotations. Those that another writer set, such as the Machine Config Operator's daemon, are then removed by name.
    async fn apply_annotations(
        &self,
        write: &AnnotationWrite,
    ) -> Result<PartialObjectMeta<Node>, PublishError> {
        const OBJECT: &str = "Node's annotations";
        let name = &self.place.node;
        let annotations = Patch::Apply(objects::node_annotations(&self.place, &write.annotations));
        let node = limited(OBJECT, self.nodes.patch_metadata(name, &ours(), &annotations)).await?;
        let left = write.removed.iter().filter(|name| node.annotations().contains_key(**name));
        let left: serde_json::Map<_, _> = left.map(|name| ((*name).to_owned(), Value::Null)).collect();
        if left.is_empty() {
            return Ok(node);
        }
        let removal = Patch::Merge(json!({"metadata": {"annotations": left}}));
        limited(OBJECT, self.nodes.patch_metadata(name, &without_apply(), &removal)).await
    }

    async fn write_conditions(&mut self, uid: &str, wanted: [Condition; 2]) -> Instant {
        if let Some(later) = self.conditions.later(&wanted) {
            return later;
        }
        let now = Timestamp::now();
        for condition in &wanted {
            let kept = self.since.get(condition.kind).filter(|(status, _)| *status == condition.status);
            if kept.is_none() {
                self.since.insert(condition.kind, (condition.status, now));
            }
        }
        let timed: Vec<(&Condition, Timestamp)> = wanted
            .iter()
            .map(|condition| (condition, self.since.get(condition.kind).map_or(now, |(_, since)| *since)))
            .collect();
        let status = Patch::Apply(objects::node_status(&self.place, &timed, now));
        let answer =
            limited("Node's conditions", self.nodes.patch_status(&self.place.node, &ours(), &status)).await;
        self.metrics.wrote(WrittenObject::Conditions, PublishError::write_result(&answer));
        if let Ok(node) = &answer {
            self.seen_taints = Some(SeenTaints::of(node));
        }
        let is_same = match &answer {
            Ok(node) => node.uid().is_none_or(|found| found == uid),
            Err(error) => !error.is_missing(),
        };
        let again = self.conditions.done(wanted, answer.map(drop));
        if is_same { again } else { self.start_anew() }
    }

    async fn write_taint(&mut self, finding: &NodeFinding) -> Instant {
        let idle = Instant::now() + REFRESH;
        let Some(wanted) = taint::wanted(finding, self.policies.as_ref()) else { return idle };
        if self.seen_taints.as_ref().is_some_and(|seen| seen.has_ours() == wanted) {
            return idle;
        }
        // Whatever was written last, the Node does not have it.
        self.taint.forget();
        if let Some(later) = self.taint.later(&wanted) {
            return later;
        }
        let answer = self.ask_taint(wanted).await;
        // After a conflict the taints are read again.
        self.seen_taints = answer.as_ref().ok().map(SeenTaints::of);
        self.metrics.wrote(WrittenObject::Taint, PublishError::write_result(&answer));
        let again = self.taint.done(wanted, answer.map(drop));
        if self.seen_taints.is_some() { idle } else { again }
    }

    async fn ask_taint(&self, wanted: bool) -> Result<Node, PublishError> {
        let name = &self.place.node;
        let seen = if let Some(seen) = &self.seen_taints {
            seen.clone()
        } else {
            let node = limited("Node", self.reads.node(name)).await?;
            let seen = SeenTaints::of(&node);
            if seen.has_ours() == wanted {
                return Ok(node);
            }
            seen
        };
        let patch = Patch::Merge(seen.patch(wanted));
        limited("Node's taints", self.nodes.patch(name, &without_apply(), &patch)).await
    }

    /// The Node is another one: the garbage collector removes what the old one owned.
    fn start_anew(&mut self) -> Instant {
        self.uid = None;
        self.is_owned = false;
        self.report.forget();
        self.conditions.forget();
        self.annotations.forget();
        self.lease.forget();
        self.queue = EventQueue::new();
        Instant::now()
    }

    /// Renews the Lease. A fresh Lease shows that the report and the conditions are current, so the reporter does not renew it while the API server
    /// refuses them.
    async fn renew_lease(&mut self, uid: &str) -> Instant {
        let failing = [self.report.failing_since(), self.conditions.failing_since()];
        if failing.into_iter().flatten().any(|since| since.elapsed() > LEASE_DURATION) {
            return Instant::now() + objects::LEASE_RENEWAL;
        }
        if let Some(later) = self.lease.later(&()) {
            return later;
        }
        let lease = Patch::Apply(objects::lease(&self.place, uid, Timestamp::now()));
        let result = limited("Lease", self.leases.patch(&self.place.node, &ours(), &lease)).await;
        self.metrics.wrote(WrittenObject::Lease, PublishError::write_result(&result));
        self.lease.done((), result.map(drop))
    }
}

/// Server-side apply of our own fields. A field that somebody else has changed is ours again.
fn ours() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

/// The parameters of a patch that is no apply.
fn without_apply() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// One request with its time limit.
pub(crate) async fn limited<T>(
    object: &'static str,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, PublishError> {
    match timeout(ANSWER_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| PublishError::of(object, error)),
        Err(_) => Err(PublishError::TimedOut { object }),
    }
}

/// The conditions that an earlier reporter wrote.
fn known_conditions(node: &Node) -> BTreeMap<&'static str, (ConditionStatus, Timestamp)> {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter_map(|condition| {
            let kind = crate::reports::CONDITIONS.into_iter().find(|kind| *kind == condition.type_)?;
            let status = ConditionStatus::of(&condition.status)?;
            Some((kind, (status, condition.last_transition_time.as_ref()?.0)))
        })
        .collect()
}
