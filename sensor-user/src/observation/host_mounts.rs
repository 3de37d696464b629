//! The mount table of the host, as its first process has it, and other files in the host's `/proc`.
//!
//! In: the host's root. Out: the bytes of the file, and whether a host runs in the root at all. If `/proc` is a procfs,
//! the file must be on the same mount, because root could mount another file over it, such as the table of another process.

use super::{
    object::{FailedOperation, stat_handle},
    resolve::{HANDLE, Root},
};
use crate::bounded;
use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::statfs::{PROC_SUPER_MAGIC, fstatfs},
};
use rustix::fs::StatxFlags;
use sensor_model::os::hierarchy::HOST_MOUNTS;
use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

/// The mount table of the host. A file that is mounted over it is refused, as an error.
pub(super) fn host_mounts(root: &Root) -> Result<Vec<u8>, FailedOperation> {
    let failed = |errno| FailedOperation { operation: "read the mount table of the host for", errno };
    of_proc(root, Path::new(HOST_MOUNTS)).map_err(failed)
}

/// The content of a file in `/proc`. A file that is mounted over it is refused, as an error.
pub(super) fn of_proc(root: &Root, path: &Path) -> Result<Vec<u8>, Errno> {
    let file = root.open_at(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
    if let Some(proc) = procfs(root)
        && mount_of(&proc)? != mount_of(&file)?
    {
        return Err(Errno::EXDEV);
    }
    bounded::read_open(file, bounded::TABLE).map_err(|error| error.errno())
}

/// Whether a host runs in this root: it has a procfs, or at least a mount table, as a made-up root may have.
pub(super) fn is_running(root: &Root) -> bool {
    procfs(root).is_some() || root.open_at(Path::new(HOST_MOUNTS), HANDLE).is_ok()
}

fn procfs(root: &Root) -> Option<OwnedFd> {
    let proc = root.open_at(Path::new("/proc"), HANDLE | OFlag::O_DIRECTORY).ok()?;
    fstatfs(&proc).is_ok_and(|found| found.filesystem_type() == PROC_SUPER_MAGIC).then_some(proc)
}

/// The number of the mount of an open object; 0 on a kernel without the field (before 5.8).
fn mount_of(object: &OwnedFd) -> Result<u64, Errno> {
    let stat = stat_handle(object.as_fd(), StatxFlags::MNT_ID).map_err(|failed| failed.errno)?;
    Ok(stat.stx_mnt_id)
}
