//! The state of things before a vector runs, if the state needs more than a file.
//!
//! In: the path of a managed thing. Out: a mount over it, or an undeclared attribute on it.

use std::fs;
use std::path::Path;

use anyhow::Result;

pub(crate) use super::mounts::bind;
use super::vector::elsewhere;
use super::{attributes, ioctls, raw};

/// Mounts a file of other content over it.
pub(crate) fn mount_over(path: &Path) -> Result<()> {
    let other = elsewhere(path)?;
    fs::write(&other, "mounted over\n")?;
    bind(&other, path)
}

/// Sets an undeclared extended attribute.
pub(crate) fn set_undeclared(path: &Path) -> Result<()> {
    attributes::set(path, attributes::UNDECLARED, b"1")
}

/// Sets an undeclared access control list.
pub(crate) fn set_acl(path: &Path) -> Result<()> {
    attributes::set(path, attributes::ACL_NAME, &attributes::acl())
}

/// Creates a subvolume, if the file system supports them.
pub(crate) fn subvolume(place: &Path) -> Result<()> {
    ioctls::make_subvolume(place)
}

/// A swap file of ten pages (linux/swap.h): version, last page, no bad pages; and the signature at the end of the first
/// page.
pub(crate) fn swap() -> Vec<u8> {
    const PAGE: usize = 4096;
    const NAME: &[u8] = b"SWAPSPACE2";
    let mut file = vec![0; 10 * PAGE];
    file[1024..1032].copy_from_slice(&[1, 0, 0, 0, 9, 0, 0, 0]);
    file[PAGE - NAME.len()..PAGE].copy_from_slice(NAME);
    file
}

/// A program that exits at once.
pub(crate) fn smallest_program() -> Vec<u8> {
    // xor edi, edi; mov eax, 60; syscall
    raw::elf(&[0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05], 5)
}
