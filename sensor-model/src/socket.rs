//! The contract of the reporter's socket: HTTP/1.1 and JSON between the daemon and the node's reporter.
//!
//! In: nothing. Out: the paths of the requests, their limits, and the answers that are no status and no log entry. The daemon
//! serves them; `holdfast-cluster node` asks for them. Fields are added, never renamed or removed.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | [`crate::status::NodeStatus`] of at most [`STATUS_BYTES`], with an `ETag` that changes with the body |
//! | the same with `If-None-Match` and `Prefer: wait=S` | the status as soon as it differs, or 304 after S seconds |
//! | `GET /v1/records?from=SEQ`, also with `Prefer: wait=S` | the log's entries from this number on, one a line as in the log; an empty body if there is none |
//! | `GET /v1/log` | [`LogCheckpoint`] |
//! | `PUT /v1/policies` with [`ClusterPolicies`], in the modes `observe` and `manage` | [`TakenPolicies`] |
//! | `PUT /v1/config` with a [`DesiredConfig`], in the mode `manage` | [`PlannedConfig`] |
//! | `GET /v1/config`, in the mode `manage` | the [`PlannedConfig`] of the newest config, of at most [`KEPT_PLAN_BYTES`] |
//! | `POST /v1/apply` with an [`ApplyOrder`] | [`ApplyProgress`] |
//! | `GET /v1/apply`, also with `If-None-Match` and `Prefer: wait=S` | [`ApplyProgress`], as for the status |
//! | `GET /metrics`, `/healthz`, `/readyz` | as the pages of a daemon that listens on an address |
//!
//! Every other answer is a [`SocketError`] with the status code of its reason.

use sensor_protocol::names;
use serde::{Deserialize, Serialize};

/// The socket's path on the host.
pub const SOCKET: &str = "/run/holdfast/reporter.sock";

/// The node's status.
pub const STATUS: &str = "/v1/status";

/// Entries of the forensic log.
pub const RECORDS: &str = "/v1/records";

/// The field of [`RECORDS`]' query that has the number of the first entry.
pub const FROM: &str = "from";

/// The newest entry of the forensic log.
pub const LOG: &str = "/v1/log";

/// The drift policies of the cluster for this node.
pub const POLICIES: &str = "/v1/policies";

/// Most bytes of a request's body to [`POLICIES`], and of the file in which the daemon keeps them.
pub const POLICIES_BYTES: usize = 1 << 20;

/// Most policies of the cluster for one node.
pub const CLUSTER_POLICIES: usize = 100;

/// The value of [`TakenPolicies::schema`].
pub const TAKEN_POLICIES_SCHEMA: &str = "holdfast.taken-policies/v1";

/// The config that the node is to have.
pub const CONFIG: &str = "/v1/config";

/// The apply of the newest config.
pub const APPLY: &str = "/v1/apply";

/// Most bytes of a request's body to [`CONFIG`].
pub const CONFIG_BYTES: usize = 4 << 20;

/// Most bytes of an answer to `GET` of [`CONFIG`]. Longer lists end early, and the answer says how many changes it leaves out.
pub const KEPT_PLAN_BYTES: usize = 1 << 20;

/// The value of [`PlannedConfig::schema`].
pub const PLANNED_CONFIG_SCHEMA: &str = "holdfast.planned-config/v1";

/// The value of [`ApplyProgress::schema`].
pub const APPLY_PROGRESS_SCHEMA: &str = "holdfast.apply-progress/v1";

/// The page of metrics.
pub const METRICS: &str = "/metrics";

/// The page of a server that works.
pub const HEALTH: &str = "/healthz";

/// The page of a daemon that is ready.
pub const READY: &str = "/readyz";

/// The media type of [`RECORDS`]: one JSON object a line.
pub const JSON_LINES: &str = "application/jsonl";

/// The media type of every other answer but the pages.
pub const JSON: &str = "application/json";

/// The header of RFC 7240 that asks to wait: see [`prefer_wait`].
pub const PREFER: &str = "prefer";

/// Longest time of a wait. A request for more waits this long.
pub const LONGEST_WAIT_SECONDS: u64 = 60;

/// Most bytes in an answer to [`STATUS`]. Longer lists end early, and the status says how many elements they leave out.
pub const STATUS_BYTES: usize = 2 << 20;

/// Most bytes in an answer to [`RECORDS`]. It has whole lines only, and at least one if the log has the entry.
pub const RECORDS_BYTES: usize = 256 << 10;

/// Most bytes of a request's first line and headers.
pub const REQUEST_HEAD_BYTES: usize = 8 << 10;

