//! `kubectl holdfast status`: the state of each node.
//!
//! In: DriftReports, Leases and Nodes. Out: a row for each node. A report whose reporter does not renew its Lease any more is not
//! believed.

use super::access::Access;
use super::error::{FORBIDDEN, NOT_FOUND, PluginError};
use super::exit::{DIFFERS, IN_SYNC};
use super::output::{Screen, age};
use crate::api::{DriftReport, DriftState, ReportedConfig};
use crate::reports::config_sentence;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, ObjectList};
use kube::core::PartialObjectMeta;
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The value of [`StatusAnswer::schema`].
const SCHEMA: &str = "holdfast.kubectl-status/v1";
/// Seconds without a renewal after which a reporter is silent, if its Lease does not say it.
const SILENT_SECONDS: i32 = 300;
/// What to do without the kind DriftReport.
pub(super) const INSTALL: &str = "is Holdfast installed in this cluster?";

/// The state of a node as a caller may believe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum NodeState {
    InSync,
    Drifted,
    Updating,
    Unknown,
    /// The reporter is silent, or its Lease is from the future, so the report may be out of date.
    Stale,
    /// The node has no report.
    NoReport,
}

#[derive(Debug, Serialize)]
struct StatusAnswer<'a> {
    schema: &'static str,
    nodes: &'a [NodeRow],
}

/// One node.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeRow {
    node: String,
    state: NodeState,
    /// What the report says, also if it is stale.
    reported: Option<DriftState>,
    degraded: bool,
    count: i64,
    newest_path: Option<String>,
    by: Option<String>,
    since: Option<String>,
    /// The node's config, and whether it is the one of the cluster.
    config: Option<ReportedConfig>,
    /// The sentence about a config that is not.
    #[serde(skip)]
    config_sentence: Option<String>,
    /// When the reporter was alive for certain.
    reporter_seen: Option<Timestamp>,
}

pub(super) async fn run(access: &Access, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
    let reports: Api<DriftReport> = Api::all(access.client.clone());
    let leases: Api<Lease> = Api::namespaced(access.client.clone(), &access.namespace);
    let nodes: Api<Node> = Api::all(access.client.clone());
    let everything = ListParams::default();
    let reports = reports.list(&everything).await;
    let reports = reports.map_err(|error| PluginError::request("the kind DriftReport", INSTALL, error))?;
    let leases = leases.list(&everything).await;
    let leases = leases.map_err(|error| PluginError::request("the Leases", INSTALL, error))?;
    // Without this right, nodes that never had a reporter are not shown.
    let nodes = nodes.list_metadata(&everything).await;
    if nodes.is_err() {
        screen.note("Nodes without a report are not shown, because you may not list nodes.")?;
    }
    let rows = rows(&reports, &leases, nodes.ok().as_ref(), Timestamp::now());
    if !screen.object(&StatusAnswer { schema: SCHEMA, nodes: &rows })? {
        table(&rows, Timestamp::now(), screen)?;
    }
    if rows.is_empty() {
        screen.note("No node has a DriftReport, so the state of no node is known.")?;
    } else if leases.items.is_empty() {
        screen.note(&format!(
            "The namespace {} has no Lease of a reporter; if Holdfast's pods are in another one, name it by -n.",
            access.namespace
        ))?;
    }
    let is_in_sync = !rows.is_empty() && rows.iter().all(|row| row.state == NodeState::InSync);
    Ok(if is_in_sync { IN_SYNC } else { DIFFERS })
}

