//! What a managed thing is on the disk, as plain data.
//!
//! Filled by the daemon through directory handles; read by `compare`. It carries digests, never
//! contents.

use crate::{authorized_keys::AuthorizedKeys, os::Deployment};
use serde::{Deserialize, Deserializer, Serialize};
use std::{collections::BTreeMap, path::PathBuf};

/// The type of a file system object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileType {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Character device.
    CharacterDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
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
    /// Name of `uid` in the node's passwd database, where it has one.
    pub user: Option<String>,
    /// Name of `gid` in the node's group database, where it has one.
    pub group: Option<String>,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of a regular file's content, in full; `None` where it was not read to its end.
    #[serde(serialize_with = "serialize_digest", deserialize_with = "deserialize_digest")]
    pub sha256: Option<[u8; 32]>,
    /// A symbolic link's target.
    pub target: Option<PathBuf>,
    /// For a declared hard link: whether it is the same inode as its target.
    pub same_inode_as_target: Option<bool>,
    /// SELinux label, where the host has one.
    pub label: Option<String>,
    /// Extended attributes other than the label: name and what [`crate::xattr::describe`] makes of the
    /// value (a readable access control list or capability set, a digest for everything else).
    pub xattrs: Vec<(String, String)>,
    /// Set inode flags that keep a writer out: `immutable`, `append-only`.
    pub attributes: Vec<String>,
    /// The object is the root of a mount that hides the managed one.
    pub mounted_over: bool,
    /// The keys of a regular file whose [`crate::expectation::Expectation::ssh_keys`] is set, as
    /// [`crate::authorized_keys::parse`] reads them; `None` for every other object.
    pub ssh_keys: Option<AuthorizedKeys>,
    /// Change time, nanoseconds since 1970 (for the log only; never compared).
    #[serde(deserialize_with = "deserialize_time")]
    pub changed_ns: i128,
}

impl ObjectObservation {
    /// An object with nothing but type, permission bits and owner; the rest is added field by field.
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
            target: None,
            same_inode_as_target: None,
            label: None,
            xattrs: Vec::new(),
            attributes: Vec::new(),
            mounted_over: false,
            ssh_keys: None,
            changed_ns: 0,
        }
    }
}

/// A unit's state as systemd reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitObservation {
    /// `UnitFileState`: enabled, disabled, masked, static, …; `None` when systemd knows no such unit.
    pub file_state: Option<String>,
    /// `/etc/systemd/system/<unit>` is a link to `/dev/null`.
    pub masked: bool,
    /// What `/etc/systemd/system/<unit>` is once every link is followed; `None` when nothing is there.
    pub resolved: Option<PathBuf>,
}

/// What was seen of one managed thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "seen", rename_all = "kebab-case")]
pub enum Observation {
    /// Nothing at the path.
    Missing,
    /// Something at the path.
    Object(Box<ObjectObservation>),
    /// Names in a closed directory, sorted (lossy UTF-8 for reports).
    Names {
        /// File names without `.` and `..`; those that cannot be unexpected may be left out.
        names: Vec<String>,
        /// How many undeclared names there are, at least, that are not in `names`.
        more: u64,
        /// The keys in each regular file, for directories whose
        /// [`crate::expectation::Expectation::ssh_keys`] is set; empty for all others.
        ssh_keys: BTreeMap<String, AuthorizedKeys>,
    },
    /// A unit's state.
    Unit(UnitObservation),
    /// What the running kernel was told, one argument each.
    KernelArguments {
        /// In their order.
        arguments: Vec<String>,
    },
    /// The deployment that is booted.
    Os(Deployment),
    /// It could not be read; the text names the path and the reason.
    Unreadable {
        /// Operation and error.
        error: String,
    },
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

/// What is told by its tag is kept by serde before it is read, and that keeps no number of 128 bits.
fn deserialize_time<'de, D: Deserializer<'de>>(from: D) -> Result<i128, D::Error> {
    i64::deserialize(from).map(i128::from)
}
