//! Paths inside the host root.
//!
//! In: an absolute path as a MachineConfig declares it. Out: a handle of the object, or the directories that the path leads through.
//! It follows links in the path as the host itself does (so `/home` may be a link to `/var/home`), but never out of the root. It never
//! follows magic links of procfs. Nor does it follow a link below a directory that others than root can write: they could lead root
//! anywhere. It opens an object for reading only if the caller asks for it.
//!
//! With a guard it touches nothing on a file system that a server answers for. It splits a path at the mounts that it crosses, and no
//! look-up in between may cross another mount. So it notices a mount that appears at that moment, and does not enter it.

use super::served::MountGuard;
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
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Component, Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The text of an error for a path that ends with `ELOOP`.
pub(crate) const LINK_OF_OTHERS: &str =
    "a link is on the way below a directory that others than root can write, and it is not followed";

/// Most links in one path, as in the kernel (`MAXSYMLINKS`).
const MAXIMUM_LINKS: usize = 40;

/// Attempts of `openat2`, which gives `EAGAIN` if it races with a rename. After these the walk looks up each component itself.
const OPENAT2_ATTEMPTS: usize = 8;

/// Attempts to split a path, if mounts appear on it meanwhile.
const MOUNT_ATTEMPTS: usize = 4;

/// Flags of a handle for look-ups only.
pub(crate) const HANDLE: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);

/// The root of the host's file system.
#[derive(Debug)]
pub(crate) struct Root {
    directory: OwnedFd,
    /// Whether `openat2` works: a kernel before 5.6 or a seccomp filter may refuse it.
    openat2: AtomicBool,
    /// Keeps look-ups from file systems that a server answers for.
    guard: Option<Arc<MountGuard>>,
}

/// One object on the route, and its path without links.
#[derive(Debug)]
struct Level {
    handle: OwnedFd,
    real: PathBuf,
}

/// How a path leads through the root.
#[derive(Debug)]
pub(crate) struct Walk {
    /// The paths, without links, of the directories in which names were looked up, in order.
    pub(crate) directories: Vec<PathBuf>,
    /// The directory, and the first name that does not exist in it, if the route ends there.
    pub(crate) missing: Option<(PathBuf, OsString)>,
    /// The object at the end and its path without links, or why there is none.
    pub(crate) end: Result<(OwnedFd, PathBuf), Errno>,
}

/// What a walk collects.
#[derive(Debug, Default)]
struct Trail {
    directories: Vec<PathBuf>,
    missing: Option<(PathBuf, OsString)>,
}

