//! Paths inside the host root.
//!
//! In: an absolute path as a MachineConfig writes it. Out: a handle to the object, or the list of
//! directories that the path leads through. Links on the way are followed as the host itself would
//! follow them (so `/home` may be a link to `/var/home`), but never out of the root, and magic links
//! of procfs are never taken. A link below a directory that others than root can write is not followed: it would lead
//! root wherever they like. It never opens anything for reading unless asked to.

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat},
    sys::stat::{Mode, fstat},
};
use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Component, Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

/// What is said of a way that ends with `ELOOP`.
pub(crate) const LINK_OF_OTHERS: &str =
    "a link is on the way below a directory that others than root can write, and it is not followed";

/// Links followed in one path, as many as the kernel follows.
const MAXIMUM_LINKS: usize = 40;

/// `openat2` gives `EAGAIN` when a rename elsewhere raced with its walk; it is tried again this often
/// before the walk is done by hand.
const OPENAT2_ATTEMPTS: usize = 8;

/// Flags of a handle that is good for lookups only.
pub(crate) const HANDLE: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);

/// The root of the host's file system.
#[derive(Debug)]
pub(crate) struct Root {
    directory: OwnedFd,
    /// Cleared when the kernel (before 5.6) or a seccomp filter refuses the call.
    openat2: AtomicBool,
}

/// One object on the way, and its path without links.
#[derive(Debug)]
struct Level {
    handle: OwnedFd,
    real: PathBuf,
}

/// How a path leads through the root.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Every directory in which a name was looked up, in order, by its path without links.
    pub(crate) directories: Vec<PathBuf>,
    /// The directory and the name in it at which the way ends, when there is nothing of that name.
    pub(crate) missing: Option<(PathBuf, OsString)>,
    /// The object at the end and its path without links, or why there is none.
    pub(crate) end: Result<(OwnedFd, PathBuf), Errno>,
}

/// What is noted on the way.
#[derive(Debug, Default)]
struct Trail {
    directories: Vec<PathBuf>,
    missing: Option<(PathBuf, OsString)>,
}

