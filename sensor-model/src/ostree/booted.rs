//! What ostree notes about the boot in `/run/ostree-booted`.
//!
//! In: the bytes of the file. Out: the directory of the booted deployment. `ostree-prepare-root` writes the file. After a soft reboot
//! `ostree-boot-complete.service` puts another one in its place.

use super::variant::dictionary;

/// The key of the device and the inode number of the deployment's directory, which another file system may hide
/// (`OTCORE_RUN_BOOTED_KEY_BACKING_ROOTDEVINO`).
const BACKING_ROOT: &str = "backing-root-device-inode";

/// The device, as `stat` shows it, and the inode number of the directory of the booted deployment. `None` if the file does not have them, as with an
/// ostree before 2024.2.
pub fn backing_root(booted: &[u8]) -> Option<(u64, u64)> {
    let values = dictionary(booted)?;
    let numbers = values.get(BACKING_ROOT)?.strip_suffix(b"\0(tt)")?;
    let (device, inode) = numbers.split_first_chunk::<8>()?;
    // ostree writes the numbers in the order of the processor.
    Some((u64::from_ne_bytes(*device), u64::from_ne_bytes(inode.try_into().ok()?)))
}
