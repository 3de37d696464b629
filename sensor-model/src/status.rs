//! The status of a node, `holdfast.status/v1`: what the daemon keeps in `status.json` and `holdfast status` prints.
//!
//! In: nothing. Out: the form of the status and its JSON. Fields are added, never renamed or removed. Nothing is read or written
//! here.

use crate::{
    difference::Difference,
    drift_policy::DriftAction,
    expectation::SourceKind,
    node_state::Standing,
    record::{Actor, ThingKind},
    strength::Strength,
    waiting::WaitingOutput,
};
use sensor_protocol::{names, verdict::VerdictKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The value of [`NodeStatus::schema`].
pub const SCHEMA: &str = "holdfast.status/v1";

/// What `holdfast status` prints: the daemon's status, and whether it is current.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct StatusReport {
    /// Whether the daemon that wrote the status still runs. If not, the verdict is `unknown`, and the other fields are those of
    /// the last status that it wrote.
    pub running: bool,
    /// Why it does not run; null when it runs.
    pub reason: Option<String>,
    /// The status.
    #[serde(flatten)]
    pub status: NodeStatus,
}

/// The state of the node: what the daemon keeps in `status.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct NodeStatus {
    /// Always [`SCHEMA`].
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// The worst verdict of all things.
    pub verdict: VerdictKind,
    /// Whether the drift policy degrades the node.
    pub degraded: bool,
    /// The backend of detection: `lsm`, `fentry` or `fanotify`; empty when no daemon wrote a status.
    #[schemars(extend("enum" = ["lsm", "fentry", "fanotify", ""]))]
    pub backend: String,
    /// The capabilities that the daemon has, by the kernel's names.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// When this was written, RFC 3339; empty when no daemon wrote a status.
    pub time: String,
    /// The daemon's process id.
    pub pid: u32,
    /// The boot in which it was written.
    pub boot_id: String,
    /// Seconds between two beats. The daemon touches `status.json` at each beat. A file that is older than three beats and
    /// than 15 s is out of date. 0 when no daemon wrote a status.
    #[serde(default)]
    pub beat_seconds: u64,
    /// MachineConfigs in the order of their merge.
    pub sources: Vec<String>,
    /// The config from which the daemon takes its expectations. Absent when an older daemon wrote the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ExpectedConfig>,
    /// Why the daemon refused new configs or policies and still uses the last valid ones. Absent when it refused none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_refused: Option<String>,
    /// The image that the host booted. Absent if the host boots no images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted_image: Option<BootedImage>,
    /// Things that differ from their expectation.
    pub drifted: Vec<DriftedThing>,
    /// Open gaps.
    pub gaps: Vec<OpenGap>,
    /// The state of the node with the config that was applied; absent when no config was ever applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Standing>,
    /// Kernel arguments that take effect with the next boot, because a policy does not reboot for them. They are no drift.
    #[serde(default)]
    pub waiting: Vec<WaitingOutput>,
    /// The number of managed things, of things with each verdict, and of lost ring records.
    pub counters: BTreeMap<String, u64>,
    /// How many elements the lists leave out. Absent when they are whole, as in `status.json`. Only the reporter's socket has
    /// limits.
    #[serde(default, skip_serializing_if = "LeftOut::is_nothing")]
    pub left_out: LeftOut,
}

names! {
    /// Where the daemon reads its config.
    pub enum ConfigOrigin {
        /// The file of the Machine Config Operator's daemon.
        Operator = "operator",
        /// The state directory, which has the config that Holdfast applied last.
        Applied = "applied",
        /// The directory of the host's service.
        Service = "service",
        /// Files that the command line names.
        Named = "named",
        /// Copies of the last files that could be used.
        LastUsable = "last-usable",
    }
}

/// The config from which the daemon takes its expectations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ExpectedConfig {
    /// Where the daemon read it.
    pub origin: ConfigOrigin,
    /// The name of its MachineConfig; null if it is not one MachineConfig alone.
    pub name: Option<String>,
    /// The digest of what it declares, see [`crate::config_digest`].
    pub digest: String,
}

/// The image that a host booted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BootedImage {
    /// The image or branch of the deployment, without the transport; null if the host does not show it.
    pub name: Option<String>,
    /// Digest of the image's manifest, `sha256:…`; null if the host does not show it.
    pub digest: Option<String>,
    /// The rendered MachineConfig from which a cluster built the image, by the image's label `machineconfig`. Absent if the host shows no
    /// such label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}

/// The number of elements that the lists of a status leave out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct LeftOut {
    /// Of the things that differ. The newest ones are in the list.
    pub drifted: u64,
    /// Of the open gaps.
    pub gaps: u64,
    /// Of the MachineConfigs.
    pub sources: u64,
    /// Of the kernel arguments that wait for a boot.
    pub waiting: u64,
}

impl LeftOut {
    /// Whether all lists are whole.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// One drifted thing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DriftedThing {
    /// Its path on the host; for a unit the path of its file.
    pub path: String,
    /// The kind of the thing: a unit and its file share a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thing: Option<ThingKind>,
    /// Every difference.
    pub differences: Vec<Difference>,
    /// Since when, RFC 3339.
    pub since: String,
    /// Who made the change; null when no actor is known.
    pub actor: Option<Actor>,
    /// What declares the thing: a MachineConfig, a layer or package, or the rule that closes the directory.
    pub source: String,
    /// The kind of that source; absent if an older daemon recorded the drift.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_kind: Option<SourceKind>,
    /// What the verdict rests on, if the source is a layer, a package, an extension or a baseline; absent for other sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strength: Option<Strength>,
    /// The drift policy's action about this drift; absent if an older daemon reported the drift.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<DriftAction>,
    /// The policy allows every actor, so the action is `observe` at most.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allowed: bool,
}

/// One open gap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OpenGap {
    /// When it began, RFC 3339.
    pub since: String,
    /// When it ended, RFC 3339; null while it is open.
    pub until: Option<String>,
    /// Why evidence may have been lost.
    pub reason: String,
    /// The path that it is about; absent when it is about more than one thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}
