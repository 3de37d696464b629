//! The system calls that change a disk.
//!
//! In: handles and names. Out: the kernel's answer. Only these functions of Holdfast write managed paths and the state
//! directory of applies. With the feature `fault-injection` each call is counted. The call that `HOLDFAST_FAULT` names kills the process or fails, so a test can do either at each call.

pub(crate) mod durable;
mod error;
mod reading;
mod replacing;
pub(crate) mod temporary;

pub use error::CallError;
pub(crate) use reading::{
    ATTRIBUTE_BYTES, DIRECTORY, FileVersion, attributes, attributes_by_handle, clear_refusing_flags,
    each_attribute, each_chunk, version_of,
};
pub(crate) use replacing::replace;

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat},
    sys::{
        stat::{
            FchmodatFlags, FileStat, Mode, SFlag, UtimensatFlags, fchmod, fchmodat, mkdirat, mknodat,
            utimensat,
        },
        time::TimeSpec,
    },
    unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, ftruncate, linkat, symlinkat, unlinkat},
};
use rustix::fs::{IFlags, RenameFlags, XattrFlags, fsetxattr, ioctl_setflags, renameat_with};
use std::{
    ffi::{OsStr, OsString},
    ops::ControlFlow,
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

type CallResult<T = ()> = Result<T, Errno>;

/// Opens a directory of the store by its path.
pub(crate) fn directory(path: &Path) -> CallResult<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    nix::fcntl::open(path, flags, Mode::empty())
}

/// Makes a directory and its missing parents, if it is missing. Only its owner can open what is made.
pub(crate) fn make_directory(path: &Path) -> CallResult {
    if path.is_dir() {
        return Ok(());
    }
    let name = path.file_name().ok_or(Errno::ENOENT)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let opened = match directory(parent) {
        Err(Errno::ENOENT) => make_directory(parent).and_then(|()| directory(parent)),
        opened => opened,
    };
    match mkdir(opened?, name) {
        // Another process was faster.
        Err(Errno::EEXIST) if path.is_dir() => Ok(()),
        made => made,
    }
}

/// Creates a file that only its owner can read.
pub(crate) fn create(directory: impl AsFd, name: &OsStr) -> CallResult<OwnedFd> {
    step("create", true)?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)
}

/// Opens a lock file, and makes it if it is missing.
pub(crate) fn lock_file(directory: impl AsFd, name: &OsStr) -> CallResult<OwnedFd> {
    let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let open = || openat(&directory, name, flags, Mode::empty());
    match open() {
        Err(Errno::ENOENT) => match create(&directory, name) {
            // Another process was faster.
            Err(Errno::EEXIST) => open(),
            made => made,
        },
        opened => opened,
    }
}

