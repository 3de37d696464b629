//! The objects as they are sent.

use super::place::ReporterPlace;
use crate::api::DriftReportStatus;
use crate::reports::{Condition, NodeEvent};
use crate::text::fit;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The name under which the API server keeps which fields are ours.
pub const FIELD_MANAGER: &str = "holdfast-reporter";

/// The namespace of Events about objects that have none.
pub(super) const EVENT_NAMESPACE: &str = "default";

/// Time between renewals of the Lease.
pub(super) const LEASE_RENEWAL: Duration = Duration::from_mins(2);

/// Time after which a Lease that was not renewed shows that the reporter is dead, or that the API server does not take its report or its
/// conditions: two renewals and a half.
pub const LEASE_DURATION: Duration = Duration::from_secs(LEASE_RENEWAL.as_secs() * 5 / 2);

/// Longest name of a node that is whole in the name of an Event.
const EVENT_NAME_LENGTH: usize = 200;
/// The end of a name that was cut. The cut part alone could end with a dash or a dot, which the API server refuses there.
const REST: &str = "x";
/// Characters of a hash in an Event's name.
const HASH_LENGTH: usize = 32;
/// Longest name of a reporting instance that the API server accepts.
const INSTANCE_BYTES: usize = 128;

/// The report, with its owner and without its status.
pub(super) fn report(place: &ReporterPlace, uid: &str) -> Value {
    json!({
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "DriftReport",
        "metadata": {"name": place.node, "ownerReferences": [owner(place, uid)]},
    })
}

/// The report's status.
pub(super) fn report_status(place: &ReporterPlace, status: &DriftReportStatus) -> Value {
    json!({
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "DriftReport",
        "metadata": {"name": place.node},
        "status": status,
    })
}

/// The Node's conditions, each with the time of its last change.
pub(super) fn node_status(
    place: &ReporterPlace,
    conditions: &[(&Condition, Timestamp)],
    now: Timestamp,
) -> Value {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(condition, since)| {
            json!({
                "type": condition.kind,
                "status": condition.status.as_str(),
                "reason": condition.reason,
                "message": condition.message,
                "lastHeartbeatTime": Time(now),
                "lastTransitionTime": Time(*since),
            })
        })
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": place.node},
        "status": {"conditions": conditions},
    })
}

/// The Node's annotations.
pub(super) fn node_annotations(place: &ReporterPlace, annotations: &BTreeMap<&'static str, String>) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": place.node, "annotations": annotations},
    })
}

/// The Lease that shows that the reporter lives, and that its report may be believed.
pub(super) fn lease(place: &ReporterPlace, uid: &str, now: Timestamp) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": place.node,
            "namespace": place.namespace,
            "ownerReferences": [owner(place, uid)],
        },
        "spec": {
            "holderIdentity": place.holder,
            "leaseDurationSeconds": LEASE_DURATION.as_secs(),
            "renewTime": MicroTime(now),
        },
    })
}

/// An Event about the Node.
pub(super) fn event(place: &ReporterPlace, uid: &str, event: &NodeEvent, now: Timestamp) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(event_name(&place.node, &format!("{:x}", now.as_nanosecond()))),
            namespace: Some(EVENT_NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        action: Some(event.action.to_owned()),
        reason: Some(event.reason.to_owned()),
        note: Some(event.note.clone()),
        type_: Some(if event.is_warning { "Warning" } else { "Normal" }.to_owned()),
        event_time: Some(MicroTime(now)),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(place.node.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }),
        reporting_controller: Some("holdfast.dev/reporter".to_owned()),
        reporting_instance: Some(fit(&place.holder, INSTANCE_BYTES)),
        ..Event::default()
    }
}

/// The name of the Event of a log that was written anew and no longer has the entry with this hash. An API server that has the Event
/// refuses another one of this name.
pub(super) fn name_of_rewriting(place: &ReporterPlace, hash: &str) -> String {
    let hash: String = hash.chars().filter(char::is_ascii_hexdigit).take(HASH_LENGTH).collect();
    event_name(&place.node, &format!("log-{}", hash.to_ascii_lowercase()))
}

/// The name of an Event of a node. The admission policy lets the reporter of another node create none of this name: what is before the last dot is
/// the node's name. `last` has no dot.
fn event_name(node: &str, last: &str) -> String {
    match node.get(..EVENT_NAME_LENGTH) {
        Some(begin) if begin.len() < node.len() => format!("{begin}{REST}.{last}"),
        _ => format!("{node}.{last}"),
    }
}

/// What is removed with the Node.
fn owner(place: &ReporterPlace, uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "name": place.node, "uid": uid})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_before_the_last_dot_of_an_events_name_is_the_nodes_name() {
        for node in ["n1", "n1.log-1", "ip-10-0-0-1.eu-west-1.compute.internal"] {
            assert_eq!(event_name(node, "1a2b").rsplit_once('.'), Some((node, "1a2b")));
        }
        let hash = "0".repeat(64);
        // The longest name of a node, cut at each kind of character.
        for begin in ["a".repeat(200), format!("{}-", "a".repeat(199)), format!("{}.", "a".repeat(199))] {
            let node = format!("{begin}{}", "b".repeat(53));
            let place = ReporterPlace { node, namespace: String::new(), holder: String::new() };
            let name = name_of_rewriting(&place, &hash);
            assert_eq!(name, format!("{begin}x.log-{}", "0".repeat(32)));
            assert!(name.len() <= 253, "{name}");
        }
    }
}
