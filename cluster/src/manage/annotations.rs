//! The annotations of a Node that lead an update.
//!
//! In: nothing. Out: their names, and the form of their values.

use std::collections::BTreeMap;

/// The state of the update. Ours in mode `manage`.
pub(crate) use crate::publish::STATE;

/// The MachineConfig that the node has. Ours.
pub(crate) const CURRENT_CONFIG: &str = "machineconfiguration.openshift.io/currentConfig";
/// The MachineConfig that the node is to have. The controllers' own.
pub(crate) const DESIRED_CONFIG: &str = "machineconfiguration.openshift.io/desiredConfig";
/// Why the state is not good. Ours.
pub(crate) const REASON: &str = "machineconfiguration.openshift.io/reason";
/// What the drain controller is asked to do. Ours.
pub(crate) const DESIRED_DRAIN: &str = "machineconfiguration.openshift.io/desiredDrain";
/// The newest request that the drain controller has carried out. The controller's own.
pub(super) const LAST_APPLIED_DRAIN: &str = "machineconfiguration.openshift.io/lastAppliedDrain";
/// Set to [`REBOOTING`] while the node reboots for an apply. Ours.
pub(super) const POST_CONFIG_ACTION: &str = "machineconfiguration.openshift.io/post-config-action";
/// How many control plane nodes the cluster has. The controllers' own.
pub(super) const TOPOLOGY: &str = "machineconfiguration.openshift.io/controlPlaneTopology";
/// What the apply that is under way does. Ours.
pub(super) const PLAN: &str = "holdfast.dev/plan";
/// Set if the node was cordoned before we asked for a drain. Such a cordon is not ours to end. The value is [`OVER`] when the update that needed
/// the drain has ended, because a request that was carried out then stays.
pub(super) const CORDONED_BEFORE: &str = "holdfast.dev/cordoned-before";

/// The annotations that we write in mode `manage`. The admission policy of that mode has the same list.
pub const OURS: [&str; 7] =
    [CURRENT_CONFIG, STATE, REASON, DESIRED_DRAIN, POST_CONFIG_ACTION, PLAN, CORDONED_BEFORE];

/// The value of [`POST_CONFIG_ACTION`].
pub(super) const REBOOTING: &str = "Rebooting";

/// A value of [`CORDONED_BEFORE`]: the requested drain proves nothing for another update.
pub(super) const OVER: &str = "over";

/// The value of [`TOPOLOGY`] in a cluster of one node. Its workloads have no other node to go to.
pub(super) const SINGLE_NODE: &str = "SingleReplica";

/// The values of [`STATE`].
pub(super) mod state {
    pub(in super::super) const DONE: &str = "Done";
    pub(in super::super) use crate::publish::WORKING;
    pub(in super::super) const DEGRADED: &str = "Degraded";
    pub(in super::super) const UNRECONCILABLE: &str = "Unreconcilable";
}

/// How a request for a drain begins.
pub(super) const DRAIN: &str = "drain-";
/// How a request to end a cordon begins.
const UNCORDON: &str = "uncordon-";
/// How every second request of one kind for one config ends. The name of no config has this character.
const AGAIN: &str = "+again";

/// A request to drain the node for a config that the drain controller has not carried out yet. The controller compares whole requests, so one that
/// it has carried out for an earlier update drains nothing.
pub(super) fn drain(config: &str, applied: Option<&String>) -> String {
    other_than(applied, format!("{DRAIN}{config}"))
}

/// A request that is not the one that the drain controller has carried out last.
fn other_than(applied: Option<&String>, request: String) -> String {
    if applied == Some(&request) { request + AGAIN } else { request }
}

/// Whether this is a request to drain the node for this config.
pub(super) fn is_drain_for(request: &str, config: &str) -> bool {
    request.strip_prefix(DRAIN).is_some_and(|found| found.strip_suffix(AGAIN).unwrap_or(found) == config)
}

/// The request of a drain that is not done; none if the update is over for which it was requested.
pub(super) fn awaited_drain(annotations: &BTreeMap<String, String>) -> Option<&String> {
    let requested = annotations.get(DESIRED_DRAIN).filter(|request| request.starts_with(DRAIN))?;
    let is_over = annotations.get(CORDONED_BEFORE).is_some_and(|value| value == OVER);
    (!is_over && annotations.get(LAST_APPLIED_DRAIN) != Some(requested)).then_some(requested)
}

/// A request to end the cordon of a drain that the drain controller has not carried out yet.
pub(super) fn uncordon(config: &str, applied: Option<&String>) -> String {
    other_than(applied, format!("{UNCORDON}{config}"))
}

/// Whether a cordon of the node is that of our own drain: the drain was requested, or its end is not done yet.
pub(crate) fn is_cordoned_by_us(annotations: &BTreeMap<String, String>) -> bool {
    let requested = annotations.get(DESIRED_DRAIN);
    let is_ended = requested == annotations.get(LAST_APPLIED_DRAIN);
    !annotations.contains_key(CORDONED_BEFORE)
        && requested
            .is_some_and(|request| request.starts_with(DRAIN) || (request.starts_with(UNCORDON) && !is_ended))
}
