//! Mounts. They are rare, and what they do to a managed path is best read from the mount table, so each is
//! one record that makes the daemon compare tables; it names the object mounted over (or the root of what
//! is taken away), so that of several mounts each finds its own actor.

use crate::kernel::{self, Arguments, Pointer};
use crate::managed::{self, Change};
use crate::maps::MANAGED;
use sensor_common::map::MOUNTS_KEY;
use sensor_common::op::Operation;

/// The mount table has an entry of its own, so that its changes are counted, marked dirty and swept
/// like those of a file.
#[inline(always)]
fn changed(dentry: Pointer, operation: Operation) -> i32 {
    let Some(inode) = dentry.follow(kernel::dentry_inode()).known() else { return 0 };
    let Some(entry) = MANAGED.get_ptr_mut(MOUNTS_KEY) else { return 0 };
    managed::changed(entry, &Change::of(inode, operation, 0))
}

/// `sb_mount(…, path, …)`: mount(2), bind mounts and remounts.
#[inline(always)]
pub(crate) fn sb_mount(args: Arguments) -> i32 {
    let Some(path) = args.pointer(kernel::arg_sb_mount_path()) else { return 0 };
    let Some(dentry) = path.follow(kernel::path_dentry()).known() else { return 0 };
    changed(dentry, Operation::Mount)
}

/// `sb_umount(mnt, flags)`.
#[inline(always)]
pub(crate) fn sb_umount(args: Arguments) -> i32 {
    let Some(mount) = args.pointer(kernel::arg_sb_umount_mnt()) else { return 0 };
    let Some(root) = mount.follow(kernel::vfsmount_root()).known() else { return 0 };
    changed(root, Operation::Unmount)
}

/// `move_mount(…, to_path)`: what attaches a mount made with the new calls.
#[inline(always)]
pub(crate) fn move_mount(args: Arguments) -> i32 {
    let Some(path) = args.pointer(kernel::arg_move_mount_to_path()) else { return 0 };
    let Some(dentry) = path.follow(kernel::path_dentry()).known() else { return 0 };
    changed(dentry, Operation::MoveMount)
}

/// `sb_pivotroot(…)`: it concerns every path, so that none is named.
#[inline(always)]
pub(crate) fn sb_pivotroot(_: Arguments) -> i32 {
    let Some(entry) = MANAGED.get_ptr_mut(MOUNTS_KEY) else { return 0 };
    managed::changed(entry, &Change::of(Pointer::NULL, Operation::PivotRoot, 0))
}
