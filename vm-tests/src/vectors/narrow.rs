//! A change by a 32-bit process, whose ioctls have their own hook since 6.8.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

/// Load address, the customary one for 32-bit programs.
const BASE: u32 = 0x0804_8000;

/// Bytes of a 32-bit ELF header and one program header (elf(5)).
const HEADERS: u32 = 52 + 32;

/// Opens its first argument, sets `FS_IMMUTABLE_FL` by `FS_IOC32_SETFLAGS`, and exits with the error number.
const CODE: [u8; 42] = [
    0x8b, 0x5c, 0x24, 0x08, // mov ebx, [esp + 8]
    0xb8, 0x05, 0x00, 0x00, 0x00, // mov eax, 5 (open)
    0x31, 0xc9, // xor ecx, ecx
    0xcd, 0x80, // int 0x80
    0x89, 0xc3, // mov ebx, eax
    0xb8, 0x36, 0x00, 0x00, 0x00, // mov eax, 54 (ioctl)
    0xb9, 0x02, 0x66, 0x04, 0x40, // mov ecx, FS_IOC32_SETFLAGS
    0x6a, 0x10, // push FS_IMMUTABLE_FL
    0x89, 0xe2, // mov edx, esp
    0xcd, 0x80, // int 0x80
    0x89, 0xc3, // mov ebx, eax
    0xf7, 0xdb, // neg ebx
    0xb8, 0x01, 0x00, 0x00, 0x00, // mov eax, 1 (exit)
    0xcd, 0x80, // int 0x80
];

/// The program: one segment, read and executed, from the beginning of the file.
fn program() -> Vec<u8> {
    let length = HEADERS + u32::try_from(CODE.len()).unwrap_or(u32::MAX);
    let mut elf = vec![0x7f, b'E', b'L', b'F', 1, 1, 1];
    elf.resize(16, 0);
    // Executable, for i386, version 1.
    for half in [2_u16, 3] {
        elf.extend(half.to_le_bytes());
    }
    for word in [1, BASE + HEADERS, 52, 0, 0] {
        elf.extend(word.to_le_bytes());
    }
    // Sizes of the headers; one program header, no sections.
    for half in [52_u16, 32, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    for word in [1, 0, BASE, BASE, length, length, 5, 0x1000] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(CODE);
    elf
}

/// Executes that program in this process.
pub(super) fn immutable(path: &Path) -> Result<()> {
    // Each vector has its own file: the kernel executes no file that another process is still writing (ETXTBSY).
    let place = format!("/run/narrow-{}", std::process::id());
    fs::write(&place, program())?;
    fs::set_permissions(&place, Permissions::from_mode(0o755))?;
    Err(Command::new(&place).arg(path).exec().into())
}
