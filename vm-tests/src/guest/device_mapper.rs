//! Mapped devices of dm-verity, as `veritysetup` makes them.
//!
//! In: a name and the parameters of the target. Out: the device, or another table in it. The guest has no program for this.

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use zerocopy::{FromZeros, Immutable, IntoBytes};

use super::files::load_module;

/// `DM_DEV_CREATE`, `DM_DEV_SUSPEND` (which also resumes) and `DM_TABLE_LOAD` (`include/uapi/linux/dm-ioctl.h`).
const CREATE: Opcode = opcode::read_write::<[u8; 312]>(0xfd, 3);
const RESUME: Opcode = opcode::read_write::<[u8; 312]>(0xfd, 6);
const LOAD: Opcode = opcode::read_write::<[u8; 312]>(0xfd, 9);
/// `DM_READONLY_FLAG`.
const READ_ONLY: u32 = 1;
const SECTOR: u64 = 512;

/// `struct dm_ioctl` with its last bytes, `struct dm_target_spec`, and the parameters.
#[derive(Debug, FromZeros, IntoBytes, Immutable)]
#[repr(C)]
struct Request {
    version: [u32; 3],
    data_size: u32,
    data_start: u32,
    target_count: u32,
    open_count: i32,
    flags: u32,
    event_nr: u32,
    padding: u32,
    dev: u64,
    name: [u8; 128],
    uuid: [u8; 129],
    rest: [u8; 7],
    sector_start: u64,
    sectors: u64,
    status: i32,
    next: u32,
    target_type: [u8; 16],
    parameters: [u8; 512],
}

/// A verity device.
#[derive(Debug)]
pub struct Verity {
    name: &'static str,
    bytes: u64,
    control: File,
}

impl Verity {
    /// Makes a device of so many bytes with these parameters.
    ///
    /// # Errors
    /// The kernel has no dm-verity, or refuses the table.
    pub fn create(name: &'static str, bytes: u64, parameters: &str) -> Result<Self> {
        load_module("dm_mod")?;
        load_module("dm_verity")?;
        let control = File::options().read(true).write(true).open("/dev/mapper/control")?;
        let made = Self { name, bytes, control };
        made.ask::<CREATE>("")?;
        made.set_table(parameters)?;
        Ok(made)
    }

    /// Replaces the table, also while a file system of the device is mounted.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_table(&self, parameters: &str) -> Result<()> {
        self.ask::<LOAD>(parameters)?;
        self.ask::<RESUME>("")
    }

    /// The path of the device.
    ///
    /// # Errors
    /// It does not exist.
    pub fn path(&self) -> Result<PathBuf> {
        for entry in fs::read_dir("/sys/block")? {
            let entry = entry?;
            if fs::read_to_string(entry.path().join("dm/name")).is_ok_and(|name| name.trim() == self.name) {
                return Ok(PathBuf::from("/dev").join(entry.file_name()));
            }
        }
        anyhow::bail!("no mapped device {}", self.name)
    }

    fn ask<const OPERATION: Opcode>(&self, parameters: &str) -> Result<()> {
        let mut request = Request::new_zeroed();
        request.version = [4, 0, 0];
        request.data_size = u32::try_from(size_of::<Request>())?;
        request.data_start = 312;
        request.name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        if !parameters.is_empty() {
            request.flags = READ_ONLY;
            request.target_count = 1;
            request.sectors = self.bytes / SECTOR;
            request.target_type[..6].copy_from_slice(b"verity");
            request.parameters[..parameters.len()].copy_from_slice(parameters.as_bytes());
        }
        ask_kernel::<OPERATION>(&self.control, &mut request)
            .with_context(|| format!("operation {OPERATION:x} on {} with `{parameters}`", self.name))
    }
}

#[expect(unsafe_code, reason = "no crate has these calls without bindings to a C library")]
fn ask_kernel<const OPERATION: Opcode>(control: &File, request: &mut Request) -> rustix::io::Result<()> {
    // SAFETY: the kernel reads and writes at most `data_size` bytes of the request, which is its size.
    unsafe { ioctl(control.as_fd(), Updater::<OPERATION, Request>::new(request)) }
}