/// Most connections at once. The daemon closes one more without an answer. The reporter has up to eleven: five of its own, and six of the
/// callers of its TLS port.
pub const CONNECTIONS: usize = 12;

/// Longest time until a peer has sent the head of its request.
pub const HEADER_SECONDS: u64 = 10;

/// The value of [`LogCheckpoint::schema`].
pub const LOG_CHECKPOINT_SCHEMA: &str = "holdfast.log-checkpoint/v1";

/// The newest entry of the forensic log, to keep elsewhere. A log that somebody wrote anew does not have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LogCheckpoint {
    /// Always [`LOG_CHECKPOINT_SCHEMA`].
    #[schemars(extend("const" = LOG_CHECKPOINT_SCHEMA))]
    pub schema: String,
    /// The number of the entry.
    pub sequence: u64,
    /// The SHA-256 of the entry, 64 hexadecimal digits.
    pub hash: String,
    /// The time of the entry, RFC 3339.
    pub time: String,
}

names! {
    /// Why a request has no other answer.
    pub enum SocketErrorReason {
        /// There is no such path (404).
        NotFound = "NotFound",
        /// The forensic log has no entry yet (404).
        NoEntry = "NoEntry",
        /// The path answers `GET` and `HEAD` only (405).
        MethodNotAllowed = "MethodNotAllowed",
        /// A field of the query or a header has no valid value (400).
        InvalidRequest = "InvalidRequest",
        /// The log does not have the entry and will not get it (410): rotation removed it, or the log ends before the entry
        /// before it. `oldest` is the number of the first one that is left.
        Gone = "Gone",
        /// The daemon has no status yet, or its loop hangs (503).
        NotReady = "NotReady",
        /// The daemon cannot read the forensic log (500).
        Unreadable = "Unreadable",
        /// The daemon's mode does not allow the request (403).
        NotManaged = "NotManaged",
        /// The body is larger than it may be (413).
        TooLarge = "TooLarge",
        /// The config or a policy cannot be used (422).
        Refused = "Refused",
        /// An apply is under way (409).
        Busy = "Busy",
        /// The order's id is not that of the newest config, or no config has a plan (409).
        NotPlanned = "NotPlanned",
    }
}

impl SocketErrorReason {
    /// The status code of the answer.
    pub const fn status_code(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::NotManaged => 403,
            Self::TooLarge => 413,
            Self::Refused => 422,
            Self::Busy | Self::NotPlanned => 409,
            Self::NotFound | Self::NoEntry => 404,
            Self::MethodNotAllowed => 405,
            Self::Gone => 410,
            Self::Unreadable => 500,
            Self::NotReady => 503,
        }
    }
}

/// The drift policies of the cluster that select this node, whole: they replace those of the request before.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterPolicies {
    /// Each in the form of the files in `policies/drift`. Pods among the allowed actors are uids. The annotation [`ALLOWED_NAMES`] has a digest of
    /// the names that the uids replace.
    pub policies: Vec<serde_json::Value>,
    /// The uids of the node's pods that exist. `None`: they are not known. A rule keeps uids that it had before under the same names, if none of
    /// these pods has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present_pods: Option<Vec<String>>,
}

/// The annotation of a policy of [`ClusterPolicies`] with a digest of the names by which each rule allows pods: a list with one value for each rule,
/// `null` for a rule that names none. A sensor only compares the values.
pub const ALLOWED_NAMES: &str = "holdfast.dev/allowed-names";

/// The policies of the cluster are in force within seconds, with those of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenPolicies {
    /// Always [`TAKEN_POLICIES_SCHEMA`].
    pub schema: String,
    /// Policies with rules that this node limits: `ignore` becomes `observe`, contents are secret, and in the mode `observe` each of
    /// `revert` and `deny` becomes `degrade`.
    pub limited: Vec<crate::drift_policy::LimitedPolicy>,
}

/// A config that the node is to have, and the policies for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DesiredConfig {
    /// The rendered `MachineConfig`.
    pub machine_config: serde_json::Value,
    /// The `MachineConfiguration` with the cluster's node disruption policy, if there is one.
    #[serde(default)]
    pub node_disruption: Option<serde_json::Value>,
}

