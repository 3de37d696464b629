//! Content by shared mappings: the kernel sees the mapping, never the stores.
//!
//! Comes in: a managed file. Goes out: the same file with a few bytes stored through memory.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use vm_memory::bitmap::BitmapSlice;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use super::raw::{Program, Value};
use super::{Does, Vector, Who};
use crate::guest::wait::pause;

const MAP: &[&str] = &["mmap_file", "file_open"];

/// The family.
pub(super) const VECTORS: &[Vector] = &[
    Vector::file("V19a", "store through a shared mapping", MAP, Does::Call(store)),
    Vector::file("V19b", "store long after the mapping, file closed", MAP, Does::Call(store_late)),
    Vector::file("V19c", "store through a mapping made before the start", &[], Does::Early(mapped_before))
        .by(Who::Nobody),
    Vector::file(
        "V20",
        "mprotect(2) of a read-only shared mapping",
        &["file_mprotect", "file_open"],
        Does::Call(unprotect),
    )
    .by(Who::Child),
    Vector::file("V26", "/proc/PID/mem into a shared mapping", MAP, Does::Call(by_proc_mem)),
    Vector::file("V27", "process_vm_writev(2) into a shared mapping", MAP, Does::Call(write_memory))
        .by(Who::Child),
];

fn map(path: &Path) -> Result<MmapRegion> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let length = usize::try_from(file.metadata()?.len())?;
    // The region keeps the file open; what matters is the mapping.
    MmapRegion::from_file(FileOffset::new(file, 0), length).context("map the file")
}

fn put<B: BitmapSlice>(slice: &VolatileSlice<'_, B>) -> Result<()> {
    slice.write_slice(b"drift", 0).context("store")
}

fn store(path: &Path) -> Result<()> {
    put(&map(path)?.as_volatile_slice())
}

fn store_late(path: &Path) -> Result<()> {
    let region = map(path)?;
    pause(Duration::from_secs(1));
    put(&region.as_volatile_slice())
}

fn mapped_before(path: &Path, daemon_started: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let region = map(path)?;
    daemon_started()?;
    put(&region.as_volatile_slice())
}

const READ_WRITE: u64 = 2;
const PAGE: u64 = 4096;

/// Opens the file and maps its first page, shared, with a protection.
fn map_page(program: &mut Program, path: &Path, protection: u64) -> Value {
    const OPEN: u32 = 2;
    const MMAP: u32 = 9;
    const SHARED: u64 = 1;
    let path = program.path(path);
    let opened = program.call(OPEN, &[path.into(), READ_WRITE.into()]);
    program.call(MMAP, &[0.into(), PAGE.into(), protection.into(), SHARED.into(), opened, 0.into()])
}

/// Protections (asm-generic/mman-common.h).
const READABLE: u64 = 1;
const WRITABLE: u64 = 3;

fn unprotect(path: &Path) -> Result<()> {
    const MPROTECT: u32 = 10;
    let mut program = Program::default();
    let page = map_page(&mut program, path, READABLE);
    let _: Value = program.call(MPROTECT, &[page, PAGE.into(), WRITABLE.into()]);
    program.store(*b"drifting", page);
    program.run()
}

fn write_memory(path: &Path) -> Result<()> {
    const GETPID: u32 = 39;
    const PROCESS_VM_WRITEV: u32 = 311;
    let mut program = Program::default();
    let text = program.data(b"drift");
    let (local, remote) = (program.words(&[text, 5]), program.words(&[0, 5]));
    let page = map_page(&mut program, path, WRITABLE);
    program.put(page, remote, 8);
    let own = program.call(GETPID, &[]);
    let arguments = [own, local.into(), 1.into(), remote.into(), 1.into(), 0.into()];
    let _: Value = program.call(PROCESS_VM_WRITEV, &arguments);
    program.run()
}

fn by_proc_mem(path: &Path) -> Result<()> {
    let region = map(path)?;
    let address = region.as_ptr() as u64;
    let memory = OpenOptions::new().write(true).open("/proc/self/mem")?;
    write_at(&memory, address)
}

fn write_at(memory: &File, address: u64) -> Result<()> {
    Ok(memory.write_all_at(b"drift", address)?)
}
