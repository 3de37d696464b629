//! The state of a managed thing on the host, as plain data.
//!
//! In: what the daemon reads through directory handles. Out: what `compare` compares. It holds digests, never contents.

use crate::{
    authorized_keys::AuthorizedKeys,
    expectation::SealedTree,
    os::{Deployment, hierarchy::Cover},
    strength::SealKind,
};
use sensor_protocol::names;
use serde::{Deserialize, Deserializer, Serialize};
use std::{collections::BTreeMap, path::PathBuf};

names! {
    /// The type of a file system object.
    pub enum FileType {
        /// Regular file.
        Regular = "regular",
        /// Directory.
        Directory = "directory",
        /// Symbolic link.
        Symlink = "symlink",
        /// Character device.
        CharacterDevice = "character-device",
        /// Block device.
        BlockDevice = "block-device",
        /// Named pipe.
        Fifo = "fifo",
        /// Unix socket.
        Socket = "socket",
    }
}

/// One object of a file system, read without following a final link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectObservation {
    /// Its type.
    pub file_type: FileType,
    /// Permission bits with setuid, setgid and sticky (`st_mode & 0o7777`).
    pub mode: u32,
    /// Owning user id.
    pub uid: u32,
    /// Owning group id.
    pub gid: u32,
    /// Name of `uid` in the node's passwd database; `None` without one.
    pub user: Option<String>,
    /// Name of `gid` in the node's group database; `None` without one.
    pub group: Option<String>,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of a regular file's whole content; `None` if it was not read to its end.
    #[serde(serialize_with = "serialize_digest", deserialize_with = "deserialize_digest")]
    pub sha256: Option<[u8; 32]>,
    /// The content was not read: the kernel proves in this way that it is one that was read before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<SealKind>,
    /// A symbolic link's target.
    pub target: Option<PathBuf>,
    /// For a declared hard link: whether it is the same inode as its target.
    pub same_inode_as_target: Option<bool>,
    /// For an expected object of an ostree commit: whether it has the checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has_ostree_checksum: Option<bool>,
    /// SELinux label; `None` on a host without SELinux.
    pub label: Option<String>,
    /// Extended attributes other than the label: the name, and the value as [`crate::xattr::describe`] shows it. That is a
    /// readable access control list or capability set, and a digest of any other value.
    pub xattrs: Vec<(String, String)>,
    /// Inode flags that are set and refuse writers: `immutable`, `append-only`.
    pub attributes: Vec<String>,
    /// The object is the root of a mount that hides the managed one.
    pub mounted_over: bool,
    /// The keys of a regular file whose [`crate::expectation::Expectation::ssh_keys`] is set, as
    /// [`crate::authorized_keys::parse`] reads them; `None` for every other object.
    pub ssh_keys: Option<AuthorizedKeys>,
    /// Change time in nanoseconds since 1970; only for the log, never compared.
    #[serde(deserialize_with = "deserialize_time")]
    pub changed_ns: i128,
}

impl ObjectObservation {
    /// An object with type, permission bits and owner. The caller sets the other fields.
    pub fn new(file_type: FileType, mode: u32, uid: u32, gid: u32) -> Self {
        Self {
            file_type,
            mode,
            uid,
            gid,
            user: None,
            group: None,
            size: 0,
            sha256: None,
            sealed: None,
            target: None,
            same_inode_as_target: None,
            has_ostree_checksum: None,
            label: None,
            xattrs: Vec::new(),
            attributes: Vec::new(),
            mounted_over: false,
            ssh_keys: None,
            changed_ns: 0,
        }
    }

    /// In a few words. It may hold control characters.
    pub(crate) fn summary(&self) -> String {
        let owner = |name: &Option<String>, id: u32| name.clone().unwrap_or_else(|| id.to_string());
        let what = match (&self.target, self.sha256) {
            (Some(target), _) => format!("link to {}", target.display()),
            (None, Some(sum)) => format!("sha256:{} ({} bytes)", hex::encode(sum), self.size),
            (None, None) => self.file_type.as_str().replace('-', " "),
        };
        let (user, group) = (owner(&self.user, self.uid), owner(&self.group, self.gid));
        format!("{what}, mode {:04o}, owner {user}:{group}", self.mode)
    }
}

