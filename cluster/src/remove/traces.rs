//! What a reporter left on a Node.
//!
//! In: a Node. Out: the fields of Holdfast on it, and the patches that remove them.

use crate::manage::{CURRENT_CONFIG, DESIRED_CONFIG, DESIRED_DRAIN, REASON, STATE, is_cordoned_by_us};
use crate::publish::FIELD_MANAGER;
use crate::reports::CONDITIONS;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};

/// What the keys of Holdfast's annotations and taints begin with.
const PREFIX: &str = "holdfast.dev/";
/// The annotations without which the Machine Config Operator's daemon does not start on a node that it managed before.
const OF_THE_DAEMON: [&str; 3] = [CURRENT_CONFIG, STATE, REASON];
/// The field manager of that daemon, which gets these annotations.
const DAEMON: &str = "machine-config-daemon";
/// The part of a Node that reporters write through its subresource.
const STATUS: &str = "status";

/// Which endpoint of a Node takes a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodePart {
    /// The Node itself.
    Object,
    /// Its status.
    Status,
}

/// One patch.
#[derive(Debug)]
pub(super) struct NodePatch {
    pub(super) target: NodePart,
    pub(super) params: PatchParams,
    pub(super) body: Patch<Value>,
}

/// What is to be removed from a Node.
#[derive(Debug, Default)]
pub(super) struct Traces {
    conditions: Vec<String>,
    annotations: Vec<String>,
    taints: Vec<String>,
    /// The taints that stay.
    other_taints: Vec<Value>,
    /// The parts that have fields of our field manager.
    applied: Vec<NodePart>,
    /// Annotations of other products that our field manager applied, in the mode `manage`.
    applied_annotations: Vec<String>,
    /// The annotations that the Machine Config Operator's daemon needs, with their values, if our field manager alone wrote one of them, on a Node
    /// that has `desiredConfig`.
    handed_over: Map<String, Value>,
    /// The Node is cordoned, and the cordon is that of a drain that our field manager asked for.
    is_cordoned: bool,
    version: Option<String>,
}

