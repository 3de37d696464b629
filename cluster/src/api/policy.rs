//! `DriftPolicy`: what the nodes do about drift.
//!
//! The rules have the form of the policy files of a node, without the action `ignore` and the field `secret`. An attacker with
//! a reporter could hide any drift with the one, and read contents with the other.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rules for the nodes that the selectors name.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "holdfast.dev",
    version = "v1alpha1",
    kind = "DriftPolicy",
    plural = "driftpolicies",
    singular = "driftpolicy",
    category = "holdfast",
    status = "DriftPolicyStatus",
    derive = "PartialEq",
    doc = "What nodes do about drift of paths. A DriftPolicy selects nodes by pool and by label; without both it selects all nodes.",
    printcolumn = r#"{"name": "Precedence", "type": "integer", "jsonPath": ".spec.precedence",
         "description": "Of two rules for one path, the one with the higher precedence applies."}"#,
    printcolumn = r#"{"name": "Selected", "type": "integer", "jsonPath": ".status.selected",
         "description": "The number of nodes that it selects."}"#,
    printcolumn = r#"{"name": "In force", "type": "integer", "jsonPath": ".status.inForce",
         "description": "The number of nodes on which it is in force."}"#,
    printcolumn = r#"{"name": "Refused", "type": "integer", "jsonPath": ".status.refused",
         "description": "The number of nodes that refuse it."}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DriftPolicySpec {
    /// Of two policies with a rule for one path, the one with the higher precedence applies. Two policies of one precedence with
    /// different rules for one path are a conflict on each node that both select: that node then keeps the policies that it had.
    #[serde(default)]
    #[schemars(range(min = -1000, max = 1000))]
    pub precedence: i64,
    /// The pools whose nodes it selects, such as `worker`. Without any it selects the nodes of all pools. A node belongs to the pool
    /// of its rendered MachineConfig; without one, to each pool for which it has the label `node-role.kubernetes.io/POOL`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")), extend("x-kubernetes-list-type" = "set"))]
    pub pools: Vec<String>,
    /// The labels of the nodes that it selects, of those in the pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
    /// Nodes that a drift degrades get the taint `holdfast.dev/drifted:NoSchedule` until they match again. Holdfast needs the
    /// component `taint` for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taint_drifted_nodes: bool,
    /// The rules. A path may have one rule about declared things or about an undeclared object (`absent`), one about undeclared names
    /// (`closed`), and one about what the image has (`image`).
    #[schemars(length(min = 1, max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["path", "closed", "image"]))]
    pub rules: Vec<PolicyRule>,
}

/// Labels of nodes. Each entry has to match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelector {
    /// Labels with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Labels with conditions about their values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<LabelExpression>,
}

/// A condition about one label.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0",
    "message": "In and NotIn need values, Exists and DoesNotExist have none"
}]))]
pub struct LabelExpression {
    /// The label.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// The condition.
    pub operator: LabelOperator,
    /// The values, for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)), extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// A condition about the value of a label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LabelOperator {
    /// It is one of the values.
    In,
    /// It is none of the values, or the label is absent.
    NotIn,
    /// The label exists.
    #[default]
    Exists,
    /// The label does not exist.
    DoesNotExist,
}

impl From<NodeSelector> for LabelSelector {
    fn from(selector: NodeSelector) -> Self {
        let expressions = selector.match_expressions.into_iter().map(|expression| LabelSelectorRequirement {
            key: expression.key,
            operator: format!("{:?}", expression.operator),
            values: (!expression.values.is_empty()).then_some(expression.values),
        });
        Self { match_labels: Some(selector.match_labels), match_expressions: Some(expressions.collect()) }
    }
}

