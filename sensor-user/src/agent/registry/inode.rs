//! Numbers of watches, inodes, and what a record about an inode concerns.

use sensor_common::map::InodeKey;

/// Numbers from here on are the sensor's own watches (canary, mount table, tunables).
pub const FIRST_OWN: u32 = 1 << 30;

/// An inode, told from earlier ones of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inode {
    /// Number and device.
    pub key: InodeKey,
    /// `i_generation`; always zero on some file systems.
    pub generation: u32,
}

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// The inode.
    pub inode: Inode,
    /// A name in it, not the object itself.
    pub is_name: bool,
    /// The object's own name goes, comes or changes.
    pub moves: bool,
}

/// What a record concerns.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Concerned {
    /// Things whose own inode or directory it is about.
    pub direct: Vec<u32>,
    /// Things below a directory that moved, vanished or appeared: their evidence does not cover it.
    pub beyond: Vec<u32>,
    /// Watches to be enrolled anew.
    pub stale: Vec<u32>,
}
