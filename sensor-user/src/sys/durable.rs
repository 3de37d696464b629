//! The syncs that make a write durable.
//!
//! In: an open file or directory. Out: whether `fsync` is enough on its file system. The scenario `power-cut` tests this. ext4 and
//! XFS keep every name whose directory was synced. On btrfs, a file may be synced and renamed in one transaction. The rename then
//! writes the directory to the log tree without the inodes of its other new names. After a loss of power, a link that was exchanged
//! before can be missing: the old one and the new one.

use nix::{
    errno::Errno,
    sys::statfs::{EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, fstatfs},
};
use std::os::fd::AsFd;

/// Whether `fsync` of files and directories is enough. On all other file systems, also on untested ones, Holdfast uses `syncfs`.
///
/// # Errors
///
/// `fstatfs` failed.
pub(crate) fn fsync_is_enough(of: impl AsFd) -> Result<bool, Errno> {
    let kind = fstatfs(of)?.filesystem_type();
    Ok(kind == EXT4_SUPER_MAGIC || kind == XFS_SUPER_MAGIC)
}
