//! Whether a policy selects a node.
//!
//! In: the Node's labels and annotations, the selectors of a policy. Out: yes or no.

use crate::api::DriftPolicySpec;
use crate::publish::NodeMetadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{ParseExpressionError, Selector, SelectorExt as _};
use std::collections::BTreeMap;

/// The annotations with the name of a rendered MachineConfig: the one to come first, because it has the Node's new pool.
const CONFIGS: [&str; 2] =
    ["machineconfiguration.openshift.io/desiredConfig", "machineconfiguration.openshift.io/currentConfig"];
/// What the name of a rendered MachineConfig begins with.
const RENDERED: &str = "rendered-";
/// What the label of a role begins with.
const ROLE: &str = "node-role.kubernetes.io/";

/// What the selectors of policies compare.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeFacts {
    labels: BTreeMap<String, String>,
    /// The pool of its rendered MachineConfig.
    pool: Option<String>,
}

impl NodeFacts {
    /// The facts of a Node's metadata.
    pub(super) fn of(node: &NodeMetadata) -> Self {
        let mut configs = CONFIGS.iter().filter_map(|name| node.annotations.get(*name));
        let pool = configs.find_map(|name| pool_of(name));
        Self { labels: node.labels.clone(), pool: pool.map(str::to_owned) }
    }

    /// Whether a policy selects the node.
    ///
    /// # Errors
    /// The node selector cannot be read.
    pub(super) fn is_selected(&self, spec: &DriftPolicySpec) -> Result<bool, ParseExpressionError> {
        let selector =
            spec.node_selector.clone().map(LabelSelector::from).map(Selector::try_from).transpose()?;
        let in_pool = spec.pools.is_empty() || spec.pools.iter().any(|pool| self.is_in(pool));
        Ok(in_pool && selector.is_none_or(|selector| selector.matches(&self.labels)))
    }

    fn is_in(&self, pool: &str) -> bool {
        match &self.pool {
            Some(own) => own == pool,
            None => self.labels.contains_key(&format!("{ROLE}{pool}")),
        }
    }
}

/// The pool in the name of a rendered MachineConfig, `rendered-POOL-HASH`.
fn pool_of(config: &str) -> Option<&str> {
    let (pool, hash) = config.strip_prefix(RENDERED)?.rsplit_once('-')?;
    (!pool.is_empty() && !hash.is_empty()).then_some(pool)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(metadata: serde_json::Value) -> NodeFacts {
        NodeFacts::of(&NodeMetadata::of(&serde_json::from_value(metadata).unwrap()))
    }

    fn selected(node: &NodeFacts, spec: serde_json::Value) -> bool {
        let mut spec = spec;
        spec["rules"] = json!([]);
        node.is_selected(&serde_json::from_value(spec).unwrap()).unwrap()
    }

    #[test]
    fn a_policy_selects_by_pool_and_by_label_and_without_both_all_nodes() {
        let worker = node(json!({
            "labels": {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/infra": "", "zone": "a"},
            "annotations": {"machineconfiguration.openshift.io/currentConfig": "rendered-infra-0a1b"},
        }));
        assert!(selected(&worker, json!({})));
        assert!(selected(&worker, json!({"pools": ["infra"]})));
        assert!(
            !selected(&worker, json!({"pools": ["worker"]})),
            "the pool of the config, not of another role"
        );
        let in_zone =
            |zone: &str| json!({"pools": ["infra"], "nodeSelector": {"matchLabels": {"zone": zone}}});
        assert!(selected(&worker, in_zone("a")));
        assert!(!selected(&worker, in_zone("b")));
        let expression = json!([{"key": "zone", "operator": "NotIn", "values": ["a", "b"]}]);
        assert!(!selected(&worker, json!({"nodeSelector": {"matchExpressions": expression}})));
    }

    #[test]
    fn a_node_without_a_rendered_config_is_in_the_pools_of_its_roles_and_a_new_config_names_the_new_pool() {
        let plain = node(json!({"labels": {"node-role.kubernetes.io/worker": ""}}));
        assert!(selected(&plain, json!({"pools": ["worker"]})));
        assert!(!selected(&plain, json!({"pools": ["master"]})));
        let moving = node(json!({"annotations": {
            "machineconfiguration.openshift.io/currentConfig": "rendered-worker-0a1b",
            "machineconfiguration.openshift.io/desiredConfig": "rendered-gpu-large-0a1b",
        }}));
        assert!(selected(&moving, json!({"pools": ["gpu-large"]})));
        assert!(!selected(&moving, json!({"pools": ["worker"]})));
    }
}