impl Root {
    /// Holds `path` as the root of all later look-ups.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let directory = nix::fcntl::open(path, HANDLE | OFlag::O_DIRECTORY, Mode::empty())?;
        Ok(Self { directory, openat2: AtomicBool::new(true) })
    }

    /// Opens `path` with links followed, the last one too unless `flags` has `O_NOFOLLOW`. `ELOOP` where a link on the
    /// way is one that others than root can change.
    pub(crate) fn open_at(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        if self.openat2.load(Ordering::Relaxed) {
            // A way without links, as nearly all are, leads nowhere else and is gone in one call.
            let how = OpenHow::new()
                .flags(flags | OFlag::O_CLOEXEC)
                .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_SYMLINKS);
            for _ in 0..OPENAT2_ATTEMPTS {
                match openat2(&self.directory, path, how) {
                    Err(Errno::EAGAIN | Errno::EINTR) => {}
                    Err(Errno::ENOSYS) => {
                        self.openat2.store(false, Ordering::Relaxed);
                        break;
                    }
                    Err(Errno::ELOOP) => break,
                    done => return done,
                }
            }
        }
        self.open_by_hand(path, flags)
    }

    /// The same one component at a time, so that no link is ever followed by the kernel.
    fn open_by_hand(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        let mut levels = self.levels(path, !flags.contains(OFlag::O_NOFOLLOW), &mut Trail::default())?;
        let end = levels.pop().ok_or(Errno::ENOENT)?;
        match (levels.last(), end.real.file_name()) {
            // Its last name is no link, unless one appeared meanwhile, which is refused.
            (Some(parent), Some(name)) => {
                openat(&parent.handle, name, flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
            }
            _ => reopen_directory(&end.handle, flags),
        }
    }

    /// Follows `path` by hand, noting each directory on the way.
    pub(crate) fn walk(&self, path: &Path) -> Walk {
        let mut trail = Trail::default();
        let levels = self.levels(path, true, &mut trail);
        let end = levels
            .and_then(|mut levels| levels.pop().map(|level| (level.handle, level.real)).ok_or(Errno::ENOENT));
        Walk { directories: trail.directories, missing: trail.missing, end }
    }

    /// The directories from the root down to the object at the end of `path`, which is the last; links are followed,
    /// that at the end only when `follow_last` says so.
    fn levels(&self, path: &Path, follow_last: bool, trail: &mut Trail) -> Result<Vec<Level>, Errno> {
        let root = self.directory.try_clone().map_err(|_| Errno::EMFILE)?;
        // `..` takes one off.
        let mut levels = vec![Level { handle: root, real: PathBuf::from("/") }];
        let mut pending: VecDeque<OsString> = components(path);
        let mut links = 0;
        while let Some(name) = pending.pop_front() {
            if name == ".." {
                if levels.len() > 1 {
                    levels.pop();
                }
                continue;
            }
            let Some(Level { handle: here, real }) = levels.last() else { return Err(Errno::ENOENT) };
            if trail.directories.last() != Some(real) {
                trail.directories.push(real.clone());
            }
            let next = openat(here.as_fd(), name.as_os_str(), HANDLE | OFlag::O_NOFOLLOW, Mode::empty())
                .inspect_err(|error| {
                    if *error == Errno::ENOENT {
                        trail.missing = Some((real.clone(), name.clone()));
                    }
                })?;
            let is_followed = follow_last || !pending.is_empty();
            if let Some(target) = link_target(next.as_fd())?.filter(|_| is_followed) {
                links += 1;
                if links > MAXIMUM_LINKS || is_open_to_others(&levels)? {
                    return Err(Errno::ELOOP);
                }
                if target.as_bytes().starts_with(b"/") {
                    levels.truncate(1);
                }
                for component in components(Path::new(&target)).into_iter().rev() {
                    pending.push_front(component);
                }
                continue;
            }
            let real = real.join(&name);
            levels.push(Level { handle: next, real });
        }
        Ok(levels)
    }

    /// From now on as on a kernel without `openat2`.
    #[cfg(test)]
    pub(crate) fn refuse_openat2(&self) {
        self.openat2.store(false, Ordering::Relaxed);
    }

    /// The root itself.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Whether others than root can put a link where the way stands: by writing to one of its directories, since whoever can
/// replace a directory decides about all that is below it.
fn is_open_to_others(levels: &[Level]) -> Result<bool, Errno> {
    for level in levels {
        if others_can_write(&level.handle)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether others than root, and than whoever runs this, can make names in a directory. What an access control list
/// allows is within the bits of the group.
pub(crate) fn others_can_write(directory: impl AsFd) -> Result<bool, Errno> {
    let stat = fstat(directory)?;
    let is_ours = stat.st_uid == 0 || stat.st_uid == nix::unistd::geteuid().as_raw();
    Ok(!is_ours || stat.st_mode & 0o022 != 0)
}

/// Whether a directory that was opened by its name is the one that was made a moment ago, and not another that was put in
/// its place: ours, and empty.
pub(crate) fn is_just_made(directory: impl AsFd) -> Result<bool, Errno> {
    let is_ours = fstat(directory.as_fd())?.st_uid == nix::unistd::geteuid().as_raw();
    let mut list = Dir::from_fd(reopen_directory(directory, OFlag::O_RDONLY)?)?;
    let is_name = |entry: &nix::dir::Entry| !matches!(entry.file_name().to_bytes(), b"." | b"..");
    for entry in list.iter() {
        if is_name(&entry?) {
            return Ok(false);
        }
    }
    Ok(is_ours)
}

/// Opens the symbolic link that this process made a moment ago. `None` where the name has another object by now: one that is
/// no link, leads elsewhere, belongs to another user or has a second name, as a hard link to a link of root's would.
pub(crate) fn just_made_link(
    directory: impl AsFd,
    name: &OsStr,
    target: &OsStr,
) -> Result<Option<OwnedFd>, Errno> {
    let link = match openat(directory, name, HANDLE | OFlag::O_NOFOLLOW, Mode::empty()) {
        Ok(link) => link,
        Err(Errno::ENOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let stat = fstat(&link)?;
    let is_ours = stat.st_mode & nix::libc::S_IFMT == nix::libc::S_IFLNK
        && stat.st_nlink == 1
        && stat.st_uid == nix::unistd::geteuid().as_raw();
    let leads_there = is_ours && link_target(link.as_fd())?.is_some_and(|found| found == target);
    Ok(leads_there.then_some(link))
}

/// Opens a directory again by its handle, with other flags.
pub(crate) fn reopen_directory(handle: impl AsFd, flags: OFlag) -> Result<OwnedFd, Errno> {
    openat(handle.as_fd(), ".", flags | OFlag::O_CLOEXEC | OFlag::O_DIRECTORY, Mode::empty())
}

/// The target when the handle is that of a symbolic link.
pub(crate) fn link_target(handle: BorrowedFd<'_>) -> Result<Option<OsString>, Errno> {
    match readlinkat(handle, OsStr::new("")) {
        // An empty path on a handle that is no link is ENOENT (EINVAL on older kernels).
        Err(Errno::ENOENT | Errno::EINVAL) => Ok(None),
        other => other.map(Some),
    }
}

/// Names of a path, without the root and without `.`.
fn components(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from_vec(b"..".to_vec())),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}
