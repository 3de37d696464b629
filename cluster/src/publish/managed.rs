//! What mode `manage` writes.

use crate::api::ReportedPlan;
use crate::reports::NodeEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;

/// The annotation with the state of an update.
pub(crate) const STATE: &str = "machineconfiguration.openshift.io/state";
/// Its value while an update is under way.
pub(crate) const WORKING: &str = "Working";
/// How the names of the annotations of the Machine Config Operator begin.
pub(crate) const PREFIX: &str = "machineconfiguration.openshift.io/";
/// The beginnings of the names of annotations that mode `manage` reads.
const PREFIXES: [&str; 2] = [PREFIX, "holdfast.dev/"];

/// What mode `manage` wants the cluster to see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManagedNode {
    /// The plan in the report.
    pub plan: Option<ReportedPlan>,
    /// The annotations of the Node; `None` if it has them.
    pub annotations: Option<AnnotationWrite>,
}

/// Annotations of the Node that differ from what the Node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotationWrite {
    /// All annotations of ours. One that is not in it is removed.
    pub annotations: BTreeMap<&'static str, String>,
    /// Annotations that the Node has and is not to have. An apply removes only those that the reporter itself has applied.
    pub removed: Vec<&'static str>,
    /// The version of the Node that differs. For another version the same annotations are another write.
    pub based_on: u64,
    /// The Event of the change.
    pub events: Vec<NodeEvent>,
}

/// What was written last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WrittenNode {
    /// The Node as the API server answered.
    pub node: Option<NodeMetadata>,
    /// The plan in the report.
    pub plan: Option<ReportedPlan>,
}

/// The part of a Node that leads an update, and which Node it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeMetadata {
    /// The uid of the Node. Another Node of the same name has another one.
    pub uid: Option<String>,
    /// The version of the Node. A later one is greater.
    pub resource_version: u64,
    /// The annotations of the Machine Config Operator and of Holdfast.
    pub annotations: BTreeMap<String, String>,
    /// All labels.
    pub labels: BTreeMap<String, String>,
}

impl NodeMetadata {
    /// Whether the annotations say that an update of the node is under way.
    pub fn is_being_updated(&self) -> bool {
        self.annotations.get(STATE).is_some_and(|state| state == WORKING)
    }

    /// That part of an object's metadata.
    pub fn of(metadata: &ObjectMeta) -> Self {
        let version = metadata.resource_version.as_ref().and_then(|version| version.parse().ok());
        let annotations = metadata.annotations.iter().flatten();
        let led = annotations.filter(|(name, _)| PREFIXES.iter().any(|prefix| name.starts_with(prefix)));
        Self {
            uid: metadata.uid.clone(),
            resource_version: version.unwrap_or_default(),
            annotations: led.map(|(name, value)| (name.clone(), value.clone())).collect(),
            labels: metadata.labels.clone().unwrap_or_default(),
        }
    }
}