/// A unit's state as systemd reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitObservation {
    /// `UnitFileState`: enabled, disabled, masked, static, …; `None` when systemd knows no such unit.
    pub file_state: Option<String>,
    /// `/etc/systemd/system/<unit>` is a link to `/dev/null`.
    pub masked: bool,
    /// The path that `/etc/systemd/system/<unit>` leads to after every link; `None` if it does not exist.
    pub resolved: Option<PathBuf>,
    /// The file of the unit's name, not a mask, in a directory that comes before `/etc/systemd/system`. systemd uses it instead of what is there.
    #[serde(default)]
    pub overridden_by: Option<PathBuf>,
}

names! {
    /// What kind of observation it is.
    pub enum ObservedKind {
        /// No object is at the path.
        Missing = "missing",
        /// An object of a file system.
        Object = "object",
        /// The names in a directory.
        Names = "names",
        /// A unit's state.
        Unit = "unit",
        /// What is mounted over a hierarchy.
        Hierarchy = "hierarchy",
        /// What proves the entries of a tree.
        Tree = "tree",
        /// The running kernel's arguments.
        KernelArguments = "kernel-arguments",
        /// The booted deployment.
        Os = "os",
    }
}

/// The observed state of one managed thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "seen", rename_all = "kebab-case")]
pub enum Observation {
    /// No object is at the path.
    Missing,
    /// An object is at the path.
    Object(Box<ObjectObservation>),
    /// Names in a closed directory, sorted (text by [`name_text`](crate::escape::name_text)).
    Names {
        /// File names without `.` and `..`. Names that cannot be unexpected may be left out.
        names: Vec<String>,
        /// A lower bound of the undeclared names that are not in `names`.
        more: u64,
        /// The keys in each regular file, for directories whose
        /// [`crate::expectation::Expectation::ssh_keys`] is set; empty for all others.
        ssh_keys: BTreeMap<String, AuthorizedKeys>,
    },
    /// A unit's state.
    Unit(UnitObservation),
    /// What is mounted over a hierarchy.
    Hierarchy {
        /// The lowest first; empty if nothing does.
        covers: Vec<Cover>,
    },
    /// What proves the entries of a tree.
    Tree {
        /// What identifies its contents; `None` if the kernel does not prove them.
        sealed: Option<SealedTree>,
        /// The mount points in it that were none at first, sorted.
        over: Vec<PathBuf>,
    },
    /// The running kernel's arguments.
    KernelArguments {
        /// One each, in their order.
        arguments: Vec<String>,
    },
    /// The booted deployment.
    Os(Deployment),
    /// It could not be read; the text names the path and the reason.
    Unreadable {
        /// Operation and error.
        error: String,
    },
}

/// Why a MachineConfig cannot declare an observed state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotDeclarable {
    /// There is no object.
    #[error("it is missing: a MachineConfig cannot declare that")]
    Missing,
    /// A closed directory.
    #[error("adopt its undeclared files one by one")]
    Names,
    /// What is mounted over a hierarchy.
    #[error("a MachineConfig cannot declare what is mounted over a directory of the OS")]
    Hierarchy,
    /// Kernel arguments or an OS image.
    #[error("kernelArguments and osImageURL declare the booted state")]
    Booted,
    /// It was not observed, with operation and error.
    #[error("it could not be read: {0}")]
    Unreadable(String),
}

impl Observation {
    /// The observed state for people, in a few words. It may hold control characters.
    pub fn summary(&self) -> String {
        match self {
            Self::Missing => "missing".to_owned(),
            Self::Unreadable { error } => error.clone(),
            Self::Names { names, .. } => {
                let names = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
                format!("directory with {names}")
            }
            Self::Unit(unit) => unit.file_state.as_deref().unwrap_or("not found").to_owned(),
            Self::Hierarchy { covers } if covers.is_empty() => "nothing is mounted over it".to_owned(),
            Self::Hierarchy { covers } => covers.iter().map(Cover::summary).collect::<Vec<_>>().join("; "),
            Self::Tree { sealed: None, .. } => "a tree that is not sealed".to_owned(),
            Self::Tree { sealed: Some(sealed), over } if over.is_empty() => {
                format!("sealed by {}", sealed.by.as_str())
            }
            Self::Tree { over, .. } => format!("{} mounts over it", over.len()),
            Self::KernelArguments { arguments } => arguments.join(" "),
            Self::Os(booted) => {
                let commit = booted.checksum.as_ref().map(|sum| format!(" (commit {sum})"));
                format!("{}{}", booted.name(), commit.unwrap_or_default())
            }
            Self::Object(object) => object.summary(),
        }
    }

