//! `DriftReport`: what differs on one node.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A `DriftReport` has no desired state: the node's reporter writes all of it.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "holdfast.dev",
    version = "v1alpha1",
    kind = "DriftReport",
    plural = "driftreports",
    singular = "driftreport",
    category = "holdfast",
    status = "DriftReportStatus",
    derive = "PartialEq",
    no_spec,
    doc = "What differs on one node from its MachineConfigs, since when, and who changed it. It is named as the Node, which owns it. The node's reporter writes it.",
    printcolumn = r#"{"name": "State", "type": "string", "jsonPath": ".status.state",
         "description": "Whether the node matches its MachineConfigs."}"#,
    printcolumn = r#"{"name": "Count", "type": "integer", "jsonPath": ".status.count",
         "description": "The number of things that differ."}"#,
    printcolumn = r#"{"name": "Newest path", "type": "string", "jsonPath": ".status.newest.path",
         "description": "The thing that differs since the shortest time."}"#,
    printcolumn = r#"{"name": "By", "type": "string", "jsonPath": ".status.newest.by",
         "description": "Who changed it."}"#,
    printcolumn = r#"{"name": "Since", "type": "date", "jsonPath": ".status.newest.since",
         "description": "How long it has differed.", "priority": 1}"#,
    printcolumn = r#"{"name": "Backend", "type": "string", "jsonPath": ".status.backend",
         "description": "How the sensor receives events.", "priority": 1}"#,
    printcolumn = r#"{"name": "Observed", "type": "date", "jsonPath": ".status.observedAt",
         "description": "How old the report's content is.", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
pub struct DriftReportSpec {}

/// Whether a node matches its MachineConfigs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DriftState {
    /// Everything matches.
    InSync,
    /// Something differs.
    Drifted,
    /// All that differs was changed by the Machine Config Operator's daemon, which updates the node.
    Updating,
    /// Evidence was lost, not everything was verified yet, or the sensor does not answer.
    #[default]
    Unknown,
}

/// What the sensor found, bounded in size. File contents are not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriftReportStatus {
    /// When the sensor wrote the status that this report shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub observed_at: Option<String>,
    /// Whether the node matches its MachineConfigs. If it is `Unknown`, `drifts` has what was known last.
    pub state: DriftState,
    /// Whether the drift policy degrades the node for any of the drifts.
    #[serde(default)]
    pub degraded: bool,
    /// The number of things that differ.
    pub count: i64,
    /// The thing that differs since the shortest time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<NewestDrift>,
    /// The things that differ, the newest first: at most 100, and fewer if their texts are long.
    #[serde(default)]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "atomic"))]
    pub drifts: Vec<Drift>,
    /// The number of things that differ and are not in `drifts`.
    #[serde(default)]
    pub more: i64,
    /// Stretches of time in which the sensor may have missed changes, and which are not verified again yet: at most 20.
    #[serde(default)]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub gaps: Vec<ReportedGap>,
    /// The number of gaps that are not in `gaps`.
    #[serde(default)]
    pub more_gaps: i64,
    /// How the sensor receives events: `lsm`, `fentry` or `fanotify`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The newest entry of the node's forensic log. A log that was written anew on the node does not have this entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<ReportedLogEntry>,
    /// The forensic log was written anew: it no longer has an entry that this report had. It stays until the report is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_rewritten: Option<ReportedRewriting>,
    /// The `DriftPolicies` that select this node: at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "atomic"))]
    pub policies: Vec<ReportedPolicy>,
    /// What the apply of another config does, in mode `manage`. It is here before anything on the node is touched, and absent while
    /// the node has the desired config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<ReportedPlan>,
    /// The uid of the Node whose reporter wrote this status. A new reporter compares the node's log with it only if the Node is still that one: an
    /// earlier Node of the same name was another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
    /// The OS image that the node booted, and what the cluster says about it. Absent on a node that boots no images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_image: Option<ReportedOsImage>,
    /// The config of the node, as the sensor expects it, and whether it is the one of the cluster. Absent without the Node's annotation
    /// `machineconfiguration.openshift.io/currentConfig`, and before the first comparison. While the sensor does not answer, it is what was found last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ReportedConfig>,
}

/// Whether the config that the sensor expects is the one of the cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConfigState {
    /// It declares what the `MachineConfig` of the annotation declares.
    Same,
    /// It has the name of a `MachineConfig` of the cluster and declares something else. The node's own file or the object was changed.
    Differs,
    /// It is another config than the one of the annotation, although no update is under way.
    Other,
    /// It is another config than the one of the annotation, because an update is under way.
    Updating,
    /// They could not be compared.
    #[default]
    Unknown,
}

