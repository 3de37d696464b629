//! Mounts. They are rare, and what they do to a managed path is best read from the mount table, so any
//! of them is one record that makes the daemon compare tables.

use crate::kernel::Arguments;
use crate::managed::{self, Change};
use crate::maps::MANAGED;
use sensor_common::map::MOUNTS_KEY;
use sensor_common::op::Operation;

/// The mount table has an entry of its own, so that its changes are counted, marked dirty and swept
/// like those of a file.
#[inline(always)]
fn changed(operation: Operation) -> i32 {
    let Some(entry) = MANAGED.get_ptr_mut(MOUNTS_KEY) else { return 0 };
    managed::changed(entry, &Change::of(operation, 0))
}

/// `sb_mount(…)`: mount(2), bind mounts and remounts.
#[inline(always)]
pub(crate) fn sb_mount(_: Arguments) -> i32 {
    changed(Operation::Mount)
}

/// `sb_umount(…)`.
#[inline(always)]
pub(crate) fn sb_umount(_: Arguments) -> i32 {
    changed(Operation::Unmount)
}

/// `move_mount(…)`: what attaches a mount made with the new calls.
#[inline(always)]
pub(crate) fn move_mount(_: Arguments) -> i32 {
    changed(Operation::MoveMount)
}

/// `sb_pivotroot(…)`.
#[inline(always)]
pub(crate) fn sb_pivotroot(_: Arguments) -> i32 {
    changed(Operation::PivotRoot)
}
