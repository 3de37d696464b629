//! The command `remove`: what a reporter wrote to the API is taken away again.
//!
//! In: an admin's access to the API server, after the last reporter has ended. On a node that is off no kubelet confirms the end. Out: Nodes
//! without Holdfast's conditions, annotations, taints and cordons, no Leases and no `DriftReport`s, and what was removed. Fields of other
//! writers stay as they are.

mod error;
#[cfg(test)]
mod tests;
mod traces;

pub use error::RemoveError;

use crate::api::DriftReport;
use crate::publish::{FIELD_MANAGER, LEASE_DURATION};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use kube::{Client, Config, ResourceExt as _};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use traces::{NodePart, Traces};

/// Pods of the `DaemonSet`.
pub(crate) const PODS: &str = "app.kubernetes.io/name=holdfast";
/// The container that writes to the API.
pub(crate) const REPORTER: &str = "reporter";
/// The phases of a pod whose containers have ended.
const ENDED: [&str; 2] = ["Succeeded", "Failed"];
/// Objects in one answer of the API server.
const PAGE: u32 = 500;
/// How often a Node is read. The removal of everything takes five patches, each after a read, and others may change the Node meanwhile.
const ATTEMPTS: u32 = 10;
/// The status code about an object, or a kind, that does not exist.
const NOT_FOUND: u16 = 404;
/// The status code about an object that has changed meanwhile.
const CONFLICT: u16 = 409;

/// An object that is gone, or that lost fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Kind and name.
    pub object: String,
    /// The fields that it lost; none if the object is gone.
    pub removed: Vec<String>,
}

/// A client with the config of `kubectl`.
///
/// # Errors
/// No config, or one that cannot be used.
pub async fn client() -> Result<Client, RemoveError> {
    let config = Config::infer().await.map_err(|error| RemoveError::Config(Box::new(error)))?;
    Client::try_from(config).map_err(|error| RemoveError::request("the API server", error))
}

/// A pod of a reporter that has no proof of its end: its node is off, so no kubelet confirms it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnconfirmedPod {
    /// The pod.
    pub pod: String,
    /// Its node.
    pub node: String,
}

/// What a removal did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed {
    /// Each object that is gone or that lost fields.
    pub removals: Vec<Removal>,
    /// The pods that are still to end on nodes that are off. A kubelet that starts does not start them again.
    pub unconfirmed: Vec<UnconfirmedPod>,
}

/// Removes what reporters wrote. `namespace` is that of their pods and Leases.
///
/// # Errors
/// A reporter still runs, or the API server refuses a request. What was removed before stays removed.
pub async fn remove(client: &Client, namespace: &str) -> Result<Removed, RemoveError> {
    let pods = Api::namespaced(client.clone(), namespace);
    let our_leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let nodes: Api<Node> = Api::all(client.clone());
    let unconfirmed = no_reporter(&pods, &nodes, &our_leases).await?;
    let mut removals = Vec::new();
    for node in all(&nodes, "Nodes", &ListParams::default()).await? {
        removals.extend(clean(&nodes, &node.name_any()).await?);
    }
    removals.extend(leases(&our_leases).await?);
    removals.extend(reports(&Api::all(client.clone())).await?);
    Ok(Removed { removals, unconfirmed })
}

/// A reporter that runs would write all of it again. Gives the pods that were to end and whose node is off.
async fn no_reporter(
    pods: &Api<Pod>,
    nodes: &Api<Node>,
    leases: &Api<Lease>,
) -> Result<Vec<UnconfirmedPod>, RemoveError> {
    let mut unconfirmed = Vec::new();
    for pod in all(pods, "pods", &ListParams::default().labels(PODS)).await? {
        let spec = pod.spec.clone().unwrap_or_default();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let has_ended = phase.is_some_and(|phase| ENDED.contains(&phase));
        if has_ended || !spec.containers.iter().any(|container| container.name == REPORTER) {
            continue;
        }
        let (pod_name, node) = (pod.name_any(), spec.node_name.unwrap_or_default());
        if pod.metadata.deletion_timestamp.is_none() || is_ready(nodes, &node).await? {
            return Err(RemoveError::Reporter { pod: pod_name, node });
        }
        // A kubelet that is dead alone, or cut off, leaves the containers of its node running.
        if let Some(renewed) = renewed(leases, &node).await?
            && renewed.checked_add(LEASE_DURATION).is_ok_and(|end| end > Timestamp::now())
        {
            return Err(RemoveError::Renewed { pod: pod_name, node, renewed });
        }
        unconfirmed.push(UnconfirmedPod { pod: pod_name, node });
    }
    Ok(unconfirmed)
}

