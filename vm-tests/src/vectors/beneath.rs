//! Changes below the file system, through block devices. No hook sees the file change; a hook sees the opening of the
//! device.
//!
//! In: a managed file on a disk. Out: other bytes in its blocks, and an empty page cache.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::sys::stat::{Mode, SFlag, mknod};

use super::vector::{Does, ExpectedActor, ExpectedReport, StartState, Vector};
use crate::guest::disks::FileSystem;
use crate::guest::files::load_module;
use crate::guest::run;

/// The vectors of this family.
pub(super) const VECTORS: &[Vector] = &[
    Vector::file("V68", "raw write to the block device", &[], Does::Call(raw_write))
        .expecting(ExpectedReport::TamperThenDrift("content"))
        .by(ExpectedActor::NoActor)
        // Btrfs verifies its checksums, so the file would be unreadable.
        .only(&[FileSystem::Ext4, FileSystem::Xfs]),
    Vector::file("V68b", "the same through a new device node", &[], Does::Call(raw_write_by_own_node))
        .expecting(ExpectedReport::TamperThenDrift("content"))
        .by(ExpectedActor::NoActor)
        .only(&[FileSystem::Ext4, FileSystem::Xfs]),
    Vector::not_performed("V18", "NVMe passthrough by io_uring", &[], "the guests have no NVMe disk"),
    Vector::file(
        "V69",
        "written through a loop device created later",
        &["file_open", "file_permission"],
        Does::Call(by_loop),
    )
    .expecting(ExpectedReport::TamperThenDrift("content"))
    .on(StartState::Blocks)
    .by(ExpectedActor::Device),
    Vector::not_performed(
        "V69b",
        "tables of the device mapper",
        &[],
        "the same as V68 for the file system on top; a hook sees opens of all block devices",
    ),
    Vector::not_performed("V70", "SCSI and NVMe passthrough ioctls", &[], "the guests have no such disk"),
    Vector::not_performed("V71", "debugfs -w, xfs_db -x", &[], "the same system calls as V68"),
    Vector::file(
        "V72",
        "swapon(2) of it, and swapoff(2)",
        &["file_open"],
        Does::Shell("sync; swapon \"$F\" && swapoff \"$F\""),
    )
    .on(StartState::Swap)
    .expecting(ExpectedReport::Nothing)
    .by(ExpectedActor::Child)
    .only(&[FileSystem::Ext4, FileSystem::Xfs]),
    Vector::not_performed(
        "V75",
        "change by another node of a network file system",
        &[],
        "things there are never compliant (`foreign-file-system`)",
    ),
    Vector::not_performed(
        "V76",
        "FUSE daemon changes content",
        &[],
        "things there are never compliant (`foreign-file-system`)",
    ),
];

/// Finds the file's content on its disk and changes a few bytes there.
fn raw_write(path: &Path) -> Result<()> {
    write_beneath(path, &device_of(path)?)
}

/// The same through a new device node.
fn raw_write_by_own_node(path: &Path) -> Result<()> {
    let device = fs::metadata(device_of(path)?)?.rdev();
    let node = PathBuf::from(format!("/run/node-{}", std::process::id()));
    mknod(&node, SFlag::S_IFBLK, Mode::S_IRUSR | Mode::S_IWUSR, device)?;
    let written = write_beneath(path, &node);
    fs::remove_file(&node)?;
    written
}

fn write_beneath(path: &Path, device: &Path) -> Result<()> {
    let content = fs::read(path)?;
    nix::unistd::sync();
    drop_caches()?;
    let mut disk = OpenOptions::new().read(true).write(true).open(device)?;
    let at = find(&mut disk, &content)?;
    disk.write_all_at(b"DRIFT", at)?;
    disk.sync_all()?;
    drop(disk);
    drop_caches()
}

/// Attaches the file to a loop device and writes to the device. Each file system has its own device.
fn by_loop(path: &Path) -> Result<()> {
    load_module("loop")?;
    let number = FileSystem::ALL.into_iter().position(|kind| path.iter().any(|part| part == kind.name()));
    let device = format!("/dev/loop{}", number.context("a path below a known file system")?);
    let file = path.to_str().context("a path that is text")?;
    run("losetup", &[&device, file])?;
    let written = OpenOptions::new().write(true).open(&device).and_then(|disk| {
        disk.write_all_at(b"drift", 0)?;
        disk.sync_all()
    });
    run("losetup", &["-d", &device])?;
    Ok(written?)
}

fn drop_caches() -> Result<()> {
    Ok(fs::write("/proc/sys/vm/drop_caches", "3")?)
}

/// The device of the deepest mount above a path.
fn device_of(path: &Path) -> Result<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts")?;
    let deepest = table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(_, point)| path.starts_with(point))
        .max_by_key(|(_, point)| point.len());
    Ok(PathBuf::from(deepest.context("no mount above the path")?.0))
}

/// Position of the bytes on the disk. A file starts at the start of a block, and a block has at least 1 KiB.
fn find(disk: &mut File, wanted: &[u8]) -> Result<u64> {
    const BLOCK: usize = 1024;
    let mut chunk = vec![0; 256 * BLOCK];
    let mut at = 0;
    disk.seek(SeekFrom::Start(0))?;
    loop {
        let n = disk.read(&mut chunk)?;
        if n == 0 {
            bail!("the content is not on the disk");
        }
        if let Some(block) = chunk[..n].chunks(BLOCK).position(|block| block.starts_with(wanted)) {
            return Ok(at + (block * BLOCK) as u64);
        }
        at += n as u64;
    }
}