/// What nodes do about drift of the paths that a pattern matches.
#[expect(clippy::struct_excessive_bools, reason = "one for each key of a rule")]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!self.closed || (self.path != '/' && !self.path.contains('**') && (self.path.endsWith('/') || self.path.matches('[*?{\\\\\\\\[]')))",
        "message": "a closed path is a directory, with / at the end, or a glob of directories without **"
    },
    {"rule": "self.closed || !has(self.except) || size(self.except) == 0", "message": "only a rule with closed: true has exceptions"},
    {
        "rule": "self.closed || !has(self.exceptLinks) || size(self.exceptLinks) == 0",
        "message": "only a rule with closed: true has exceptions"
    },
    {"rule": "!(self.absent && (self.closed || self.image))", "message": "a rule has one of absent, closed and image; write two rules"},
    {
        "rule": "!self.absent || !self.path.matches('/$|[*?{\\\\\\\\[]')",
        "message": "a path with absent: true is one path, without / at its end and without wildcards"
    },
    {"rule": "!(self.image && self.closed)", "message": "a rule has either closed: true or image: true; write two rules"},
    {
        "rule": "!self.image || self.action != 'revert'",
        "message": "a rule with image: true cannot revert: Holdfast has digests of the image's files and no contents"
    },
    {"rule": "!self.scan || self.image", "message": "only a rule with image: true has scan: true"},
    {"rule": "!self.scan || self.action != 'deny'", "message": "a rule with scan: true cannot deny: Holdfast does not watch its paths"}
]))]
pub struct PolicyRule {
    /// A path, a directory that ends with `/`, or a glob in which `*` stays within a name and `**` does not.
    #[schemars(
        length(min = 1, max = 1024),
        extend("x-kubernetes-validations" = [
            {"rule": "self.startsWith('/')", "message": "must be an absolute path"},
            {"rule": "!self.contains('//') && !self.matches('/[.]{1,2}(/|$)')", "message": "must not contain an empty part, . or .."},
            {"rule": "!(self.endsWith('/') && self.matches('[*?{\\\\\\\\[]'))", "message": "a glob matches names: end it with ** for everything below a directory"}
        ])
    )]
    pub path: String,
    /// What the node does. In the mode `observe` each of `revert` and `deny` acts as `degrade`.
    pub action: PolicyAction,
    /// Changes by these actors are observed at most.
    #[serde(default, skip_serializing_if = "ActorNames::is_empty")]
    pub allowed_actors: ActorNames,
    /// Whatever is in the directory `path`, or in each directory that the glob `path` names, and neither a config nor a package nor the
    /// booted image declares is drift of kind `unexpected` with this action. Declared things have the action of another rule.
    #[serde(default)]
    pub closed: bool,
    /// Nothing may be at the path `path`, unless a config, a package or the booted image declares it: an object that is there is drift of kind
    /// `unexpected` with this action. A declared object has the action of another rule. `revert` moves an object to the quarantine of the node,
    /// but no directory.
    #[serde(default)]
    pub absent: bool,
    /// What the booted image, the host's packages or its baseline have at the paths is expected there and watched, unless a config declares
    /// it. The action is about these things. The node needs an index (`holdfast image index`).
    #[serde(default)]
    pub image: bool,
    /// With `image: true`: the node compares the paths one after the other at a slow pace, a round each day, and watches only those that
    /// differ.
    #[serde(default)]
    pub scan: bool,
    /// Names, also as globs, that may be in a closed directory at any depth, whatever is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 1, max = 255), regex(pattern = "^[^/]+$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub except: Vec<String>,
    /// Symbolic links that may be in a closed directory at any depth, by name and target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub except_links: Vec<LinkName>,
    /// Whether SELinux labels are compared. The default is `compare`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<LabelRule>,
    /// Why the rule is there, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub reason: Option<String>,
}

/// Symbolic links that are no drift in a closed directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LinkName {
    /// The name of the link, also as a glob.
    #[schemars(length(min = 1, max = 255), regex(pattern = "^[^/]+$"))]
    pub name: String,
    /// The text of the link's target, also as a glob in which `*` stays within a name.
    #[schemars(length(min = 1, max = 1024))]
    pub target: String,
}

/// What a node does about drift.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PolicyAction {
    /// It shows the drift.
    Observe,
    /// Also: the node is degraded.
    #[default]
    Degrade,
    /// Also: the node writes the declared state back.
    Revert,
    /// The node's kernel refuses the change. Drift that it cannot refuse degrades the node.
    Deny,
}

/// Whether labels are compared with the SELinux policy's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LabelRule {
    /// A label of another type is drift.
    Compare,
    /// They are not compared.
    Ignore,
}

/// The actors that may change a path. One matching entry is enough.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActorNames {
    /// systemd units of the host, by name or glob.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub units: Vec<String>,
    /// Executables of the host, by absolute path or glob.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 1024), regex(pattern = "^/")))]
    pub exes: Vec<String>,
    /// Login users, also behind sudo.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub users: Vec<String>,
    /// Pods as `NAMESPACE/NAME`. The name may be a glob, the namespace may not: its owner chooses the names of its pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 3, max = 317), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[^/]+$"))
    )]
    pub pods: Vec<String>,
    /// Pods that run as a service account, `NAMESPACE/NAME`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 3, max = 317), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[-.a-z0-9]+$"))
    )]
    pub service_accounts: Vec<String>,
}

impl ActorNames {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Which nodes have taken the policy. The controller of Holdfast writes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriftPolicyStatus {
    /// The generation of the spec that the numbers are about. A node that has not taken it yet is in none of `inForce` and `refused`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The number of nodes that it selects.
    #[serde(default)]
    pub selected: i64,
    /// The number of nodes on which it is in force.
    #[serde(default)]
    pub in_force: i64,
    /// The names of nodes on which it is in force: at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "atomic"))]
    pub nodes: Vec<String>,
    /// The number of nodes that refuse it, or that have a conflict with it.
    #[serde(default)]
    pub refused: i64,
    /// Nodes that refuse it, limit it, or have a conflict with it, each with the reason: at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub problems: Vec<RefusingNode>,
}

/// A node on which a policy is not in force as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefusingNode {
    /// The name of the Node.
    pub node: String,
    /// What the node did with the policy.
    pub state: super::PolicyState,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
