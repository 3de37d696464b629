//! Content by shared mappings: the kernel sees the mapping, never the stores.
//!
//! In: a managed file. Out: the same file with a few bytes stored through memory.

use std::fs::{File, OpenOptions};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use vm_memory::bitmap::BitmapSlice;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use super::content::{HANDLED_SECONDS, wait_until_handled};
use super::raw::{RawProgram, Value};
use super::vector::{Does, ExpectedActor, Vector};
use crate::guest::disks::FileSystem;

/// The file is open for writing long before, so that no other hook reports the stores.
const MAP: &[&str] = &["mmap_file"];

/// The vectors of this family.
pub(super) const VECTORS: &[Vector] = &[
    Vector::file("V19a", "store through a shared mapping", MAP, Does::Call(store)),
    Vector::file("V19b", "store long after the mapping, file closed", MAP, Does::Call(store_late)),
    Vector::file("V19c", "store through a mapping made before the start", &[], Does::Early(mapped_before))
        .by(ExpectedActor::NoActor),
    Vector::file(
        "V20",
        "mprotect(2) of a read-only shared mapping",
        &["file_mprotect"],
        Does::Call(unprotect),
    )
    .by(ExpectedActor::Child),
    Vector::file("V26", "/proc/PID/mem into a shared mapping", MAP, Does::Call(by_proc_mem)),
    Vector::file("V27", "process_vm_writev(2) into a shared mapping", MAP, Does::Call(write_memory))
        .by(ExpectedActor::Child),
    Vector::file("V28", "a direct read into a shared mapping", MAP, Does::Call(read_into))
        .by(ExpectedActor::Child)
        // tmpfs has no direct I/O before 6.6.
        .only(&[FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs]),
    Vector::not_performed(
        "V28b",
        "userfaultfd, pages pinned for a network card, into a shared mapping",
        MAP,
        "the first fills only missing pages of tmpfs, for the second the guests have no device; the \
         mapping is reported as in V28",
    ),
];

/// Opens the file, and maps it long after.
fn map_late(path: &Path) -> Result<MmapRegion> {
    let file = open(path)?;
    wait_until_handled();
    map(file)
}

fn open(path: &Path) -> Result<File> {
    Ok(OpenOptions::new().read(true).write(true).open(path)?)
}

fn map(file: File) -> Result<MmapRegion> {
    let length = usize::try_from(file.metadata()?.len())?;
    // The region keeps the file open.
    MmapRegion::from_file(FileOffset::new(file, 0), length).context("map the file")
}

fn put<B: BitmapSlice>(slice: &VolatileSlice<'_, B>) -> Result<()> {
    slice.write_slice(b"drift", 0).context("store")
}

fn store(path: &Path) -> Result<()> {
    put(&map_late(path)?.as_volatile_slice())
}

fn store_late(path: &Path) -> Result<()> {
    // The region is never dropped, because a drop would close the descriptor that is closed here. The mapping ends with
    // the process.
    let region = ManuallyDrop::new(map_late(path)?);
    let file = region.file_offset().context("a mapping of a file")?.file().as_raw_fd();
    nix::unistd::close(file)?;
    wait_until_handled();
    put(&region.as_volatile_slice())
}

fn mapped_before(path: &Path, daemon_started: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let region = map(open(path)?)?;
    daemon_started()?;
    put(&region.as_volatile_slice())
}

const OPEN: u32 = 2;
const READ_WRITE: u64 = 2;
const PAGE: u64 = 4096;

/// Opens the file, and long after maps its first page, shared, with a protection.
fn map_page(program: &mut RawProgram, path: &Path, protection: u64) -> Value {
    const MMAP: u32 = 9;
    const SHARED: u64 = 1;
    let path = program.path(path);
    let opened = program.call(OPEN, &[path.into(), READ_WRITE.into()]);
    program.pause(HANDLED_SECONDS);
    program.call(MMAP, &[0.into(), PAGE.into(), protection.into(), SHARED.into(), opened, 0.into()])
}

/// Protections (asm-generic/mman-common.h).
const READABLE: u64 = 1;
const WRITABLE: u64 = 3;

fn unprotect(path: &Path) -> Result<()> {
    const MPROTECT: u32 = 10;
    let mut program = RawProgram::default();
    let page = map_page(&mut program, path, READABLE);
    program.pause(HANDLED_SECONDS);
    let _: Value = program.call(MPROTECT, &[page, PAGE.into(), WRITABLE.into()]);
    program.store(*b"drifting", page);
    program.run()
}

fn write_memory(path: &Path) -> Result<()> {
    const GETPID: u32 = 39;
    const PROCESS_VM_WRITEV: u32 = 311;
    let mut program = RawProgram::default();
    let text = program.data(b"drift");
    let (local, remote) = (program.words(&[text, 5]), program.words(&[0, 5]));
    let page = map_page(&mut program, path, WRITABLE);
    program.put(page, remote, 8);
    let own = program.call(GETPID, &[]);
    let arguments = [own, local.into(), 1.into(), remote.into(), 1.into(), 0.into()];
    let _: Value = program.call(PROCESS_VM_WRITEV, &arguments);
    program.run()
}

/// A direct read from the disk fills the page.
fn read_into(path: &Path) -> Result<()> {
    const READ: u32 = 0;
    /// `O_DIRECT`.
    const DIRECT: u64 = 0o40000;
    // The rest of the page is zeros. If the page is written back meanwhile, the kernel zeroes it behind the file's end
    // (`extent_writepage` of btrfs). With other bytes the checksum would then not match, and the read would fail with
    // EIO.
    let mut content = vec![0; usize::try_from(PAGE)?];
    content[..5].copy_from_slice(b"drift");
    let source = super::vector::elsewhere(path)?;
    std::fs::write(&source, &content)?;
    File::open(&source)?.sync_all()?;
    let mut program = RawProgram::default();
    let page = map_page(&mut program, path, WRITABLE);
    let source = program.path(&source);
    let source = program.call(OPEN, &[source.into(), DIRECT.into()]);
    let _: Value = program.call(READ, &[source, page, PAGE.into()]);
    program.run()
}

fn by_proc_mem(path: &Path) -> Result<()> {
    let region = map_late(path)?;
    wait_until_handled();
    let address = region.as_ptr() as u64;
    let memory = OpenOptions::new().write(true).open("/proc/self/mem")?;
    write_at(&memory, address)
}

fn write_at(memory: &File, address: u64) -> Result<()> {
    Ok(memory.write_all_at(b"drift", address)?)
}
