//! Numbers of watches, identities of inodes, and the things that a record concerns. No state.

use sensor_common::map::InodeKey;
use sensor_model::protocol::ThingId;

/// The numbers from here on belong to the daemon's own watches (canary, mount table, tunables).
pub const FIRST_OWN: u32 = 1 << 30;

/// An inode, distinct from earlier inodes of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inode {
    /// Number and device.
    pub key: InodeKey,
    /// `i_generation`; always zero on some file systems.
    pub generation: u32,
}

/// The inode that a record is about, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordTarget {
    /// The inode.
    pub inode: Inode,
    /// The record is about a name in the directory, not about the object itself.
    pub is_name: bool,
    /// The object's own name appears, disappears or changes.
    pub moves: bool,
}

/// The things and watches that a record concerns.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Concerned {
    /// Things whose own inode or directory the record is about: its evidence covers the change.
    pub in_evidence: Vec<ThingId>,
    /// Things below a directory that moved, disappeared or appeared: the evidence of their own inode does not cover the change.
    pub outside_evidence: Vec<ThingId>,
    /// Watches that may lead to another inode now; the caller enrols them again.
    pub stale: Vec<u32>,
}
