//! Offsets for the numbers of Btrfs subvolumes.
//!
//! In: the kernel's types and those of its module `btrfs`. Out: offsets for the programs; none if the kernel has not loaded the
//! module, or has no types of modules (before 5.11). Then two inodes with one number, in two subvolumes, have the same key.

use super::layout::VMLINUX_BTF;
use sensor_common::map::BtrfsOffsets;
use sensor_model::host::btf::{Btf, BtfError, Field, join};
use std::fs;

/// The module's types.
const MODULE_BTF: &str = "/sys/kernel/btf/btrfs";

/// The offsets on the running kernel, for a module that the kernel loaded after the programs.
pub fn read() -> Option<BtrfsOffsets> {
    let module = fs::read(MODULE_BTF).ok()?;
    or_warn(of_module(&fs::read(VMLINUX_BTF).ok()?, &module))
}

/// The same with the kernel's types: `bytes`, and `btf` parsed from them.
pub fn resolve(btf: &Btf<'_>, bytes: &[u8]) -> Option<BtrfsOffsets> {
    // Btrfs may be built into the kernel.
    if let Ok(volumes) = offsets(btf) {
        return Some(volumes);
    }
    or_warn(of_module(bytes, &fs::read(MODULE_BTF).ok()?))
}

fn or_warn(resolved: Result<BtrfsOffsets, BtfError>) -> Option<BtrfsOffsets> {
    resolved
        .inspect_err(
            |error| tracing::warn!(%error, "The kernel programs do not distinguish subvolumes of Btrfs."),
        )
        .ok()
}

/// The offsets, from the types of the kernel and of the module.
///
/// # Errors
/// The types lack one of the fields.
pub fn of_module(kernel: &[u8], module: &[u8]) -> Result<BtrfsOffsets, BtfError> {
    offsets(&Btf::parse(&join(kernel, module)?)?)
}

fn offsets(btf: &Btf<'_>) -> Result<BtrfsOffsets, BtfError> {
    let key = btf.member("btrfs_root", "root_key", Field::Nested)?;
    let number = btf.member("btrfs_key", "objectid", Field::Word(8))?;
    Ok(BtrfsOffsets {
        vfs_inode: btf.member("btrfs_inode", "vfs_inode", Field::Nested)?,
        root: btf.member("btrfs_inode", "root", Field::Pointer)?,
        id: key.checked_add(number).ok_or(BtfError::Malformed("too large"))?,
        known: 1,
    })
}
