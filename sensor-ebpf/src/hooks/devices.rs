//! Block devices: a process that writes to one can change files below their file system.
//!
//! The kernel has no security hook for devices only, and a test in `file_open` would cost every open on the node. So the program
//! is attached to the function that opens a block device.

use super::open::MODE_WRITE;
use crate::kernel::{self, Arguments};
use crate::managed::{self, Attempt};
use crate::maps::MANAGED;
use sensor_common::map::DEVICES_KEY;
use sensor_common::op::Operation;

/// `blkdev_open(inode, filp)`.
#[inline(always)]
pub(crate) fn blkdev_open(args: Arguments) {
    let Some(file) = args.pointer(kernel::arg_blkdev_open_filp()) else { return };
    let flags: u32 = file.load(kernel::file_flags());
    if flags.wrapping_add(1) & MODE_WRITE == 0 {
        return;
    }
    let Some(inode) = file.follow(kernel::file_inode()).non_null() else { return };
    let Some(entry) = MANAGED.get_ptr_mut(DEVICES_KEY) else { return };
    let device: u32 = inode.load(kernel::inode_device());
    managed::record_attempt(entry, &Attempt::of(inode, Operation::OpenTamper, u64::from(device)));
}
