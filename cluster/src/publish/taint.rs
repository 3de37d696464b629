//! The taint of a drifted node.
//!
//! In: the report, and whether a policy asks for the taint. Out: the Node's taints with ours or without it. The API has one list of
//! taints and no field manager for each, so the list is written with the version of the Node that it was read from. A conflict changes
//! nothing: the list is read again.

use super::policies::PolicyStanding;
use crate::api::DriftState;
use crate::reports::NodeFinding;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt as _;
use serde_json::{Value, json};

/// The key of the taint.
pub(super) const KEY: &str = "holdfast.dev/drifted";
/// Its effect: pods that do not tolerate it are not scheduled to the node. Those that run stay.
const EFFECT: &str = "NoSchedule";

/// The taints of the Node as the API server answered last.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SeenTaints {
    version: Option<String>,
    taints: Vec<Taint>,
}

impl SeenTaints {
    pub(super) fn of(node: &Node) -> Self {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
        Self { version: node.resource_version(), taints: taints.unwrap_or_default() }
    }

    /// Whether ours is among them.
    pub(super) fn has_ours(&self) -> bool {
        self.taints.iter().any(|taint| taint.key == KEY)
    }

    /// The patch after which ours is among them, or is not.
    pub(super) fn patch(&self, is_tainted: bool) -> Value {
        let mut taints: Vec<Value> =
            self.taints.iter().filter(|taint| taint.key != KEY).map(|taint| json!(taint)).collect();
        if is_tainted {
            taints.push(json!({"key": KEY, "effect": EFFECT}));
        }
        json!({"metadata": {"resourceVersion": self.version}, "spec": {"taints": taints}})
    }
}

/// Whether the node is to have the taint; `None` if it keeps what it has. A node without a known drift never keeps it, also while the
/// policies are not known. One without a policy that asks for the taint never does, either.
pub(super) fn wanted(finding: &NodeFinding, policies: Option<&PolicyStanding>) -> Option<bool> {
    let status = &finding.status;
    match (status.state, policies.map(|policies| policies.taints)) {
        (DriftState::InSync, _) | (_, Some(Some(false))) => Some(false),
        // A lasting gap would keep the taint for ever.
        (DriftState::Unknown, _) if finding.has_no_known_drift() => Some(false),
        (DriftState::Drifted, Some(Some(true))) => Some(status.degraded),
        (DriftState::Drifted, Some(None)) => (!status.degraded).then_some(false),
        (_, None) | (DriftState::Updating | DriftState::Unknown, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::DriftReportStatus;
    use crate::reports::SensorState;

    fn seen(keys: &[&str]) -> SeenTaints {
        let taints: Vec<Value> = keys.iter().map(|key| json!({"key": key, "effect": "NoExecute"})).collect();
        let node = json!({"metadata": {"name": "a", "resourceVersion": "7"}, "spec": {"taints": taints}});
        SeenTaints::of(&serde_json::from_value(node).unwrap())
    }

    #[test]
    fn taints_of_others_stay_and_the_patch_is_for_the_version_that_was_read() {
        let patch = seen(&["other", KEY]).patch(false);
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["spec"]["taints"], json!([{"key": "other", "effect": "NoExecute"}]));
        let patch = seen(&["other"]).patch(true);
        assert_eq!(patch["spec"]["taints"][1], json!({"key": KEY, "effect": "NoSchedule"}));
        assert!(seen(&[KEY]).has_ours() && !seen(&["other"]).has_ours());
    }

    #[test]
    fn only_a_drift_that_degrades_taints_and_only_if_a_policy_asks_for_it() {
        let finding = |state, degraded| NodeFinding {
            status: DriftReportStatus { state, degraded, ..DriftReportStatus::default() },
            sensor: SensorState::Answers { refuses_config: false },
            text: None,
            config: None,
        };
        let standing = |taints| PolicyStanding { taints, ..PolicyStanding::default() };
        let (asks, waits, other) = (standing(Some(true)), standing(None), standing(Some(false)));
        for (state, degraded, policies, expected) in [
            (DriftState::Drifted, true, Some(&asks), Some(true)),
            (DriftState::Drifted, false, Some(&asks), Some(false)),
            (DriftState::Drifted, true, Some(&other), Some(false)),
            (DriftState::Drifted, true, Some(&waits), None),
            (DriftState::Drifted, false, Some(&waits), Some(false)),
            (DriftState::Drifted, true, None, None),
            (DriftState::Unknown, true, Some(&asks), None),
            (DriftState::Unknown, true, Some(&other), Some(false)),
            (DriftState::Unknown, true, Some(&waits), None),
            (DriftState::Unknown, false, Some(&asks), Some(false)),
            (DriftState::Unknown, false, Some(&waits), Some(false)),
            (DriftState::Unknown, false, None, Some(false)),
            (DriftState::InSync, false, Some(&asks), Some(false)),
            (DriftState::InSync, false, Some(&waits), Some(false)),
            (DriftState::InSync, false, None, Some(false)),
        ] {
            assert_eq!(wanted(&finding(state, degraded), policies), expected, "{state:?} {degraded}");
        }
        // The last status of a silent sensor, or none at all, is no proof.
        let sensor = SensorState::Silent { since: String::new() };
        let silent = NodeFinding { sensor, ..finding(DriftState::Unknown, false) };
        assert_eq!(wanted(&silent, Some(&asks)), None);
    }
}
