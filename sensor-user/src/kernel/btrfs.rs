//! Offsets for the numbers of Btrfs subvolumes.
//!
//! In: the kernel's types and those of its module `btrfs`. Out: offsets for the programs. There are none if the module is not
//! loaded, or if the kernel has no types of modules (before 5.11). Then inodes with one number in two subvolumes have one key.

use super::layout::VMLINUX_BTF;
use sensor_common::map::Volumes;
use sensor_model::host::btf::{Btf, BtfError, Field, join};
use std::fs;

/// The module's types.
const MODULE_BTF: &str = "/sys/kernel/btf/btrfs";

/// The offsets on the running kernel, for a module that was loaded after the programs; `None` if they cannot be resolved.
pub fn read() -> Option<Volumes> {
    let module = fs::read(MODULE_BTF).ok()?;
    told(of_module(&fs::read(VMLINUX_BTF).ok()?, &module))
}

/// The same with the kernel's types at hand. `btf`: what `bytes` hold.
pub fn resolve(btf: &Btf<'_>, bytes: &[u8]) -> Option<Volumes> {
    // Btrfs may be built into the kernel.
    if let Ok(volumes) = offsets(btf) {
        return Some(volumes);
    }
    told(of_module(bytes, &fs::read(MODULE_BTF).ok()?))
}

fn told(resolved: Result<Volumes, BtfError>) -> Option<Volumes> {
    resolved.inspect_err(|error| tracing::warn!(%error, "Subvolumes of Btrfs cannot be told apart.")).ok()
}

/// The offsets, from the types of the kernel and of the module.
///
/// # Errors
/// The types lack one of the fields.
pub fn of_module(kernel: &[u8], module: &[u8]) -> Result<Volumes, BtfError> {
    offsets(&Btf::parse(&join(kernel, module)?)?)
}

fn offsets(btf: &Btf<'_>) -> Result<Volumes, BtfError> {
    let key = btf.member("btrfs_root", "root_key", Field::Nested)?;
    let number = btf.member("btrfs_key", "objectid", Field::Word(8))?;
    Ok(Volumes {
        vfs_inode: btf.member("btrfs_inode", "vfs_inode", Field::Nested)?,
        root: btf.member("btrfs_inode", "root", Field::Pointer)?,
        id: key.checked_add(number).ok_or(BtfError::Malformed("too large"))?,
        known: 1,
    })
}
