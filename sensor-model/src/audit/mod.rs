//! Users of the API server whose requests match a change by a process in a pod.
//!
//! In: lines of the API server's audit log, and what the forensic log knows of the process. Out: the requests that match by pod,
//! container and time. A match is no proof: the node cannot see whose request started a process. Two users may have sessions in
//! one container at a time, and a process of the container itself is no user's.
//!
//! | request | matches a process that |
//! |---|---|
//! | `exec` | started in the container during the session |
//! | `attach` | changed the thing during the session |
//! | an ephemeral container, or the creation of a pod | started in the container after the request |

mod event;
#[cfg(test)]
mod tests;

use crate::record::Actor;
use event::{AuditEvent, ObjectRef, Stage};
use jiff::{SignedDuration, Timestamp};
use sensor_protocol::names;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Most that the clocks of a node and of an API server may differ for a match.
const CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_secs(5);

/// Most matches for a change.
const MAXIMUM_MATCHES: usize = 16;

names! {
    /// A request through which a user gets a process in a pod.
    pub enum AuditedRequest {
        /// `kubectl exec`.
        Exec = "exec",
        /// `kubectl attach`, and the terminal of `kubectl run` and `kubectl debug`.
        Attach = "attach",
        /// `kubectl debug POD`.
        EphemeralContainer = "ephemeral-container",
        /// The creation of the pod: `kubectl run`, `kubectl debug node/NODE`.
        Create = "create",
    }
}

/// A pod's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name in the namespace.
    pub name: String,
}

/// A process in a pod, and the change that it made.
#[derive(Debug, Clone)]
pub struct PodProcess {
    /// The pod.
    pub pod: PodName,
    /// The container's name; `None` if it is not known, and any container matches.
    pub container: Option<String>,
    /// When the process started by which the actor came into the container.
    pub started: Timestamp,
    /// When the change was made.
    pub changed: Timestamp,
}

/// A user whose request matches a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct UserMatch {
    /// The user's name in the cluster.
    pub user: String,
    /// Who impersonated this user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonated_by: Option<String>,
    /// Where the request came from: proxies and the client. Only the last one is certain.
    pub source_ips: Vec<String>,
    /// The request.
    pub request: AuditedRequest,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// The container that the request names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// When the API server received the request, RFC 3339.
    #[schemars(with = "String")]
    pub began: Timestamp,
    /// When the session ended, RFC 3339; null if the audit log does not tell.
    #[schemars(with = "Option<String>")]
    pub ended: Option<Timestamp>,
    /// Id of the request in the audit log.
    pub audit_id: String,
}

/// The requests about some pods.
#[derive(Debug, Default)]
pub struct AuditedRequests {
    /// By pod, then by the request's id.
    pods: BTreeMap<PodName, BTreeMap<String, Session>>,
}

/// What the events of one request tell.
#[derive(Debug)]
struct Session {
    found: UserMatch,
    /// The ephemeral containers of the request, if it tells them.
    containers: BTreeSet<String>,
    is_refused: bool,
}

/// When the process started that is the actor's farthest ancestor in the actor's container. The process of `kubectl exec` is this
/// one; its parent is the runtime's. `changed` is the wall clock and `changed_ns` the boot time of the change.
pub fn entered_container(actor: &Actor, changed: Timestamp, changed_ns: u64) -> Timestamp {
    let is_inside =
        |other: &&Actor| (&other.container_id, &other.pod_uid) == (&actor.container_id, &actor.pod_uid);
    let first = actor.ancestors.iter().take_while(is_inside).last().unwrap_or(actor);
    let age = i64::try_from(changed_ns.saturating_sub(first.start_ns)).unwrap_or(i64::MAX);
    changed.checked_sub(SignedDuration::from_nanos(age)).unwrap_or(Timestamp::MIN)
}

/// Uid and name of the pod of a line, if it is an event that has both.
pub fn pod_of(line: &str) -> Option<(String, PodName)> {
    let event = AuditEvent::read(line)?;
    let (pod, uid) = (event.pod()?, event.pod_uid()?);
    (!pod.name.is_empty()).then(|| (uid.to_owned(), PodName::from(pod)))
}

impl From<&ObjectRef> for PodName {
    fn from(pod: &ObjectRef) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone() }
    }
}

