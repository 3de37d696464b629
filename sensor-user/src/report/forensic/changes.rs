//! The changes of one path, as `who`, `explain` and `log` report them.
//!
//! In: entries of the log. Out: the part of each that describes a change.

use super::LogEntry;
use sensor_model::{
    audit::UserMatch,
    difference::Difference,
    record::{Actor, RecordKind, RecordedState, ThingKind},
    verdict::VerdictKind,
};
use serde::Serialize;
use std::path::Path;

/// The value of [`WhoReport::schema`].
const SCHEMA: &str = "holdfast.who/v1";

/// The changes of a path, with the actors that made them.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct WhoReport {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// The path.
    pub path: String,
    /// Its changes, the newest first.
    pub changes: Vec<PathChange>,
}

impl WhoReport {
    /// The changes of a path.
    pub(super) fn new(path: &Path, changes: Vec<PathChange>) -> Self {
        Self { schema: SCHEMA, path: path.to_string_lossy().into_owned(), changes }
    }
}

/// One change.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct PathChange {
    /// Number of the log's entry.
    pub seq: u64,
    /// When, RFC 3339.
    pub time: String,
    /// What the entry is about.
    pub kind: RecordKind,
    /// The operation that the kernel reported, or `sweep`.
    pub operation: Option<String>,
    /// Who made it; null if the actor is not known.
    pub actor: Option<Actor>,
    /// All actors that changed the thing since it was last settled, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actors: Vec<Actor>,
    /// Users whose requests to the API server match the change; absent if no audit log was given. A match is no proof.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users: Option<Vec<UserMatch>>,
    /// Boot time of the change in nanoseconds.
    #[serde(skip)]
    pub monotonic_ns: u64,
    /// The verdict after it.
    pub verdict: Option<VerdictKind>,
    /// Every difference after it.
    pub differences: Vec<Difference>,
    /// What declares the thing: a MachineConfig, a layer or package, or the rule that closes the directory.
    pub source: Option<String>,
    /// What is managed at the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thing: Option<ThingKind>,
    /// Metadata and digest before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RecordedState>")]
    pub before: Option<serde_json::Value>,
    /// Metadata and digest after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RecordedState>")]
    pub after: Option<serde_json::Value>,
    /// From the declared content to the found one, if it is no secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
}

impl From<LogEntry> for PathChange {
    fn from(entry: LogEntry) -> Self {
        let record = entry.record;
        Self {
            seq: entry.seq,
            time: record.time,
            kind: record.kind,
            operation: record.operation,
            actor: record.actor,
            actors: record.actors,
            users: None,
            monotonic_ns: record.monotonic_ns,
            verdict: record.verdict,
            differences: record.differences,
            source: record.source,
            thing: record.thing,
            before: record.before,
            after: record.after,
            diff: record.diff,
        }
    }
}
