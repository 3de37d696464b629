//! How things stand before a vector is done to them, where that takes more than a file.
//!
//! Comes in: the path of a managed thing. Goes out: it is mounted over, or carries what nothing declares.

use std::fs;
use std::path::Path;

use anyhow::Result;

pub(crate) use super::mounts::bind;
use super::{attributes, elsewhere};

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

/// The smallest ELF program for x86-64: one segment, and `exit(0)`.
pub(crate) fn smallest_program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    // xor edi, edi; mov eax, 60; syscall
    const CODE: [u8; 9] = [0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05];
    let length = HEADERS + CODE.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    let half = |elf: &mut Vec<u8>, values: &[u16]| elf.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    let word = |elf: &mut Vec<u8>, values: &[u32]| elf.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    let long = |elf: &mut Vec<u8>, values: &[u64]| elf.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    // Executable, x86-64, version 1; entry, program headers, no sections; sizes and counts.
    half(&mut elf, &[2, 62]);
    word(&mut elf, &[1]);
    long(&mut elf, &[BASE + HEADERS, 64, 0]);
    word(&mut elf, &[0]);
    half(&mut elf, &[64, 56, 1, 0, 0, 0]);
    // One segment, readable and executable: offset, address twice, length twice, alignment.
    word(&mut elf, &[1, 5]);
    long(&mut elf, &[0, BASE, BASE, length, length, 0x1000]);
    elf.extend(CODE);
    elf
}
