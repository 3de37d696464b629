//! The daemon's status, as a file that `holdfast status` reads: no socket, no protocol, and readable
//! when the daemon is dead, which the reader then says.
//!
//! In: the detector's state. Out: `status.json`, replaced atomically.

use sensor_model::difference::Difference;
use sensor_model::node_state::Standing;
use sensor_model::record::Actor;
use sensor_model::verdict::VerdictKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// The value of [`Status::schema`].
pub const SCHEMA: &str = "holdfast.status/v1";

/// Name of the file in the run directory.
pub const FILE: &str = "status.json";

/// How the node stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The worst verdict of all things.
    pub verdict: VerdictKind,
    /// Whether the drift policy calls for a degraded node.
    pub degraded: bool,
    /// `lsm`, `fentry` or `fanotify`.
    pub backend: String,
    /// What the daemon may still do, by the names of the kernel's capabilities.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// When this was written, RFC 3339.
    pub time: String,
    /// The daemon's process id.
    pub pid: u32,
    /// The boot in which it was written.
    pub boot_id: String,
    /// MachineConfigs in the order of their merge.
    pub sources: Vec<String>,
    /// What departs from its expectation.
    pub drifted: Vec<Drifted>,
    /// Gaps that are open.
    pub gaps: Vec<OpenGap>,
    /// How the node stands with the config that was applied; absent when none ever was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Standing>,
    /// Managed things, and how many of them stand how.
    pub counters: BTreeMap<String, u64>,
}

/// One drifted thing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drifted {
    /// Its path.
    pub path: String,
    /// Every difference.
    pub differences: Vec<Difference>,
    /// Since when, RFC 3339.
    pub since: String,
    /// Who did it; null when nobody could be named.
    pub actor: Option<Actor>,
    /// The MachineConfig that the expectation comes from.
    pub source: String,
}

/// One open gap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenGap {
    /// RFC 3339.
    pub since: String,
    /// RFC 3339; null while it is open.
    pub until: Option<String>,
    /// Why evidence may have been lost.
    pub reason: String,
}

/// Replaces the status file. It is gone after a reboot, so it needs no fsync.
pub fn write(directory: &Path, status: &Status) -> io::Result<()> {
    let temporary = directory.join(".status.json.new");
    // In one go: written straight to the file, each of its words would be a system call.
    let mut text = serde_json::to_vec_pretty(status)?;
    text.push(b'\n');
    File::create(&temporary)?.write_all(&text)?;
    fs::rename(temporary, directory.join(FILE))
}

/// Reads the status file.
pub fn read(directory: &Path) -> io::Result<Status> {
    Ok(serde_json::from_slice(&fs::read(directory.join(FILE))?)?)
}