/// The config of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportedConfig {
    /// The `MachineConfig` from which the sensor takes its expectations. Absent if it is not one alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// Where the sensor reads it: `operator` (`/etc/machine-config-daemon/currentconfig`), `applied` (what Holdfast applied last), `service`
    /// (`/etc/holdfast/machine-configs`), `named` (files of its command line) or `last-usable` (copies of the last usable files).
    pub origin: String,
    /// The `MachineConfig` of the Node's annotation `machineconfiguration.openshift.io/currentConfig`.
    pub current: String,
    /// Whether they are the same.
    pub state: ConfigState,
    /// What differs, or why they could not be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The OS image of a node, as several programs name it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportedOsImage {
    /// The image that the node booted, as the sensor found it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted: Option<String>,
    /// The digest of its manifest, if the host shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted_digest: Option<String>,
    /// The rendered MachineConfig from which a cluster built the image, by the image's label `machineconfig`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built_from: Option<String>,
    /// The image of the Node's annotation `machineconfiguration.openshift.io/desiredImage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<String>,
    /// The rendered MachineConfig of the Node's annotation `machineconfiguration.openshift.io/currentConfig`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// The `MachineOSBuild` that built the booted image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// The image that the node's `BootcNode` wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootc_node: Option<String>,
    /// Which of these is out of step, and with what. Absent while they agree, and while an update is under way. While the sensor
    /// does not answer, it is what was found last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_step: Option<String>,
}

/// Whether a node has taken a `DriftPolicy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyState {
    /// It is in force.
    InForce,
    /// It is in force, and the node limits the action of some of its rules. The message has the reason.
    Limited,
    /// It contradicts another policy of the same precedence. The policies that were in force before still are.
    Conflict,
    /// It cannot be used. The policies that were in force before still are.
    Refused,
    /// The sensor has not taken it yet.
    #[default]
    Waiting,
}

/// A `DriftPolicy` that selects the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportedPolicy {
    /// Its name.
    pub name: String,
    /// The generation that the node saw last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Whether the node has taken it.
    pub state: PolicyState,
    /// Why it is not in force as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What the apply of a config does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportedPlan {
    /// The MachineConfig that is applied.
    pub config: String,
    /// The steps in their order, each with its unit: `write`, `restart crio.service`. At most 32.
    #[serde(default)]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub actions: Vec<String>,
    /// The number of steps that are not in `actions`.
    #[serde(default)]
    pub more: i64,
    /// Whether workloads have to leave the node.
    #[serde(default)]
    pub drain: bool,
    /// Whether the node is rebooted.
    #[serde(default)]
    pub reboot: bool,
}

/// The thing that differs since the shortest time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewestDrift {
    /// Its path on the host.
    pub path: String,
    /// Who changed it, in a few words.
    pub by: String,
    /// Since when it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub since: Option<String>,
}

/// One thing that differs from its MachineConfig.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    /// The kind of the thing: `file`, `directory`, `link`, `unit` or another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its path on the host. A long path ends with `…`.
    pub path: String,
    /// The kinds of its differences: `content`, `mode`, `owner`, `missing` and others.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub differences: Vec<String>,
    /// Since when it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub since: Option<String>,
    /// Who changed it; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<ChangedBy>,
    /// What declares it: a MachineConfig, a layer of the OS image, a package, or the rule that closes the directory.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// What the verdict rests on, such as `sha256 of a layer`; absent if a MachineConfig or a rule declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strength: Option<String>,
    /// What the drift policy does about it: `observe`, `degrade`, `revert` or `deny`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The policy allows the actors, so it is observed at most.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allowed: bool,
}

/// Who made a change. Users choose the names of their programs and pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangedBy {
    /// Path of the executable, as the process saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Process id on the host.
    pub pid: i64,
    /// The user id with which it made the change.
    pub uid: i64,
    /// Name of the user who logged in, also behind sudo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_user: Option<String>,
    /// Number of the user who logged in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_uid: Option<i64>,
    /// The host's systemd unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The pod's namespace; absent if the API does not know the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_namespace: Option<String>,
    /// The pod's name; absent if the API does not know the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// The pod's uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The container's name in its pod, also of an init container or an ephemeral one; absent if the API does not know the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_name: Option<String>,
    /// The container's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// Whether Holdfast itself made the change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holdfast: bool,
}

/// A stretch of time in which the sensor may have missed changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportedGap {
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub since: Option<String>,
    /// Why changes may have been missed.
    pub reason: String,
    /// The path that it is about; absent if it is about more than one thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A forensic log that was written anew on the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportedRewriting {
    /// When the reporter found it.
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    /// The number of the entry that the report had.
    pub sequence: i64,
    /// The SHA-256 of that entry, 64 hexadecimal digits.
    pub hash: String,
    /// What the log has in its place.
    pub found: String,
}

/// One entry of the node's forensic log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportedLogEntry {
    /// Its number.
    pub sequence: i64,
    /// Its SHA-256, 64 hexadecimal digits.
    pub hash: String,
    /// Its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub time: Option<String>,
}
