//! Which inode an operation is about: its key from the kernel's own fields, and its generation.

use crate::kernel::{self, Pointer, read};
use crate::maps::VOLUMES;
use sensor_common::map::{BTRFS_MAGIC, InodeKey};

/// The key of an inode. `ino`: its number, which most callers have loaded before.
#[inline(always)]
pub(crate) fn key(inode: Pointer, ino: u64) -> InodeKey {
    let sb = inode.follow(kernel::inode_sb());
    InodeKey { ino, dev: sb.load(kernel::super_dev()), volume: volume_in(inode, sb) }
}

/// The same through the helper that reads kernel memory, for what happens seldom.
///
/// A program loads faster so. For a pointer that a program takes from a structure which the verifier trusts, the verifiers of 6.12 and
/// 6.18 search all types of the kernel up to four times (`btf_nested_type_is_trusted`, kernel/bpf/btf.c). 7.3 can search in sorted types.
#[inline(always)]
pub(crate) fn read_key(inode: Pointer) -> InodeKey {
    let at = inode.0 as u64;
    let sb: u64 = read(at, kernel::inode_sb());
    InodeKey {
        ino: inode.load(kernel::inode_ino()),
        dev: read(sb, kernel::super_dev()),
        volume: volume_at(at, sb),
    }
}

/// The inode that a record is about.
#[derive(Clone, Copy)]
pub(crate) struct RecordInode {
    pub(crate) key: InodeKey,
    pub(crate) generation: u32,
}

impl RecordInode {
    /// The inode at a pointer. A null pointer gives a key that no inode has.
    #[inline(always)]
    pub(crate) fn of(inode: Pointer) -> Self {
        let Some(inode) = inode.non_null() else { return Self { key: NO_INODE, generation: 0 } };
        Self { key: read_key(inode), generation: inode.load(kernel::inode_generation()) }
    }
}

/// The key of no inode.
const NO_INODE: InodeKey = InodeKey { ino: 0, dev: 0, volume: 0 };

/// The subvolume of an inode with this superblock; 0 on all file systems but Btrfs.
#[inline(always)]
pub(crate) fn volume_in(inode: Pointer, sb: Pointer) -> u32 {
    let magic: u64 = sb.load(kernel::super_magic());
    if magic == BTRFS_MAGIC { volume(inode.0 as u64) as u32 } else { 0 }
}

/// The same for the addresses of both, whose types the verifier does not know.
#[inline(always)]
pub(crate) fn volume_at(inode: u64, sb: u64) -> u32 {
    let magic: u64 = read(sb, kernel::super_magic());
    if magic == BTRFS_MAGIC { volume(inode) as u32 } else { 0 }
}

/// The subvolume of an inode of Btrfs. It is not inlined, so that inodes of other file systems do not pay for it.
#[inline(never)]
fn volume(inode: u64) -> u64 {
    let Some(volumes) = VOLUMES.get(0) else { return 0 };
    if volumes.known == 0 {
        return 0;
    }
    /// An upper bound for the offsets, which the verifier needs. No structure is longer.
    const LONGEST: u32 = 0xffff;
    let own = inode.wrapping_sub(u64::from(volumes.vfs_inode & LONGEST));
    let root: u64 = read(own, volumes.root & LONGEST);
    read(root, volumes.id & LONGEST)
}
