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

use super::{Does, Vector, Who};
use crate::guest::wait::pause;

const MAP: &[&str] = &["mmap_file", "file_open"];

/// The family.
pub(super) const VECTORS: &[Vector] = &[
    Vector::file("V19a", "store through a shared mapping", MAP, Does::Call(store)),
    Vector::file("V19b", "store long after the mapping, file closed", MAP, Does::Call(store_late)),
    Vector::file("V19c", "store through a mapping made before the start", &[], Does::Early(mapped_before))
        .by(Who::Nobody),
    Vector::not_performed(
        "V20",
        "mprotect(2) of a read-only shared mapping",
        &["file_mprotect"],
        "no safe wrapper of the system call",
    ),
    Vector::file("V26", "/proc/PID/mem into a shared mapping", MAP, Does::Call(by_proc_mem)),
    Vector::not_performed(
        "V27",
        "process_vm_writev(2) into a shared mapping",
        &["mmap_file"],
        "no safe wrapper of the system call",
    ),
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
    pause(Duration::from_secs(3));
    put(&region.as_volatile_slice())
}

fn mapped_before(path: &Path, daemon_started: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let region = map(path)?;
    daemon_started()?;
    put(&region.as_volatile_slice())
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