impl Root {
    /// Opens `path` as the root of all later look-ups, without a guard.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::of(nix::fcntl::open(path, HANDLE | OFlag::O_DIRECTORY, Mode::empty())?))
    }

    /// An open directory as the root of all later look-ups, without a guard.
    pub(super) fn of(directory: OwnedFd) -> Self {
        Self { directory, openat2: AtomicBool::new(true), guard: None }
    }

    /// The same with look-ups that fail with [`super::served::NEEDS_WORKER`] at a file system that a server answers for. `mounts`
    /// is the file with the mount table.
    pub(crate) fn open_guarded(path: &Path, mounts: &Path) -> io::Result<Self> {
        let mut root = Self::open(path)?;
        root.guard = MountGuard::new(path, &root.directory, mounts).map(Arc::new);
        if root.guard.is_none() {
            tracing::warn!(
                "The kernel does not show the mount of a handle (before 5.8): a file system that hangs stops detection."
            );
        }
        Ok(root)
    }

    /// The guard that keeps look-ups from file systems that a server answers for.
    pub(crate) fn guard(&self) -> Option<&Arc<MountGuard>> {
        self.guard.as_ref()
    }

    /// Opens `path`. It follows links, the last one only without `O_NOFOLLOW` in `flags`. `ELOOP` if others than root can change a
    /// link in the path.
    pub(crate) fn open_at(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        let opened = match &self.guard {
            Some(guard) => self.open_guarded_at(guard, path, flags)?,
            None => self.look_up(&self.directory, path, flags, ResolveFlag::empty())?,
        };
        opened.map_or_else(|| self.open_by_hand(path, flags), Ok)
    }

    /// Opens a path without links, as most are, in one call. `None` if the path has links, or the kernel lacks the call.
    fn look_up(
        &self,
        from: impl AsFd,
        path: &Path,
        flags: OFlag,
        more: ResolveFlag,
    ) -> Result<Option<OwnedFd>, Errno> {
        if !self.openat2.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_SYMLINKS | more);
        for _ in 0..OPENAT2_ATTEMPTS {
            match openat2(from.as_fd(), path, how) {
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(Errno::ENOSYS) => {
                    self.openat2.store(false, Ordering::Relaxed);
                    return Ok(None);
                }
                Err(Errno::ELOOP) => return Ok(None),
                done => return done.map(Some),
            }
        }
        Ok(None)
    }

    /// The same on file systems without a server only.
    fn open_guarded_at(
        &self,
        guard: &MountGuard,
        path: &Path,
        flags: OFlag,
    ) -> Result<Option<OwnedFd>, Errno> {
        for _ in 0..MOUNT_ATTEMPTS {
            let Some(crossings) = guard.crossings(path)? else { return Ok(None) };
            match self.open_across(guard, path, flags, &crossings) {
                // A mount exists that the table does not show yet.
                Err(Errno::EXDEV) => guard.refresh(),
                done => return done,
            }
        }
        Ok(None)
    }

    /// Opens a path that crosses mounts. `crossings` are the lengths of its mount points in bytes.
    fn open_across(
        &self,
        guard: &MountGuard,
        path: &Path,
        flags: OFlag,
        crossings: &[usize],
    ) -> Result<Option<OwnedFd>, Errno> {
        let bytes = path.as_os_str().as_bytes();
        let within = ResolveFlag::RESOLVE_NO_XDEV;
        let Some(last) = crossings.last() else { return self.look_up(&self.directory, path, flags, within) };
        let mut here = None;
        let mut from = 1;
        for end in crossings {
            let at = Path::new(OsStr::from_bytes(&bytes[from..*end]));
            let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { return Ok(None) };
            let base = here.as_ref().map_or(self.directory.as_fd(), |here: &OwnedFd| here.as_fd());
            let mut above = None;
            if !parent.as_os_str().is_empty() {
                above = self.look_up(base, parent, HANDLE | OFlag::O_DIRECTORY, within)?;
                if above.is_none() {
                    return Ok(None);
                }
            }
            // The step that crosses neither opens nor reads the object: it gives a handle of the topmost mount's root.
            let base = above.as_ref().map_or(base, |above: &OwnedFd| above.as_fd());
            let crossed = openat(base, name, HANDLE | OFlag::O_NOFOLLOW, Mode::empty())?;
            guard.check(&crossed)?;
            here = Some(crossed);
            from = *end + 1;
        }
        let Some(here) = here else { return Ok(None) };
        if *last == bytes.len() {
            return reopen(here, flags).map(Some);
        }
        self.look_up(&here, Path::new(OsStr::from_bytes(&bytes[from..])), flags, within)
    }

    /// The same, one component at a time, so that the kernel never follows a link.
    fn open_by_hand(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        let mut levels = self.levels(path, !flags.contains(OFlag::O_NOFOLLOW), &mut Trail::default())?;
        let end = levels.pop().ok_or(Errno::ENOENT)?;
        if self.guard.is_some() {
            return reopen(end.handle, flags);
        }
        match (levels.last(), end.real.file_name()) {
            // The last name is no link. If one has appeared meanwhile, the open fails.
            (Some(parent), Some(name)) => {
                openat(&parent.handle, name, flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
            }
            _ => reopen_directory(&end.handle, flags),
        }
    }

    /// Follows `path` one component at a time, and collects each directory.
    pub(crate) fn walk(&self, path: &Path) -> Walk {
        let mut trail = Trail::default();
        let levels = self.levels(path, true, &mut trail);
        let end = levels
            .and_then(|mut levels| levels.pop().map(|level| (level.handle, level.real)).ok_or(Errno::ENOENT));
        Walk { directories: trail.directories, missing: trail.missing, end }
    }

    /// The path without links on the way to its last name, as far as that exists.
    pub(crate) fn place(&self, path: &Path) -> PathBuf {
        let real = |above: &Path| Some(self.walk(above).end.ok()?.1.join(path.strip_prefix(above).ok()?));
        path.ancestors().skip(1).find_map(real).unwrap_or_else(|| path.to_owned())
    }

    /// The objects from the root down to the one at the end of `path`. It follows links, the last one only with `follow_last`.
    fn levels(&self, path: &Path, follow_last: bool, trail: &mut Trail) -> Result<Vec<Level>, Errno> {
        let root = self.directory.try_clone().map_err(|_| Errno::EMFILE)?;
        // `..` removes the last level.
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
            if let Some(guard) = &self.guard {
                guard.crossings(&real.join(&name))?;
            }
            let next = openat(here.as_fd(), name.as_os_str(), HANDLE | OFlag::O_NOFOLLOW, Mode::empty())
                .inspect_err(|error| {
                    if *error == Errno::ENOENT {
                        trail.missing = Some((real.clone(), name.clone()));
                    }
                })?;
            if let Some(guard) = &self.guard {
                guard.check(&next)?;
            }
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

    /// Behaves as on a kernel without `openat2` from now on.
    #[cfg(test)]
    pub(crate) fn refuse_openat2(&self) {
        self.openat2.store(false, Ordering::Relaxed);
    }

    /// The handle of the root.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Whether others than root can put a link at the end of these levels. They can if they may write to any of the directories, since
/// they can then replace the directories below it.
fn is_open_to_others(levels: &[Level]) -> Result<bool, Errno> {
    for level in levels {
        if others_can_write(&level.handle)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether others than root and this process's user can create names in a directory. The group's bits limit what an access control
/// list allows, so they cover that too.
pub(crate) fn others_can_write(directory: impl AsFd) -> Result<bool, Errno> {
    let stat = fstat(directory)?;
    let is_ours = stat.st_uid == 0 || stat.st_uid == nix::unistd::geteuid().as_raw();
    Ok(!is_ours || stat.st_mode & 0o022 != 0)
}

/// Whether a directory, opened by its name, is the one that this process has just created: it belongs to this user, and is empty.
/// Another process may have put another object at the name.
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

/// Opens the symbolic link that this process has just created. `None` if the name has another object by now. That is no link, a
/// link with another target or of another user, or a hard link to a link of root's.
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

/// Opens the object of a handle (`O_PATH`) with other flags, whatever its name leads to by now.
fn reopen(handle: OwnedFd, flags: OFlag) -> Result<OwnedFd, Errno> {
    if flags.contains(OFlag::O_PATH) {
        let wants_directory = flags.contains(OFlag::O_DIRECTORY);
        return if wants_directory { reopen_directory(&handle, flags) } else { Ok(handle) };
    }
    if flags.contains(OFlag::O_DIRECTORY) {
        return reopen_directory(&handle, flags);
    }
    // A symbolic link is not followed by its descriptor either.
    let descriptor = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let flags = flags.difference(OFlag::O_NOFOLLOW) | OFlag::O_CLOEXEC;
    nix::fcntl::open(descriptor.as_str(), flags, Mode::empty())
}

/// Opens a directory again by its handle, with other flags.
pub(crate) fn reopen_directory(handle: impl AsFd, flags: OFlag) -> Result<OwnedFd, Errno> {
    openat(handle.as_fd(), ".", flags | OFlag::O_CLOEXEC | OFlag::O_DIRECTORY, Mode::empty())
}

/// The target of a symbolic link, by its handle; `None` for an object of another type.
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