impl AuditedRequests {
    /// No requests yet about these pods.
    pub fn about(pods: impl IntoIterator<Item = PodName>) -> Self {
        Self { pods: pods.into_iter().map(|pod| (pod, BTreeMap::new())).collect() }
    }

    /// Takes a line of an audit log; the order does not matter. Gives whether it is an audit event.
    pub fn read(&mut self, line: &str) -> bool {
        let Some(event) = AuditEvent::read(line) else { return false };
        let Some(pod) = event.pod() else { return true };
        let Some(request) = request_of(&event.verb, &pod.subresource) else { return true };
        if let Some(sessions) = self.pods.get_mut(&PodName::from(pod)) {
            sessions
                .entry(event.audit_id.clone())
                .or_insert_with(|| Session::new(&event, pod, request))
                .advance(&event);
        }
        true
    }

    /// The users whose requests match a process, those first whose request was nearest to the process's start. A pod's creator is
    /// named only if nothing else matches, and only if it is no component of the cluster.
    pub fn users(&self, process: &PodProcess) -> Vec<UserMatch> {
        let sessions = self.pods.get(&process.pod).into_iter().flat_map(BTreeMap::values);
        let mut found: Vec<&UserMatch> =
            sessions.filter(|session| session.fits(process)).map(|session| &session.found).collect();
        if found.iter().any(|user| user.request != AuditedRequest::Create) {
            found.retain(|user| user.request != AuditedRequest::Create);
        }
        found.sort_by_key(|user| process.started.duration_since(user.began).abs());
        found.truncate(MAXIMUM_MATCHES);
        found.into_iter().cloned().collect()
    }
}

/// The request by verb and subresource. `kubectl exec` is a `create` over SPDY and a `get` over WebSocket.
fn request_of(verb: &str, subresource: &str) -> Option<AuditedRequest> {
    match (subresource, verb) {
        ("exec", _) => Some(AuditedRequest::Exec),
        ("attach", _) => Some(AuditedRequest::Attach),
        ("ephemeralcontainers", "patch" | "update") => Some(AuditedRequest::EphemeralContainer),
        ("", "create") => Some(AuditedRequest::Create),
        _ => None,
    }
}

impl Session {
    fn new(event: &AuditEvent, pod: &ObjectRef, request: AuditedRequest) -> Self {
        let (user, impersonated_by) = match &event.impersonated_user {
            Some(user) => (user, Some(event.user.username.clone())),
            None => (&event.user, None),
        };
        let found = UserMatch {
            user: user.username.clone(),
            impersonated_by,
            source_ips: event.source_ips.clone(),
            request,
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            container: event.container().map(str::to_owned),
            began: event.request_received_timestamp,
            ended: None,
            audit_id: event.audit_id.clone(),
        };
        Self { found, containers: BTreeSet::new(), is_refused: false }
    }

    /// Adds what a stage of the request tells.
    fn advance(&mut self, event: &AuditEvent) {
        self.is_refused |= event.is_refused();
        self.containers.extend(event.ephemeral_containers().map(str::to_owned));
        if event.stage == Stage::ResponseComplete {
            self.found.ended = Some(event.stage_timestamp);
        }
    }

    fn fits(&self, process: &PodProcess) -> bool {
        let is_after = |moment: Timestamp| moment.duration_since(self.found.began) >= -CLOCK_DIFFERENCE;
        let is_before_end = |moment: Timestamp| {
            self.found.ended.is_none_or(|ended| moment.duration_since(ended) <= CLOCK_DIFFERENCE)
        };
        let is_in_time = match self.found.request {
            AuditedRequest::Exec => is_after(process.started) && is_before_end(process.started),
            AuditedRequest::Attach => is_after(process.changed) && is_before_end(process.changed),
            AuditedRequest::EphemeralContainer => is_after(process.started),
            AuditedRequest::Create => is_after(process.started) && !self.found.user.starts_with("system:"),
        };
        let may_be = |named: &str| process.container.as_deref().is_none_or(|container| container == named);
        let is_named = self.found.container.as_deref().is_none_or(may_be);
        let is_ephemeral = self.containers.is_empty() || self.containers.iter().any(|name| may_be(name));
        !self.is_refused && is_in_time && is_named && is_ephemeral
    }
}