impl Traces {
    /// The traces on this Node.
    pub(super) fn of(node: &Node) -> Self {
        let ours = |key: &&String| key.starts_with(PREFIX);
        let mut found = Self {
            annotations: node.annotations().keys().filter(ours).cloned().collect(),
            version: node.resource_version(),
            ..Self::default()
        };
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let kinds = conditions.map(|condition| condition.type_.clone());
        found.conditions = kinds.filter(|kind| CONDITIONS.contains(&kind.as_str())).collect();
        for taint in node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()) {
            if taint.key.starts_with(PREFIX) {
                found.taints.push(format!("{}:{}", taint.key, taint.effect));
            } else {
                found.other_taints.push(json!(taint));
            }
        }
        let mut of_others: Vec<String> = Vec::new();
        for fields in node.managed_fields() {
            let owned = || fields.fields_v1.iter().flat_map(|fields| annotations_in(&fields.0));
            if fields.manager.as_deref() == Some(FIELD_MANAGER)
                && fields.operation.as_deref() == Some("Apply")
            {
                let is_status = fields.subresource.as_deref() == Some(STATUS);
                found.applied.push(if is_status { NodePart::Status } else { NodePart::Object });
                found.applied_annotations.extend(owned().filter(|name| !name.starts_with(PREFIX)));
            } else {
                of_others.extend(owned());
            }
        }
        let is_left = |name: &str| of_others.iter().any(|other| other == name);
        if node.annotations().contains_key(DESIRED_CONFIG) {
            let is_of_daemon = |name: &String| OF_THE_DAEMON.contains(&name.as_str());
            if found.applied_annotations.iter().any(|name| is_of_daemon(name) && !is_left(name)) {
                // All of them: an apply takes away what its manager applied before and does not name.
                let all = node.annotations().iter().filter(|(name, _)| is_of_daemon(name));
                found.handed_over = all.map(|(name, value)| (name.clone(), value.as_str().into())).collect();
            }
            // They stay.
            found.applied_annotations.retain(|name| !is_of_daemon(name));
        }
        // A reporter that took the node over also applies the request of the Machine Config Operator's daemon, which then has two managers.
        found.is_cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true))
            && found.applied_annotations.iter().any(|name| name == DESIRED_DRAIN)
            && !is_left(DESIRED_DRAIN)
            && is_cordoned_by_us(node.annotations());
        found
    }

    /// Whether the Node has no trace.
    pub(super) fn is_empty(&self) -> bool {
        self.names().is_empty() && self.applied.is_empty()
    }

    /// The fields, for people.
    pub(super) fn names(&self) -> Vec<String> {
        let named = |noun: &'static str, names: &[String]| -> Vec<String> {
            names.iter().map(|name| format!("{noun} {name}")).collect()
        };
        [
            if self.is_cordoned { vec!["cordon".to_owned()] } else { Vec::new() },
            named("condition", &self.conditions),
            named("annotation", &self.annotations),
            named("annotation", &self.applied_annotations),
            named("taint", &self.taints),
        ]
        .concat()
    }

    /// The patches, in their order. First the end of our cordon, while the annotations prove that it is ours. Then the Machine Config Operator's
    /// daemon gets the annotations that it needs. Then the empty set of our field
    /// manager, which removes what it alone applied. Then what another writer took over, or what was written without an apply, by name.
    pub(super) fn patches(&self, name: &str) -> Vec<NodePatch> {
        if self.is_cordoned {
            return vec![self.uncordon()];
        }
        if !self.handed_over.is_empty() {
            return vec![self.hand_over(name)];
        }
        if !self.applied.is_empty() {
            return self.applied.iter().map(|part| empty_set(name, *part)).collect();
        }
        let mut patches = Vec::new();
        if !self.conditions.is_empty() {
            let conditions: Vec<Value> =
                self.conditions.iter().map(|kind| json!({"$patch": "delete", "type": kind})).collect();
            patches.push(NodePatch {
                target: NodePart::Status,
                params: PatchParams::default(),
                body: Patch::Strategic(json!({"status": {"conditions": conditions}})),
            });
        }
        if !self.annotations.is_empty() {
            let annotations: Map<String, Value> =
                self.annotations.iter().map(|key| (key.clone(), Value::Null)).collect();
            patches.push(NodePatch {
                target: NodePart::Object,
                params: PatchParams::default(),
                body: Patch::Merge(json!({"metadata": {"annotations": annotations}})),
            });
        }
        // The list is written as a whole, so it must not have changed. A patch before would change the version: the next attempt
        // removes the taints then.
        if !self.taints.is_empty() && patches.is_empty() {
            patches.push(NodePatch {
                target: NodePart::Object,
                params: PatchParams::default(),
                body: Patch::Merge(json!({
                    "metadata": {"resourceVersion": self.version},
                    "spec": {"taints": self.other_taints},
                })),
            });
        }
        patches
    }

    /// Makes the daemon's field manager an owner of the annotations that it needs. They then stay when our field manager gives them up.
    fn hand_over(&self, name: &str) -> NodePatch {
        NodePatch {
            target: NodePart::Object,
            params: PatchParams::apply(DAEMON).force(),
            body: Patch::Apply(json!({
                "apiVersion": "v1", "kind": "Node",
                // A value that was written meanwhile is newer.
                "metadata": {"name": name, "resourceVersion": self.version, "annotations": self.handed_over},
            })),
        }
    }

    /// Ends our cordon with the request for its drain, so that the drain controller does not begin it again. The Node must not have changed: a
    /// cordon that is set meanwhile is not ours.
    fn uncordon(&self) -> NodePatch {
        NodePatch {
            target: NodePart::Object,
            params: PatchParams::default(),
            body: Patch::Merge(json!({
                "metadata": {"resourceVersion": self.version, "annotations": {DESIRED_DRAIN: null}},
                "spec": {"unschedulable": null},
            })),
        }
    }
}

/// The names of the annotations in a set of fields.
fn annotations_in(fields: &Value) -> impl Iterator<Item = String> {
    let names = fields["f:metadata"]["f:annotations"].as_object();
    names.into_iter().flat_map(Map::keys).filter_map(|name| Some(name.strip_prefix("f:")?.to_owned()))
}

/// The apply after which our field manager has no field of this part.
fn empty_set(name: &str, part: NodePart) -> NodePatch {
    let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    if part == NodePart::Status {
        node["status"] = json!({"conditions": []});
    }
    NodePatch { target: part, params: PatchParams::apply(FIELD_MANAGER).force(), body: Patch::Apply(node) }
}