/// Whether the kubelet of a Node works. One of a Node that is gone does not.
async fn is_ready(nodes: &Api<Node>, name: &str) -> Result<bool, RemoveError> {
    let node =
        nodes.get_opt(name).await.map_err(|error| RemoveError::request(format!("Node {name}"), error))?;
    let conditions = node.and_then(|node| node.status?.conditions).unwrap_or_default();
    Ok(conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"))
}

/// When the reporter of a node renewed its Lease last.
async fn renewed(leases: &Api<Lease>, node: &str) -> Result<Option<Timestamp>, RemoveError> {
    let lease = leases.get_opt(node).await;
    let lease = lease.map_err(|error| RemoveError::request(format!("Lease {node}"), error))?;
    Ok(lease.and_then(|lease| Some(lease.spec?.renew_time?.0)))
}

/// Removes the traces on one Node.
async fn clean(nodes: &Api<Node>, name: &str) -> Result<Option<Removal>, RemoveError> {
    let object = || format!("Node {name}");
    let mut removed: Option<Vec<String>> = None;
    for _ in 0..ATTEMPTS {
        let node = nodes.get_opt(name).await.map_err(|error| RemoveError::request(object(), error))?;
        let Some(node) = node else { return Ok(None) };
        let left = Traces::of(&node);
        let removed = removed.get_or_insert_with(|| left.names());
        if left.is_empty() {
            let removed = std::mem::take(removed);
            return Ok((!removed.is_empty()).then(|| Removal { object: object(), removed }));
        }
        for patch in left.patches(name) {
            let answer = match patch.target {
                NodePart::Object => nodes.patch(name, &patch.params, &patch.body).await,
                NodePart::Status => nodes.patch_status(name, &patch.params, &patch.body).await,
            };
            match answer {
                // The next attempt begins with the Node as it is then.
                Err(kube::Error::Api(status)) if [NOT_FOUND, CONFLICT].contains(&status.code) => break,
                answer => answer.map_err(|error| RemoveError::request(object(), error))?,
            };
        }
    }
    Err(RemoveError::Changing { node: name.to_owned() })
}

/// Removes the Leases that reporters renewed.
async fn leases(leases: &Api<Lease>) -> Result<Vec<Removal>, RemoveError> {
    let mut removed = Vec::new();
    for lease in all(leases, "Leases", &ListParams::default()).await? {
        let is_ours =
            lease.managed_fields().iter().any(|fields| fields.manager.as_deref() == Some(FIELD_MANAGER));
        if is_ours {
            let object = format!("Lease {}", lease.name_any());
            // Not one that another owner made under the same name a moment ago.
            let conditions = Preconditions { uid: lease.uid(), resource_version: None };
            let how = DeleteParams { preconditions: Some(conditions), ..DeleteParams::default() };
            gone(leases.delete(&lease.name_any(), &how).await, &object)?;
            removed.push(Removal { object, removed: Vec::new() });
        }
    }
    Ok(removed)
}

/// Removes all reports. The kind may be gone already.
async fn reports(reports: &Api<DriftReport>) -> Result<Vec<Removal>, RemoveError> {
    let mut removed = Vec::new();
    for report in all(reports, "DriftReports", &ListParams::default()).await? {
        let object = format!("DriftReport {}", report.name_any());
        gone(reports.delete(&report.name_any(), &DeleteParams::default()).await, &object)?;
        removed.push(Removal { object, removed: Vec::new() });
    }
    Ok(removed)
}

/// An object that does not exist is as good as removed.
fn gone<T>(answer: Result<T, kube::Error>, object: &str) -> Result<(), RemoveError> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(()),
        answer => answer.map(drop).map_err(|error| RemoveError::request(object, error)),
    }
}

/// All objects, page by page; none if their kind does not exist.
async fn all<K>(api: &Api<K>, what: &str, params: &ListParams) -> Result<Vec<K>, RemoveError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut params = params.clone().limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = match api.list(&params).await {
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => return Ok(found),
            page => page.map_err(|error| RemoveError::request(what, error))?,
        };
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}