    /// Its kind in records; `None` if the thing could not be read.
    pub fn kind(&self) -> Option<ObservedKind> {
        match self {
            Self::Missing => Some(ObservedKind::Missing),
            Self::Object(_) => Some(ObservedKind::Object),
            Self::Names { .. } => Some(ObservedKind::Names),
            Self::Unit(_) => Some(ObservedKind::Unit),
            Self::Hierarchy { .. } => Some(ObservedKind::Hierarchy),
            Self::Tree { .. } => Some(ObservedKind::Tree),
            Self::KernelArguments { .. } => Some(ObservedKind::KernelArguments),
            Self::Os(_) => Some(ObservedKind::Os),
            Self::Unreadable { .. } => None,
        }
    }

    /// Whether an object or a state was observed.
    pub fn is_something(&self) -> bool {
        !matches!(self.kind(), None | Some(ObservedKind::Missing))
    }

    /// What proves a file's content, if that was not read for this reason.
    pub fn seal(&self) -> Option<SealKind> {
        match self {
            Self::Object(object) => object.sealed,
            _ => None,
        }
    }

    /// Why a MachineConfig cannot declare the observed state; `None` for an object and a unit, which it can.
    pub fn not_declarable(&self) -> Option<NotDeclarable> {
        match self {
            Self::Object(_) | Self::Unit(_) => None,
            Self::Missing => Some(NotDeclarable::Missing),
            Self::Names { .. } => Some(NotDeclarable::Names),
            Self::Hierarchy { .. } | Self::Tree { .. } => Some(NotDeclarable::Hierarchy),
            Self::KernelArguments { .. } | Self::Os(_) => Some(NotDeclarable::Booted),
            Self::Unreadable { error } => Some(NotDeclarable::Unreadable(error.clone())),
        }
    }
}

#[expect(clippy::ref_option, reason = "the signature that serde's serialize_with asks for")]
fn serialize_digest<S: serde::Serializer>(digest: &Option<[u8; 32]>, to: S) -> Result<S::Ok, S::Error> {
    match digest {
        Some(digest) => to.serialize_some(&hex::encode(digest)),
        None => to.serialize_none(),
    }
}

fn deserialize_digest<'de, D: Deserializer<'de>>(from: D) -> Result<Option<[u8; 32]>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    let mut digest = [0; 32];
    let Some(text) = text else { return Ok(None) };
    hex::decode_to_slice(text, &mut digest).map_err(serde::de::Error::custom)?;
    Ok(Some(digest))
}

/// serde buffers an internally tagged enum before it reads the fields, and the buffer holds no number of 128 bits.
fn deserialize_time<'de, D: Deserializer<'de>>(from: D) -> Result<i128, D::Error> {
    i64::deserialize(from).map(i128::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_an_observation_is_its_tag_in_json() {
        let names = Observation::Names { names: Vec::new(), more: 0, ssh_keys: BTreeMap::new() };
        let unit = UnitObservation { file_state: None, masked: false, resolved: None, overridden_by: None };
        let all = [
            Observation::Missing,
            Observation::Object(Box::new(ObjectObservation::new(FileType::Regular, 0, 0, 0))),
            names,
            Observation::Unit(unit),
            Observation::Hierarchy { covers: Vec::new() },
            Observation::Tree { sealed: None, over: Vec::new() },
            Observation::KernelArguments { arguments: Vec::new() },
            Observation::Os(Deployment::default()),
        ];
        let kinds: Vec<ObservedKind> = all.iter().filter_map(Observation::kind).collect();
        assert_eq!(kinds, ObservedKind::ALL);
        for (observation, kind) in all.iter().zip(kinds) {
            assert_eq!(serde_json::to_value(observation).unwrap()["seen"], kind.as_str());
        }
        assert_eq!(Observation::Unreadable { error: String::new() }.kind(), None);
    }
}
