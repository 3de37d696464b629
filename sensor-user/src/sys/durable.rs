//! Which syncs make a write durable.
//!
//! In: an open file or directory. Out: whether `fsync` is enough on its file system. The scenario `power-cut` tests this: ext4 and
//! XFS keep every name whose directory was synced. On btrfs the rename of a file that was synced in the same transaction writes the
//! directory to the log tree without the inodes of its other new names. After a loss of power a link that was exchanged before can
//! be missing, both the old one and the new one.

use nix::{
    errno::Errno,
    sys::statfs::{EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, fstatfs},
};
use std::os::fd::AsFd;

/// Whether `fsync` of files and directories is enough. On other file systems, and on untested ones, only `syncfs` is.
///
/// # Errors
///
/// The kernel's, of `fstatfs`.
pub(crate) fn fsync_is_enough(of: impl AsFd) -> Result<bool, Errno> {
    let kind = fstatfs(of)?.filesystem_type();
    Ok(kind == EXT4_SUPER_MAGIC || kind == XFS_SUPER_MAGIC)
}
