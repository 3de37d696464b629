//! The forensic record, `holdfast.forensic/v1`: who changed what and when, and the verdict.
//!
//! In: nothing. Out: the form of a record and its JSON. Fields are added, never renamed or removed. A record holds digests of
//! contents. It holds a unified diff only for paths that the drift policy marks as not secret.

pub use crate::expectation::ThingKind;

use crate::{
    difference::Difference,
    expectation::Thing,
    observation::{FileType, ObservedKind},
    os::hierarchy::Cover,
};
use sensor_protocol::{names, verdict::VerdictKind};
use serde::{Deserialize, Serialize};

/// The value of [`Record::schema`].
pub const SCHEMA: &str = "holdfast.forensic/v1";

names! {
    /// The event that an entry of the log reports.
    pub enum RecordKind {
        /// The daemon begins its work: at its start, after a reload, after an apply.
        Start = "start",
        /// The daemon ends its work in an orderly way.
        Stop = "stop",
        /// A thing differs from its expectation.
        Drift = "drift",
        /// A thing was changed and matches its expectation again.
        Touched = "touched",
        /// A drifted thing matches its expectation again.
        Recovered = "recovered",
        /// A managed file was executed.
        Exec = "exec",
        /// The drift policy refused a change.
        Denied = "denied",
        /// Holdfast wrote the declared content back.
        Reverted = "reverted",
        /// Events may have been missed, or the things concerned are verified again.
        Gap = "gap",
        /// The log was rotated; the entry links the chains of two files.
        Rotation = "rotation",
        /// A periodic anchor of the chain.
        Checkpoint = "checkpoint",
        /// An unfinished line at the end of the log was cut off after a power loss.
        Repaired = "repaired",
        /// A process opened a tunable or a block device for writing, which could blind or by-pass the sensor.
        Tamper = "tamper",
    }
}

/// A managed thing as records name it. Two things never share both fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThingName {
    /// Its path in reports.
    pub path: String,
    /// Its kind.
    pub kind: ThingKind,
}

impl From<&Thing> for ThingName {
    fn from(thing: &Thing) -> Self {
        Self { path: thing.path().display().to_string(), kind: thing.kind() }
    }
}

/// The identity of a file, which a path cannot forge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FileIdentity {
    /// The device: the kernel's own number if the generation is known, otherwise the one that stat(2) shows.
    pub device: u64,
    /// The inode's number there.
    pub inode: u64,
    /// On Btrfs the low half of the subvolume's number, if the generation is known; otherwise absent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub volume: u32,
    /// The inode's generation; absent if the process started before the sensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Who made a change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Actor {
    /// Process id (thread group) in the initial namespace.
    pub pid: u32,
    /// Boot-time nanoseconds at which the process started; with `pid` it is unique in a boot.
    pub start_ns: u64,
    /// Path of the executable in its own mount namespace, or as execve(2) got it.
    pub exe: Option<String>,
    /// The file that was executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exe_file: Option<FileIdentity>,
    /// Arguments, of which the first KiB is kept.
    pub argv: Vec<String>,
    /// Arguments were cut; absent if they were not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub argv_cut: bool,
    /// Effective file system user id at the change.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Audit login uid: the user who logged in, also behind sudo; null if unset.
    pub login_uid: Option<u32>,
    /// Name of `login_uid` in the passwd database.
    pub login_user: Option<String>,
    /// Audit session id; null if unset.
    pub session: Option<u32>,
    /// Controlling terminal, `pts/0`.
    pub tty: Option<String>,
    /// systemd unit from the cgroup path, `sshd.service`, `session-3.scope`.
    pub unit: Option<String>,
    /// systemd slice from the cgroup path.
    pub slice: Option<String>,
    /// Container id from the cgroup path (64 hex digits).
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub container_id: Option<String>,
    /// Pod uid from the cgroup path.
    pub pod_uid: Option<String>,
    /// Ancestors, nearest first, at most eight, each without its own ancestors; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub ancestors: Vec<Actor>,
    /// Whether Holdfast made the change.
    pub holdfast: bool,
}

impl Actor {
    /// Whether the process runs in the scope that logind made for its login: `session-N.scope` of `user-UID.slice`, with the
    /// process's own audit session and login uid. Without the scope the login proves nothing. The kernel lets any process without
    /// a login uid set one, and gives it a session number that no scope has.
    pub fn is_in_its_session(&self) -> bool {
        let (Some(uid), Some(session)) = (self.login_uid, self.session) else { return false };
        self.unit.as_ref().is_some_and(|unit| *unit == format!("session-{session}.scope"))
            && self.slice.as_ref().is_some_and(|slice| *slice == format!("user-{uid}.slice"))
    }
}

names! {
    /// What kind of actor made a change: a short closed list, for metrics.
    pub enum ActorClass {
        /// Holdfast itself.
        Holdfast = "holdfast",
        /// A process of a container.
        Container = "container",
        /// A process of a user who logged in, also behind sudo.
        Login = "login",
        /// A process of a systemd unit.
        Unit = "unit",
        /// Another process.
        Process = "process",
        /// No actor is known.
        Unknown = "unknown",
    }
}

