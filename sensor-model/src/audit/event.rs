//! One line of the API server's audit log.
//!
//! In: a line of JSON (`audit.k8s.io/v1`, `Event`), at any audit level. Out: the fields that tell who asked for what about which
//! pod. Fields that an audit policy leaves out are `None`.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// Value of `kind` and `apiVersion` of an event.
const KIND: (&str, &str) = ("Event", "audit.k8s.io/v1");

/// An event. One request has up to three with the same `audit_id`, one for each stage.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuditEvent {
    kind: String,
    api_version: String,
    #[serde(rename = "auditID")]
    pub(super) audit_id: String,
    pub(super) stage: Stage,
    pub(super) verb: String,
    #[serde(default, rename = "requestURI")]
    request_uri: String,
    pub(super) user: User,
    pub(super) impersonated_user: Option<User>,
    #[serde(default, rename = "sourceIPs")]
    pub(super) source_ips: Vec<String>,
    pub(super) object_ref: Option<ObjectRef>,
    response_status: Option<ResponseStatus>,
    /// When the request arrived.
    pub(super) request_received_timestamp: Timestamp,
    /// When the stage was reached.
    pub(super) stage_timestamp: Timestamp,
    request_object: Option<Value>,
    response_object: Option<Value>,
}

/// How far the API server has come with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum Stage {
    RequestReceived,
    /// A long request, such as that of `kubectl exec`, was allowed and goes on.
    ResponseStarted,
    /// The request has ended.
    ResponseComplete,
    Panic,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct User {
    #[serde(default)]
    pub(super) username: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ObjectRef {
    #[serde(default)]
    pub(super) resource: String,
    #[serde(default)]
    pub(super) subresource: String,
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) name: String,
    /// Set only where the API server knew the object when it wrote the event.
    #[serde(default)]
    pub(super) uid: String,
    #[serde(default)]
    api_group: String,
}

#[derive(Debug, Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

impl AuditEvent {
    /// Reads a line; `None` if it is no event of this version.
    pub(super) fn read(line: &str) -> Option<Self> {
        let event: Self = serde_json::from_str(line).ok()?;
        (KIND == (event.kind.as_str(), event.api_version.as_str())).then_some(event)
    }

    /// The pod that the request is about; `None` for other objects.
    pub(super) fn pod(&self) -> Option<&ObjectRef> {
        self.object_ref.as_ref().filter(|object| object.resource == "pods" && object.api_group.is_empty())
    }

    /// Whether the API server or an admission plugin refused the request. The first stage has no answer yet.
    pub(super) fn is_refused(&self) -> bool {
        self.stage == Stage::Panic || self.response_status.as_ref().is_some_and(|status| status.code >= 400)
    }

    /// The pod's uid: from the reference, or from the object in request or answer (audit level `Request` and above).
    pub(super) fn pod_uid(&self) -> Option<&str> {
        let of_reference = self.pod().map(|pod| pod.uid.as_str()).filter(|uid| !uid.is_empty());
        let of_object = || {
            [&self.response_object, &self.request_object]
                .into_iter()
                .flatten()
                .find_map(|object| object.pointer("/metadata/uid")?.as_str())
        };
        of_reference.or_else(of_object)
    }

    /// The container that the request's address names; `None` if it leaves the choice to the API server.
    pub(super) fn container(&self) -> Option<&str> {
        let (_, query) = self.request_uri.split_once('?')?;
        // A container's name is a DNS label, which no client needs to escape.
        query.split('&').find_map(|part| part.strip_prefix("container=")).filter(|name| !name.is_empty())
    }

    /// The ephemeral containers in the request's object; empty below the audit level `Request`.
    pub(super) fn ephemeral_containers(&self) -> impl Iterator<Item = &str> {
        self.request_object
            .iter()
            .filter_map(|object| object.pointer("/spec/ephemeralContainers")?.as_array())
            .flatten()
            .filter_map(|container| container.get("name")?.as_str())
    }
}
