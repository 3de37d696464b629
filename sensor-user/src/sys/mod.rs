//! The system calls that change a disk.
//!
//! In: handles and names. Out: the kernel's answer. With the feature `fault-injection` each call is counted, and
//! the one that `HOLDFAST_FAULT` names kills the process or fails, so that a test can do either at every single
//! call. Managed paths and the store are written by nothing else, except that an apply creates a missing lock file of the
//! shadow file.

pub(crate) mod durable;

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat},
    sys::{
        stat::{Mode, fchmod, mkdirat},
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

type Answer<T = ()> = Result<T, Errno>;

/// Opens a directory of Holdfast's own by its path.
pub(crate) fn directory(path: &Path) -> Answer<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    nix::fcntl::open(path, flags, Mode::empty())
}

/// Makes a file that was not there, readable by nobody else yet.
pub(crate) fn create(directory: impl AsFd, name: &OsStr) -> Answer<OwnedFd> {
    step("create", true)?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)
}

/// Writes all bytes.
pub(crate) fn write(file: impl AsFd, bytes: &[u8]) -> Answer {
    let mut rest = bytes;
    #[cfg(feature = "fault-injection")]
    if fault::kills_next() {
        // Half a write is what a death in the middle of it leaves.
        rest = &rest[..rest.len() / 2];
        let _ = nix::unistd::write(file.as_fd(), rest);
    }
    step("write", true)?;
    while !rest.is_empty() {
        match nix::unistd::write(file.as_fd(), rest) {
            Ok(0) => return Err(Errno::EIO),
            Ok(written) => rest = &rest[written..],
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Reserves space from an offset on without changing the size. A file system that cannot do that is no error.
pub(crate) fn reserve(file: impl AsFd, offset: i64, bytes: i64) -> Answer {
    step("fallocate", true)?;
    match nix::fcntl::fallocate(file, nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE, offset, bytes) {
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(()),
        other => other,
    }
}

/// Cuts a file to a length.
pub(crate) fn truncate(file: impl AsFd, length: i64) -> Answer {
    step("ftruncate", false)?;
    ftruncate(file, length)
}

/// Makes a file's content or a directory's names durable.
pub(crate) fn sync(file: impl AsFd) -> Answer {
    step("fsync", false)?;
    match nix::unistd::fsync(file) {
        // Directories of some file systems cannot be synced, and need not be.
        Err(Errno::EINVAL) => Ok(()),
        other => other,
    }
}

/// Makes an object durable at once: by `fsync` where that is enough, else by `syncfs`.
pub(crate) fn sync_content(file: impl AsFd) -> Answer {
    if durable::fsync_is_enough(&file)? { sync(file) } else { sync_file_system(file) }
}

/// Makes the names, owner and mode of a directory durable where `fsync` does that. Elsewhere the caller needs
/// [`sync_all`] before it relies on them.
pub(crate) fn sync_directory(directory: impl AsFd) -> Answer {
    if durable::fsync_is_enough(&directory)? { sync(directory) } else { Ok(()) }
}

/// Makes everything on a file system durable, unless the syncs of its files and directories are enough.
pub(crate) fn sync_all(of: impl AsFd) -> Answer {
    if durable::fsync_is_enough(&of)? { Ok(()) } else { sync_file_system(of) }
}

fn sync_file_system(of: impl AsFd) -> Answer {
    step("syncfs", false)?;
    rustix::fs::syncfs(of).map_err(raw)
}

/// Makes a directory, closed to all others.
pub(crate) fn mkdir(directory: impl AsFd, name: &OsStr) -> Answer {
    step("mkdir", true)?;
    mkdirat(directory, name, Mode::S_IRWXU)
}

/// Makes a symbolic link.
pub(crate) fn symlink(target: &OsStr, directory: impl AsFd, name: &OsStr) -> Answer {
    step("symlink", true)?;
    symlinkat(target, directory, name)
}

/// Makes another name of a file.
pub(crate) fn link(from: impl AsFd, old: &OsStr, to: impl AsFd, new: &OsStr) -> Answer {
    step("link", true)?;
    linkat(from, old, to, new, AtFlags::empty())
}

/// Gives an object a free name.
pub(crate) fn rename_free(directory: impl AsFd, from: &OsStr, to: &OsStr) -> Answer {
    rename_with(&directory, from, to, RenameFlags::NOREPLACE)
}

/// Exchanges two names.
pub(crate) fn exchange(directory: impl AsFd, one: &OsStr, other: &OsStr) -> Answer {
    rename_with(&directory, one, other, RenameFlags::EXCHANGE)
}

/// Gives an object a name, whatever had it.
pub(crate) fn rename_over(directory: impl AsFd, from: &OsStr, to: &OsStr) -> Answer {
    rename_with(&directory, from, to, RenameFlags::empty())
}

fn rename_with(directory: &impl AsFd, from: &OsStr, to: &OsStr, flags: RenameFlags) -> Answer {
    step("rename", false)?;
    renameat_with(directory.as_fd(), from, directory.as_fd(), to, flags).map_err(raw)
}

/// Removes a name; a directory when it is empty.
pub(crate) fn remove(directory: impl AsFd, name: &OsStr, is_directory: bool) -> Answer {
    step("unlink", false)?;
    let flags = if is_directory { UnlinkatFlags::RemoveDir } else { UnlinkatFlags::NoRemoveDir };
    unlinkat(directory, name, flags)
}

/// Sets the owner and the group of an open object; `None` leaves one as it is.
pub(crate) fn own(file: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> Answer {
    step("fchown", false)?;
    fchown(file, uid.map(Uid::from_raw), gid.map(Gid::from_raw))
}

/// The same for a symbolic link, by a handle of it: its name may lead to another object at any moment.
pub(crate) fn own_link(link: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> Answer {
    step("fchownat", false)?;
    fchownat(link, "", uid.map(Uid::from_raw), gid.map(Gid::from_raw), AtFlags::AT_EMPTY_PATH)
}

/// Sets the inode flags of an open object.
pub(crate) fn set_flags(file: impl AsFd, flags: IFlags) -> Answer {
    step("ioctl", false)?;
    ioctl_setflags(file, flags).map_err(raw)
}

/// Sets permission bits.
pub(crate) fn mode(file: impl AsFd, mode: u32) -> Answer {
    step("fchmod", false)?;
    fchmod(file, Mode::from_bits_truncate(mode & 0o7777))
}

/// Sets an extended attribute.
pub(crate) fn set_attribute(file: impl AsFd, name: &str, value: &[u8]) -> Answer {
    step("fsetxattr", true)?;
    fsetxattr(file, name, value, XattrFlags::empty()).map_err(raw)
}

/// The same of a symbolic link, by a handle of it.
pub(crate) fn set_link_attribute(handle: &OwnedFd, name: &str, value: &[u8]) -> Answer {
    step("setxattr", true)?;
    rustix::fs::setxattr(by_handle(handle), name, value, XattrFlags::empty()).map_err(raw)
}

/// A path that leads to the very object of a handle, also where that is a symbolic link.
pub(crate) fn by_handle(handle: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}

/// Removes an extended attribute.
pub(crate) fn remove_attribute(file: impl AsFd, name: &str) -> Answer {
    step("fremovexattr", false)?;
    rustix::fs::fremovexattr(file, name).map_err(raw)
}

/// Sets when the content was changed.
pub(crate) fn set_modified(file: impl AsFd, ns: i64) -> Answer {
    step("futimens", false)?;
    let time = TimeSpec::new(ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    nix::sys::stat::futimens(file, &time, &time)
}

/// The names in a directory, sorted.
pub(crate) fn names(directory: OwnedFd) -> Answer<Vec<OsString>> {
    let mut names = Vec::new();
    each_name(directory, |name| {
        names.push(name.to_owned());
        ControlFlow::Continue(())
    })?;
    names.sort_unstable();
    Ok(names)
}

/// Calls `take` for each name in a directory, until it breaks.
pub(crate) fn each_name(directory: OwnedFd, mut take: impl FnMut(&OsStr) -> ControlFlow<()>) -> Answer {
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
fn step(_call: &'static str, _takes_space: bool) -> Answer {
    Ok(())
}

#[cfg(feature = "fault-injection")]
use fault::step;

/// `HOLDFAST_FAULT=kill:N` dies at the N-th call, `stop:N` stands still before it until it is continued, `wait:N` until
/// standard input has a line or ends (other threads go on), `EIO:N` fails that call, `ENOSPC:N` fails it and every later one that takes space.
#[cfg(feature = "fault-injection")]
mod fault {
    use super::{Answer, Errno};
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

    fn tell(line: &str) {
        // Nobody may listen.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{line}\n").as_bytes());
    }

    /// Whether the next call is the one to die in.
    pub(crate) fn kills_next() -> bool {
        PLAN.as_ref()
            .is_some_and(|(what, number)| what == "kill" && CALLS.load(Ordering::Relaxed) + 1 == *number)
    }

    pub(crate) fn step(call: &'static str, takes_space: bool) -> Answer {
        let count = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
        match PLAN.as_ref() {
            Some((what, number)) if what == "kill" && count == *number => {
                tell(&format!("fault: killed at call {count} ({call})"));
                let _ =
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                Err(Errno::EINTR)
            }
            Some((what, number)) if what == "stop" && count == *number => {
                tell(&format!("fault: stopped at call {count} ({call})"));
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)
                    .map_err(super::raw)
            }
            Some((what, number)) if what == "wait" && count == *number => {
                tell(&format!("fault: waits at call {count} ({call})"));
                let _ = std::io::stdin().read_line(&mut String::new());
                Ok(())
            }
            Some((what, number)) if what == "EIO" && count == *number => {
                tell(&format!("fault: EIO at call {count} ({call})"));
                Err(Errno::EIO)
            }
            Some((what, number)) if what == "ENOSPC" && count >= *number && takes_space => {
                tell(&format!("fault: ENOSPC at call {count} ({call})"));
                Err(Errno::ENOSPC)
            }
            _ => Ok(()),
        }
    }
}