/// The rows, by name.
pub(super) fn rows(
    reports: &ObjectList<DriftReport>,
    leases: &ObjectList<Lease>,
    nodes: Option<&ObjectList<PartialObjectMeta<Node>>>,
    now: Timestamp,
) -> Vec<NodeRow> {
    let reports: BTreeMap<String, &DriftReport> =
        reports.iter().map(|report| (report.name_any(), report)).collect();
    let leases: BTreeMap<String, &Lease> = leases.iter().map(|lease| (lease.name_any(), lease)).collect();
    let nodes = nodes.into_iter().flatten().map(kube::ResourceExt::name_any);
    let names: BTreeSet<String> = nodes.chain(reports.keys().cloned()).collect();
    names
        .into_iter()
        .map(|node| {
            let status = reports.get(&node).and_then(|report| report.status.as_ref());
            let (seen, is_silent) = silence(leases.get(&node).copied(), now);
            let state = match status.map(|status| status.state) {
                None => NodeState::NoReport,
                Some(_) if is_silent => NodeState::Stale,
                Some(DriftState::InSync) => NodeState::InSync,
                Some(DriftState::Drifted) => NodeState::Drifted,
                Some(DriftState::Updating) => NodeState::Updating,
                Some(DriftState::Unknown) => NodeState::Unknown,
            };
            let newest = status.and_then(|status| status.newest.as_ref());
            NodeRow {
                node,
                state,
                reported: status.map(|status| status.state),
                degraded: status.is_some_and(|status| status.degraded),
                count: status.map_or(0, |status| status.count),
                newest_path: newest.map(|newest| newest.path.clone()),
                by: newest.map(|newest| newest.by.clone()),
                since: newest.and_then(|newest| newest.since.clone()),
                config: status.and_then(|status| status.config.clone()),
                config_sentence: status.and_then(config_sentence),
                reporter_seen: seen,
            }
        })
        .collect()
}

/// When the reporter with this Lease was alive, and whether it may be silent. A Lease from the future says nothing: a node whose clock
/// was ahead would count as alive until that time. Its duration makes a reporter silent earlier, and never later, because root of the node may
/// write it.
fn silence(lease: Option<&Lease>, now: Timestamp) -> (Option<Timestamp>, bool) {
    let lease = lease.and_then(|lease| lease.spec.as_ref());
    let seen = lease.and_then(|lease| lease.renew_time.as_ref()).map(|time| time.0);
    let limit = lease.and_then(|lease| lease.lease_duration_seconds);
    let limit = limit.map_or(SILENT_SECONDS, |limit| limit.clamp(0, SILENT_SECONDS));
    (seen, seen.is_none_or(|seen| now.duration_since(seen).abs().as_secs() > limit.unsigned_abs().into()))
}

/// Whether the reporter of a node is silent, so that its report may be out of date. Notes it.
pub(super) async fn is_stale(
    access: &Access,
    node: &str,
    screen: &mut Screen<'_>,
) -> Result<bool, PluginError> {
    let leases: Api<Lease> = Api::namespaced(access.client.clone(), &access.namespace);
    let found = match leases.get(node).await {
        Ok(lease) => Some(lease),
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => None,
        Err(kube::Error::Api(status)) if status.code == FORBIDDEN => {
            screen.note(&format!(
                "note: the report of node {node} may be out of date: you may not read the Lease that shows whether its reporter is alive"
            ))?;
            return Ok(true);
        }
        Err(error) => return Err(PluginError::request("the Lease of the reporter", INSTALL, error)),
    };
    let now = Timestamp::now();
    let (seen, is_silent) = silence(found.as_ref(), now);
    if is_silent {
        let since = seen.map_or_else(
            || format!("has no Lease in the namespace {}", access.namespace),
            |seen| {
                if seen > now {
                    format!("renewed its Lease at {seen}, which is in the future: one of the clocks is wrong")
                } else {
                    format!("has been silent for {}", age(seen, now))
                }
            },
        );
        screen
            .note(&format!("note: the reporter of node {node} {since}, so its report may be out of date"))?;
    }
    Ok(is_silent)
}

/// Prints the rows.
pub(super) fn table(rows: &[NodeRow], now: Timestamp, screen: &mut Screen<'_>) -> Result<(), PluginError> {
    let ago = |time: Option<Timestamp>| time.map(|time| age(time, now)).unwrap_or_default();
    let cells: Vec<[String; 7]> = rows
        .iter()
        .map(|row| {
            let state = match (row.state, row.reported) {
                (NodeState::Stale, Some(reported)) => format!("Stale ({reported:?})"),
                (state, _) => format!("{state:?}"),
            };
            [
                row.node.clone(),
                state,
                row.reported.map(|_| row.count.to_string()).unwrap_or_default(),
                row.newest_path.clone().unwrap_or_default(),
                row.by.clone().unwrap_or_default(),
                ago(row.since.as_deref().and_then(|since| since.parse().ok())),
                ago(row.reporter_seen),
            ]
        })
        .collect();
    screen.table(["NODE", "STATE", "COUNT", "NEWEST PATH", "BY", "SINCE", "REPORTER SEEN"], &cells)?;
    for row in rows {
        if let Some(sentence) = &row.config_sentence {
            screen.line(&format!("node {}: {sentence}", row.node))?;
        }
    }
    Ok(())
}
