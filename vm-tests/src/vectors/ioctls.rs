//! Ioctls that exchange, share or remove the content behind a path.
//!
//! In: a managed file. Out: other content in it, or none. If the ioctl needs a descriptor open for writing, the process
//! opens it long before, so that the ioctl has a record of its own.

use std::fs::OpenOptions;
use std::path::Path;

use anyhow::{Context, Result};

use super::content;
use super::raw::{RawProgram, Value};
use super::vector::{Does, ExpectedActor, ExpectedReport, StartState, Vector};
use crate::guest::disks::FileSystem;
use crate::guest::page;

/// The vectors of this family.
pub(super) const VECTORS: &[Vector] = &[
    Vector::file(
        "V10b",
        "reflink (FICLONE) long after the open",
        &["file_ioctl", "file_permission"],
        Does::Call(clone),
    )
    .only(&[FileSystem::Xfs, FileSystem::Btrfs]),
    Vector::file(
        "V53",
        "content exchanged with the boot loader's inode (EXT4_IOC_SWAP_BOOT)",
        &["file_ioctl"],
        Does::Call(swap_boot),
    )
    .by(ExpectedActor::Child)
    .only(&[FileSystem::Ext4]),
    Vector::file(
        "V55",
        "compressed data written (BTRFS_IOC_ENCODED_WRITE)",
        &["file_ioctl", "file_permission"],
        Does::Call(write_encoded),
    )
    .by(ExpectedActor::Child)
    .only(&[FileSystem::Btrfs]),
    Vector::file("V56", "the subvolume that holds it removed", &[], Does::Call(remove_subvolume))
        .on(StartState::FileInSubvolume)
        .expecting(ExpectedReport::Drift("missing"))
        .by(ExpectedActor::NoActor)
        .only(&[FileSystem::Btrfs]),
    Vector::not_performed(
        "V56b",
        "a snapshot put in its place, another default subvolume",
        &["inode_rename", "sb_mount"],
        "by a rename it is V36a, by a mount V57b; another default takes effect at the next mount of the \
         file system",
    ),
    Vector::not_performed(
        "V51",
        "fs-verity enabled, an fscrypt policy set",
        &["file_ioctl"],
        "the first makes a file read-only and changes nothing declared, the second accepts only empty \
         directories; both are ioctls like V49 and V53",
    ),
    Vector::not_performed(
        "V54",
        "extents moved (EXT4_IOC_MOVE_EXT, XFS_IOC_EXCHANGE_RANGE)",
        &["file_ioctl", "file_open"],
        "it needs both files open for writing, as in V01e. The first keeps the file's content; the second \
         needs a disk format that the guests do not have",
    ),
];

/// Opens the file for writing, and waits until the daemon has verified it.
fn open_long_before(path: &Path) -> Result<std::fs::File> {
    let file = OpenOptions::new().write(true).open(path)?;
    content::wait_until_handled();
    page::wait_for_hook("file_permission")?;
    Ok(file)
}

fn clone(path: &Path) -> Result<()> {
    let source = content::source(path)?;
    source.sync_all()?;
    Ok(rustix::fs::ioctl_ficlone(open_long_before(path)?, source)?)
}

const OPEN: u32 = 2;
const IOCTL: u32 = 16;
const READ_WRITE: u64 = 2;

/// Opens the file, and makes an ioctl on it long after.
fn ioctl(program: &mut RawProgram, path: &Path, command: u64, argument: u64) {
    let path = program.path(path);
    let opened = program.call(OPEN, &[path.into(), READ_WRITE.into()]);
    program.pause(content::HANDLED_SECONDS);
    let _: Value = program.call(IOCTL, &[opened, command.into(), argument.into()]);
}

fn swap_boot(path: &Path) -> Result<()> {
    /// `_IO('f', 17)` (fs/ext4/ext4.h).
    const SWAP_BOOT: u64 = 0x6611;
    let mut program = RawProgram::default();
    ioctl(&mut program, path, SWAP_BOOT, 0);
    program.run()
}

/// The letter `d` 4096 times, compressed by zlib.
const ENCODED: [u8; 28] = [
    0x78, 0xda, 0xed, 0xc1, 0x01, 0x0d, 0x00, 0x00, 0x00, 0xc2, 0xa0, 0xb2, 0xef, 0x9f, 0xc1, 0x1e, 0x0e,
    0x28, 0x00, 0x00, 0x00, 0xe0, 0xdd, 0x00, 0x1e, 0x5a, 0x40, 0x5b,
];

fn write_encoded(path: &Path) -> Result<()> {
    /// `_IOW(0x94, 64, struct btrfs_ioctl_encoded_io_args)` (linux/btrfs.h).
    const ENCODED_WRITE: u64 = 0x4080_9440;
    const DECODED: u64 = 4096;
    const ZLIB: u64 = 1;
    let mut program = RawProgram::default();
    let text = program.data(&ENCODED);
    let vector = program.words(&[text, ENCODED.len() as u64]);
    // Vector and its count, offset, flags, length, decoded length and offset, compression; reserved.
    let mut words = [0; 16];
    words[..8].copy_from_slice(&[vector, 1, 0, 0, DECODED, DECODED, 0, ZLIB]);
    let arguments = program.words(&words);
    ioctl(&mut program, path, ENCODED_WRITE, arguments);
    program.run()
}

/// Makes an ioctl on the directory above `subvolume`, with the subvolume's name.
fn on_subvolume(command: u64, subvolume: &Path) -> Result<()> {
    /// `struct btrfs_ioctl_vol_args`: a descriptor, and a name with its terminating zero.
    const ARGUMENTS: usize = 4096;
    let mut program = RawProgram::default();
    let directory = program.path(subvolume.parent().context("a path with a directory")?);
    let mut arguments = vec![0; 8];
    arguments.extend(subvolume.file_name().context("a path with a name")?.as_encoded_bytes());
    arguments.resize(ARGUMENTS, 0);
    let arguments = program.data(&arguments);
    let opened = program.call(OPEN, &[directory.into(), 0.into()]);
    let _: Value = program.call(IOCTL, &[opened, command.into(), arguments.into()]);
    program.run()
}

/// Creates a subvolume.
pub(super) fn make_subvolume(place: &Path) -> Result<()> {
    /// `BTRFS_IOC_SUBVOL_CREATE`.
    const CREATE: u64 = 0x5000_940e;
    on_subvolume(CREATE, place)
}

fn remove_subvolume(path: &Path) -> Result<()> {
    /// `BTRFS_IOC_SNAP_DESTROY`.
    const DESTROY: u64 = 0x5000_940f;
    on_subvolume(DESTROY, path.parent().context("a path with a directory")?)
}
