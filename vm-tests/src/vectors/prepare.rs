//! How things stand before a vector is done to them, where that takes more than a file.
//!
//! Comes in: the path of a managed thing. Goes out: it is mounted over, or carries what nothing declares.

use std::fs;
use std::path::Path;

use anyhow::Result;

pub(crate) use super::mounts::bind;
use super::{attributes, elsewhere, ioctls, raw};

/// Mounts a file of other content over it.
pub(crate) fn mount_over(path: &Path) -> Result<()> {
    let other = elsewhere(path)?;
    fs::write(&other, "mounted over\n")?;
    bind(&other, path)
}

/// Gives it an attribute that nothing declares.
pub(crate) fn set_undeclared(path: &Path) -> Result<()> {
    attributes::set(path, attributes::UNDECLARED, b"1")
}

/// Gives it an access control list that nothing declares.
pub(crate) fn set_acl(path: &Path) -> Result<()> {
    attributes::set(path, attributes::ACL_NAME, &attributes::acl())
}

/// Makes a subvolume, where the file system has them.
pub(crate) fn subvolume(place: &Path) -> Result<()> {
    ioctls::make_subvolume(place)
}

/// A file of ten pages to swap to (linux/swap.h): version, last page, no bad ones; and at the end of the first page what it
/// is known by.
pub(crate) fn swap() -> Vec<u8> {
    const PAGE: usize = 4096;
    const NAME: &[u8] = b"SWAPSPACE2";
    let mut file = vec![0; 10 * PAGE];
    file[1024..1032].copy_from_slice(&[1, 0, 0, 0, 9, 0, 0, 0]);
    file[PAGE - NAME.len()..PAGE].copy_from_slice(NAME);
    file
}

/// A program that ends at once.
pub(crate) fn smallest_program() -> Vec<u8> {
    // xor edi, edi; mov eax, 60; syscall
    raw::elf(&[0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05], 5)
}