/// The plan of a config that was handed in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact")]
pub struct PlannedConfig {
    /// Always [`PLANNED_CONFIG_SCHEMA`].
    pub schema: String,
    /// SHA-256 of the config, 64 hexadecimal digits. It names the config in an [`ApplyOrder`].
    pub id: String,
    /// The name of the `MachineConfig`.
    pub config: String,
    /// The plan.
    pub plan: crate::plan::Plan,
    /// Workloads have to leave the node: for the plan, or for an earlier apply that is still open. An order never drains a node whose
    /// newest answer did not say so.
    pub drains: bool,
    /// The node has to be rebooted, for the plan or for an earlier apply. An order whose plan has a reboot begins only after an answer with it.
    pub reboots: bool,
    /// An apply neither writes nor runs anything.
    pub has_nothing_to_do: bool,
    /// Changes of the plan that an answer to `GET` has no room for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub changes_left_out: u64,
    /// A list of the plan ends early, because an answer to `GET` has no room for all of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_shortened: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The order to apply a config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyOrder {
    /// The [`PlannedConfig::id`] of the newest config.
    pub id: String,
}

/// How far an apply is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApplyPhase {
    /// There was no order since the daemon's start, and none was interrupted.
    Idle,
    /// It is under way.
    Running,
    /// It goes on after a reboot.
    Rebooting,
    /// It has ended well.
    Done,
    /// It has failed.
    Failed,
}

/// The progress of the newest order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact")]
pub struct ApplyProgress {
    /// Always [`APPLY_PROGRESS_SCHEMA`].
    pub schema: String,
    /// How far it is.
    pub phase: ApplyPhase,
    /// The id of the order.
    pub id: Option<String>,
    /// The name of the order's `MachineConfig`.
    pub config: Option<String>,
    /// The newest line of progress, or the reason of a failure, for people. At most 2,000 bytes.
    pub message: Option<String>,
    /// It failed because the node had drifted.
    pub drifted: bool,
    /// It failed because a running node cannot take the config.
    pub unreconcilable: bool,
    /// It failed, and the node has the old config again.
    pub rolled_back: bool,
    /// The name of the `MachineConfig` that the node has. `None` before the first apply on a node that the Machine Config Operator's daemon did
    /// not manage, and while the sensor cannot read its own record.
    pub current: Option<String>,
    /// The Machine Config Operator's daemon runs on the node, so the sensor applies nothing and writes nothing back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_managed_by_operator: bool,
}

impl ApplyProgress {
    /// Without an order, on a node whose config is not known.
    pub fn idle() -> Self {
        Self {
            schema: APPLY_PROGRESS_SCHEMA.to_owned(),
            phase: ApplyPhase::Idle,
            id: None,
            config: None,
            message: None,
            drifted: false,
            unreconcilable: false,
            rolled_back: false,
            current: None,
            is_managed_by_operator: false,
        }
    }
}

/// Why a request has no other answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SocketError {
    /// The reason, for programs.
    pub reason: SocketErrorReason,
    /// The reason, for people.
    pub error: String,
    /// The number of the log's first entry, with the reason `Gone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<u64>,
}

/// The value of [`PREFER`] that asks to wait up to this many seconds for news.
pub fn prefer_wait(seconds: u64) -> String {
    format!("wait={}", seconds.min(LONGEST_WAIT_SECONDS))
}

/// The seconds that a value of [`PREFER`] asks to wait, at most [`LONGEST_WAIT_SECONDS`]. `None` without a valid `wait`, because
/// a server ignores preferences that it does not know.
pub fn wait_of(prefer: &str) -> Option<u64> {
    let wait = prefer.split([',', ';']).find_map(|preference| {
        let (name, value) = preference.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().trim_matches('"'))
    })?;
    Some(wait.parse::<u64>().ok()?.min(LONGEST_WAIT_SECONDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_read_as_it_is_written_and_has_a_limit() {
        assert_eq!(wait_of(&prefer_wait(7)), Some(7));
        assert_eq!(wait_of(&prefer_wait(u64::MAX)), Some(LONGEST_WAIT_SECONDS));
        assert_eq!(wait_of("respond-async, WAIT=\"5\""), Some(5));
        assert_eq!(wait_of("wait=3600"), Some(LONGEST_WAIT_SECONDS));
        for other in ["", "wait", "wait=", "wait=-1", "wait=soon", "awaiting=3"] {
            assert_eq!(wait_of(other), None, "{other}");
        }
    }

    #[test]
    fn an_error_says_its_reason_by_name_and_has_a_status_code() {
        let error =
            SocketError { reason: SocketErrorReason::Gone, error: "removed".to_owned(), oldest: Some(4) };
        let text = serde_json::to_string(&error).unwrap();
        assert_eq!(text, r#"{"reason":"Gone","error":"removed","oldest":4}"#);
        assert_eq!(serde_json::from_str::<SocketError>(&text).unwrap(), error);
        for reason in SocketErrorReason::ALL {
            assert!(reason.status_code() >= 400, "{}", reason.as_str());
        }
    }
}
