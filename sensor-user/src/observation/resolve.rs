//! Paths inside the host root.
//!
//! In: an absolute path as a MachineConfig writes it. Out: a handle to the object, or the list of
//! directories that the path leads through. Links on the way are followed as the host itself would
//! follow them (so `/home` may be a link to `/var/home`), but never out of the root, and magic links
//! of procfs are never taken. It never opens anything for reading unless asked to.

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat},
    sys::stat::Mode,
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
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

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

/// How a path leads through the root.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Every directory in which a name was looked up, in order, by its path without links.
    pub(crate) directories: Vec<PathBuf>,
    /// The object at the end and its path without links, or why there is none.
    pub(crate) end: Result<(OwnedFd, PathBuf), Errno>,
}

impl Root {
    /// Holds `path` as the root of all later look-ups.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let directory = nix::fcntl::open(path, HANDLE | OFlag::O_DIRECTORY, Mode::empty())?;
        Ok(Self { directory, openat2: AtomicBool::new(true) })
    }

    /// Opens `path` with every link followed, the last one too unless `flags` has `O_NOFOLLOW`.
    pub(crate) fn open_at(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        if self.openat2.load(Ordering::Relaxed) {
            let how = OpenHow::new()
                .flags(flags | OFlag::O_CLOEXEC)
                .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
            for _ in 0..OPENAT2_ATTEMPTS {
                match openat2(&self.directory, path, how) {
                    Err(Errno::EAGAIN | Errno::EINTR) => {}
                    Err(Errno::ENOSYS) => {
                        self.openat2.store(false, Ordering::Relaxed);
                        break;
                    }
                    done => return done,
                }
            }
        }
        self.open_by_hand(path, flags)
    }

    /// The same without `openat2`: one component at a time, so that no link is ever followed by the kernel.
    fn open_by_hand(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        if flags.contains(OFlag::O_NOFOLLOW) {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return reopen_directory(&self.directory, flags);
            };
            let parent = self.walk(parent).end?.0;
            return openat(&parent, name, flags | OFlag::O_CLOEXEC, Mode::empty());
        }
        let (_, real) = self.walk(path).end?;
        // The path is free of links now; O_NOFOLLOW refuses a last one that appeared meanwhile.
        self.open_by_hand(&real, flags | OFlag::O_NOFOLLOW)
    }

    /// Follows `path` by hand, noting each directory on the way.
    pub(crate) fn walk(&self, path: &Path) -> Walk {
        let mut directories = Vec::new();
        let end = self.walk_into(path, &mut directories);
        Walk { directories, end }
    }

    fn walk_into(&self, path: &Path, directories: &mut Vec<PathBuf>) -> Result<(OwnedFd, PathBuf), Errno> {
        let root = Arc::new(self.directory.try_clone().map_err(|_| Errno::EMFILE)?);
        // The directories from the root down to where the walk stands; `..` takes one off.
        let mut stack: Vec<(Arc<OwnedFd>, PathBuf)> = vec![(Arc::clone(&root), PathBuf::from("/"))];
        let mut pending: VecDeque<OsString> = components(path);
        let mut links = 0;
        while let Some(name) = pending.pop_front() {
            if name == ".." {
                if stack.len() > 1 {
                    stack.pop();
                }
                continue;
            }
            let Some((here, real)) = stack.last() else { return Err(Errno::ENOENT) };
            if directories.last() != Some(real) {
                directories.push(real.clone());
            }
            let next = openat(here.as_fd(), name.as_os_str(), HANDLE | OFlag::O_NOFOLLOW, Mode::empty())?;
            if let Some(target) = link_target(next.as_fd())? {
                links += 1;
                if links > MAXIMUM_LINKS {
                    return Err(Errno::ELOOP);
                }
                if target.as_bytes().starts_with(b"/") {
                    stack.truncate(1);
                }
                for component in components(Path::new(&target)).into_iter().rev() {
                    pending.push_front(component);
                }
                continue;
            }
            let real = real.join(&name);
            stack.push((Arc::new(next), real));
        }
        let Some((handle, real)) = stack.pop() else { return Err(Errno::ENOENT) };
        let handle = handle.try_clone().map_err(|_| Errno::EMFILE)?;
        Ok((handle, real))
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