impl ActorClass {
    /// The class of an actor. A container comes before a login: its processes inherit the login id of the user who started
    /// the container runtime.
    pub fn of(actor: Option<&Actor>) -> Self {
        let Some(actor) = actor else { return Self::Unknown };
        if actor.holdfast {
            Self::Holdfast
        } else if actor.container_id.is_some() || actor.pod_uid.is_some() {
            Self::Container
        } else if actor.login_uid.is_some() {
            Self::Login
        } else if actor.unit.is_some() {
            Self::Unit
        } else {
            Self::Process
        }
    }
}

/// A thing before or after a change. A record holds it as JSON; readers can rely on these fields, each of which may be absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct RecordedState {
    /// The kind of the observation.
    pub seen: ObservedKind,
    /// `declaration` if it is not an observation but the declaration of a compliant thing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("const" = "declaration"))]
    pub from: Option<String>,
    /// The type of an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_type: Option<FileType>,
    /// Permission bits with setuid, setgid and sticky.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 0o7777))]
    pub mode: Option<u32>,
    /// Owning user id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Owning group id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Name of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Name of the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// SHA-256 of a regular file's content.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub sha256: Option<String>,
    /// A link's target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What is mounted over a hierarchy, the lowest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub covers: Vec<Cover>,
    /// Whether a unit is declared enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Whether a unit is masked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masked: Option<bool>,
}

/// The details that records of several kinds have. A kind may have others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Detail {
    /// Text was cut, so that the line is no longer than 16 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("const" = true))]
    pub cut: Option<bool>,
    /// In `denied` and `exec`: the number of events from `since` to `time` that have this entry and none of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub count: Option<u64>,
}

/// One entry of the log, without its place in the chain (`seq`, `previous_hash` and `hash`, which the writer adds).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Record {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// The event that the entry reports.
    pub kind: RecordKind,
    /// Wall clock, RFC 3339, UTC.
    #[schemars(regex(pattern = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z$"))]
    pub time: String,
    /// The kernel's boot id.
    pub boot_id: String,
    /// Boot time in nanoseconds: that of the event, or of the record if there was no event.
    pub monotonic_ns: u64,
    /// The managed path; null in records about the sensor itself.
    pub path: Option<String>,
    /// The kind of thing that is managed there. Path and kind together name one thing: a unit and its file share a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thing: Option<ThingKind>,
    /// The operation that the kernel saw (`write`, `rename`, …). It is `sweep` if a verification found the change, and `config`
    /// if the declared state changed. It is `os-update` if an update of the OS replaced the thing.
    pub operation: Option<String>,
    /// Who made the change; null if no actor is known.
    pub actor: Option<Actor>,
    /// All actors that changed the thing since it last matched its expectation, if there were several: the first one first,
    /// without ancestors, at most sixteen. `detail.more_actors` counts the others and the changes whose ring records were lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub actors: Vec<Actor>,
    /// Every difference at the time of the verdict.
    pub differences: Vec<Difference>,
    /// The verdict.
    pub verdict: Option<VerdictKind>,
    /// What declares the thing: a MachineConfig, a layer or package, or the rule that closes the directory.
    pub source: Option<String>,
    /// Metadata and digest before the change, if known: the last observation, or the declaration of a compliant thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RecordedState>")]
    pub before: Option<serde_json::Value>,
    /// Metadata and digest after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RecordedState>")]
    pub after: Option<serde_json::Value>,
    /// Unified diff from the declared content to the one found. Only paths that the drift policy marks as not secret have it.
    /// It has at most 16 KiB, and a line that counts what was cut off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16_448))]
    pub diff: Option<String>,
    /// Further fields by kind: the reason of a gap, the versions at a start.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    #[schemars(with = "Detail")]
    pub detail: serde_json::Map<String, serde_json::Value>,
}

impl Record {
    /// A record of this kind, with everything else empty. `time` is RFC 3339, `monotonic_ns` counts from the boot of that id.
    pub fn new(kind: RecordKind, time: String, boot_id: String, monotonic_ns: u64) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            kind,
            time,
            boot_id,
            monotonic_ns,
            path: None,
            operation: None,
            actor: None,
            actors: Vec::new(),
            differences: Vec::new(),
            verdict: None,
            source: None,
            before: None,
            after: None,
            diff: None,
            thing: None,
            detail: serde_json::Map::new(),
        }
    }

    /// Whether the record may be about a change. An execution changes nothing, and a refused attempt neither.
    pub fn is_of_change(&self) -> bool {
        !matches!(self.kind, RecordKind::Exec | RecordKind::Denied)
    }

    /// The thing that the record is about; `None` in records about the sensor itself.
    pub fn name(&self) -> Option<ThingName> {
        Some(ThingName { path: self.path.clone()?, kind: self.thing? })
    }

    /// Makes the record one about a thing.
    pub fn set_name(&mut self, name: ThingName) {
        self.path = Some(name.path);
        self.thing = Some(name.kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::difference::DifferenceKind;

    #[test]
    fn a_name_in_json_is_the_name() {
        for kind in DifferenceKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        for kind in VerdictKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        for kind in RecordKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}