/// Writes all bytes.
pub(crate) fn write(file: impl AsFd, bytes: &[u8]) -> CallResult {
    let mut left = bytes;
    #[cfg(feature = "fault-injection")]
    if fault::kills_next() {
        // A kill in the middle of a write leaves half of it.
        left = &left[..left.len() / 2];
        let _ = nix::unistd::write(file.as_fd(), left);
    }
    step("write", true)?;
    while !left.is_empty() {
        match nix::unistd::write(file.as_fd(), left) {
            Ok(0) => return Err(Errno::EIO),
            Ok(written) => left = &left[written..],
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Reserves space from an offset on without changing the size. Does nothing on a file system that cannot reserve space.
pub(crate) fn reserve(file: impl AsFd, offset: i64, bytes: i64) -> CallResult {
    step("fallocate", true)?;
    match nix::fcntl::fallocate(file, nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE, offset, bytes) {
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(()),
        other => other,
    }
}

/// Cuts a file to a length.
pub(crate) fn truncate(file: impl AsFd, length: i64) -> CallResult {
    step("ftruncate", false)?;
    ftruncate(file, length)
}

/// Makes a file's content or a directory's names durable.
pub(crate) fn sync(file: impl AsFd) -> CallResult {
    step("fsync", false)?;
    match nix::unistd::fsync(file) {
        // Some file systems cannot sync directories, and need no sync of them.
        Err(Errno::EINVAL) => Ok(()),
        other => other,
    }
}

/// Makes an object durable at once, by `fsync` if that is enough, else by `syncfs`.
pub(crate) fn sync_content(file: impl AsFd) -> CallResult {
    if durable::fsync_is_enough(&file)? { sync(file) } else { sync_file_system(file) }
}

/// Makes the names, owner and mode of a directory durable, if `fsync` does that on its file system. If not, the caller needs
/// [`sync_all`] before it relies on them.
pub(crate) fn sync_directory(directory: impl AsFd) -> CallResult {
    if durable::fsync_is_enough(&directory)? { sync(directory) } else { Ok(()) }
}

/// Makes everything on a file system durable, unless the syncs of its files and directories are enough.
pub(crate) fn sync_all(of: impl AsFd) -> CallResult {
    if durable::fsync_is_enough(&of)? { Ok(()) } else { sync_file_system(of) }
}

/// Makes everything on a file system durable.
pub(crate) fn sync_file_system(of: impl AsFd) -> CallResult {
    step("syncfs", false)?;
    rustix::fs::syncfs(of).map_err(raw)
}

/// Makes a directory that only its owner can open.
pub(crate) fn mkdir(directory: impl AsFd, name: &OsStr) -> CallResult {
    step("mkdir", true)?;
    mkdirat(directory, name, Mode::S_IRWXU)
}

/// Makes a symbolic link.
pub(crate) fn symlink(target: &OsStr, directory: impl AsFd, name: &OsStr) -> CallResult {
    step("symlink", true)?;
    symlinkat(target, directory, name)
}

/// Makes another name of a file.
pub(crate) fn link(from: impl AsFd, old: &OsStr, to: impl AsFd, new: &OsStr) -> CallResult {
    step("link", true)?;
    linkat(from, old, to, new, AtFlags::empty())
}

/// Renames an object to a free name.
pub(crate) fn rename_free(directory: impl AsFd, from: &OsStr, to: &OsStr) -> CallResult {
    rename_with(&directory, from, to, RenameFlags::NOREPLACE)
}

/// Exchanges two names.
pub(crate) fn exchange(directory: impl AsFd, one: &OsStr, other: &OsStr) -> CallResult {
    rename_with(&directory, one, other, RenameFlags::EXCHANGE)
}

/// Renames an object, and replaces the object with the new name.
pub(crate) fn rename_over(directory: impl AsFd, from: &OsStr, to: &OsStr) -> CallResult {
    rename_with(&directory, from, to, RenameFlags::empty())
}

/// Renames an object to a free name in another directory of the same mount.
pub(crate) fn move_free(from: impl AsFd, old: &OsStr, to: impl AsFd, new: &OsStr) -> CallResult {
    step("rename", false)?;
    renameat_with(from, old, to, new, RenameFlags::NOREPLACE).map_err(raw)
}

/// Makes a FIFO, a socket or a device node that only its owner can open.
pub(crate) fn make_node(directory: impl AsFd, name: &OsStr, kind: SFlag, device: u64) -> CallResult {
    step("mknod", true)?;
    mknodat(directory, name, kind, Mode::S_IRUSR | Mode::S_IWUSR, device)
}

fn rename_with(directory: &impl AsFd, from: &OsStr, to: &OsStr, flags: RenameFlags) -> CallResult {
    step("rename", false)?;
    renameat_with(directory.as_fd(), from, directory.as_fd(), to, flags).map_err(raw)
}

/// Removes a name. A directory must be empty.
pub(crate) fn remove(directory: impl AsFd, name: &OsStr, is_directory: bool) -> CallResult {
    step("unlink", false)?;
    let flags = if is_directory { UnlinkatFlags::RemoveDir } else { UnlinkatFlags::NoRemoveDir };
    unlinkat(directory, name, flags)
}

/// Sets the owner and the group of an open object; `None` leaves it unchanged.
pub(crate) fn own(file: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> CallResult {
    step("fchown", false)?;
    fchown(file, uid.map(Uid::from_raw), gid.map(Gid::from_raw))
}

/// Sets the owner and the group of a symbolic link. It needs a handle, because the name may get another object at any moment.
pub(crate) fn own_link(link: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> CallResult {
    step("fchownat", false)?;
    fchownat(link, "", uid.map(Uid::from_raw), gid.map(Gid::from_raw), AtFlags::AT_EMPTY_PATH)
}

/// Sets the inode flags of an open object.
pub(crate) fn set_flags(file: impl AsFd, flags: IFlags) -> CallResult {
    step("ioctl", false)?;
    ioctl_setflags(file, flags).map_err(raw)
}

/// Sets permission bits.
pub(crate) fn mode(file: impl AsFd, mode: u32) -> CallResult {
    step("fchmod", false)?;
    fchmod(file, Mode::from_bits_truncate(mode & 0o7777))
}

/// Sets the permission bits of a name that is no symbolic link. Only for directories in which no other user can put a link.
pub(crate) fn mode_of_name(directory: impl AsFd, name: &OsStr, mode: u32) -> CallResult {
    step("fchmodat", false)?;
    fchmodat(directory, name, Mode::from_bits_truncate(mode & 0o7777), FchmodatFlags::FollowSymlink)
}

/// Gives a name, also a symbolic link, the access and modification times of an object.
pub(crate) fn times_of_name(directory: impl AsFd, name: &OsStr, of: &FileStat) -> CallResult {
    step("utimensat", false)?;
    let (accessed, modified) =
        (TimeSpec::new(of.st_atime, of.st_atime_nsec), TimeSpec::new(of.st_mtime, of.st_mtime_nsec));
    utimensat(directory, name, &accessed, &modified, UtimensatFlags::NoFollowSymlink)
}

/// Sets an extended attribute.
pub(crate) fn set_attribute(file: impl AsFd, name: &str, value: &[u8]) -> CallResult {
    step("fsetxattr", true)?;
    fsetxattr(file, name, value, XattrFlags::empty()).map_err(raw)
}

/// Sets an extended attribute of an object, also of a symbolic link, by its handle.
pub(crate) fn set_link_attribute(handle: &OwnedFd, name: impl rustix::path::Arg, value: &[u8]) -> CallResult {
    step("setxattr", true)?;
    rustix::fs::setxattr(by_handle(handle), name, value, XattrFlags::empty()).map_err(raw)
}

/// A path to the object of a handle, also if the object is a symbolic link.
pub(crate) fn by_handle(handle: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}

/// Removes an extended attribute.
pub(crate) fn remove_attribute(file: impl AsFd, name: &OsStr) -> CallResult {
    step("fremovexattr", false)?;
    rustix::fs::fremovexattr(file, name).map_err(raw)
}

/// Sets the times of the last access and of the last change of the content.
pub(crate) fn set_modified(file: impl AsFd, ns: i64) -> CallResult {
    step("futimens", false)?;
    let time = TimeSpec::new(ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    nix::sys::stat::futimens(file, &time, &time)
}

/// The names in a directory, sorted.
pub(crate) fn names(directory: OwnedFd) -> CallResult<Vec<OsString>> {
    let mut names = Vec::new();
    each_name(directory, |name| {
        names.push(name.to_owned());
        ControlFlow::Continue(())
    })?;
    names.sort_unstable();
    Ok(names)
}

/// Calls `take` for each name in a directory, until it breaks.
pub(crate) fn each_name(directory: OwnedFd, mut take: impl FnMut(&OsStr) -> ControlFlow<()>) -> CallResult {
    for entry in Dir::from_fd(directory)?.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." && take(OsStr::from_bytes(name)).is_break() {
            break;
        }
    }
    Ok(())
}

pub(crate) fn raw(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

#[cfg(not(feature = "fault-injection"))]
#[expect(clippy::unnecessary_wraps, reason = "with fault injection it fails")]
fn step(_call: &'static str, _takes_space: bool) -> CallResult {
    Ok(())
}

#[cfg(feature = "fault-injection")]
use fault::step;

/// The faults of `HOLDFAST_FAULT`:
///
/// - `kill:N` kills the process at the N-th call.
/// - `stop:N` stops the process before that call, until SIGCONT.
/// - `wait:N` waits before that call for a line or the end of standard input. Other threads continue.
/// - `EIO:N` fails that call.
/// - `ENOSPC:N` fails that call and each later one that takes space.
#[cfg(feature = "fault-injection")]
mod fault {
    use super::{CallResult, Errno};
    use std::sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    };

    static PLAN: LazyLock<Option<(String, u64)>> = LazyLock::new(|| {
        let text = std::env::var("HOLDFAST_FAULT").ok()?;
        let (what, number) = text.split_once(':')?;
        Some((what.to_owned(), number.parse().ok()?))
    });
    static CALLS: AtomicU64 = AtomicU64::new(0);

    fn print(line: &str) {
        // Standard error may be closed.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{line}\n").as_bytes());
    }

    /// Whether the process is to be killed in the next call.
    pub(crate) fn kills_next() -> bool {
        PLAN.as_ref()
            .is_some_and(|(what, number)| what == "kill" && CALLS.load(Ordering::Relaxed) + 1 == *number)
    }

    pub(crate) fn step(call: &'static str, takes_space: bool) -> CallResult {
        let count = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
        match PLAN.as_ref() {
            Some((what, number)) if what == "kill" && count == *number => {
                print(&format!("fault: killed at call {count} ({call})"));
                let _ =
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                Err(Errno::EINTR)
            }
            Some((what, number)) if what == "stop" && count == *number => {
                print(&format!("fault: stopped at call {count} ({call})"));
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)
                    .map_err(super::raw)
            }
            Some((what, number)) if what == "wait" && count == *number => {
                print(&format!("fault: waits at call {count} ({call})"));
                let _ = std::io::stdin().read_line(&mut String::new());
                Ok(())
            }
            Some((what, number)) if what == "EIO" && count == *number => {
                print(&format!("fault: EIO at call {count} ({call})"));
                Err(Errno::EIO)
            }
            Some((what, number)) if what == "ENOSPC" && count >= *number && takes_space => {
                print(&format!("fault: ENOSPC at call {count} ({call})"));
                Err(Errno::ENOSPC)
            }
            _ => Ok(()),
        }
    }
}
