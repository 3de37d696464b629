//! Decides which paths are on file systems that a server answers for, before an access touches one.
//!
//! In: the mount table, and paths below the host root. Out: where a path crosses from one mount to the next, or which file system with
//! a server it crosses to. Such a server (a process, another machine) may never answer. A system call then waits for ever, and no
//! signal ends it. The mount of the host root is always allowed. This module reads only the table, and of a handle only what needs no
//! server.

use crate::bounded;
use nix::errno::Errno;
use rustix::fs::{AtFlags, StatxFlags, statx};
use sensor_model::host::mountinfo;
use std::{
    collections::HashMap,
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Types of file systems whose operations wait for a server, without those of FUSE, which have a common prefix.
const SERVED: [&str; 22] = [
    "9p",
    "afs",
    "autofs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "gfs2",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "pvfs2",
    "smb3",
    "smbfs",
    "vboxsf",
    "virtiofs",
    "vmhgfs",
    "wekafs",
];

/// The error of an operation that would access a file system with a server: only a worker process may do that.
pub(crate) const NEEDS_WORKER: Errno = Errno::EREMOTE;

/// A file system that a server answers for, by the number of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Served(pub u64);

/// One mount.
#[derive(Debug, Clone, Copy)]
struct Mounted {
    id: u64,
    parent: u64,
    device: u64,
    is_served: bool,
}

/// The mounts below a root, by their points.
#[derive(Debug, Default)]
struct Table {
    points: HashMap<Box<[u8]>, Vec<Mounted>>,
    /// All mounts, sorted by their numbers.
    all: Vec<Mounted>,
}

/// Whether operations on a file system of this type wait for a server.
fn is_served(file_system: &[u8]) -> bool {
    let is_fuse = |name: &str| {
        let rest = file_system.strip_prefix(name.as_bytes());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
    };
    is_fuse("fuse") || is_fuse("fuseblk") || SERVED.iter().any(|name| name.as_bytes() == file_system)
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// `major:minor` as one number.
fn device(text: &[u8]) -> Option<u64> {
    let colon = text.iter().position(|byte| *byte == b':')?;
    let (major, minor) = (number(&text[..colon])?, number(&text[colon + 1..])?);
    Some(rustix::fs::makedev(u32::try_from(major).ok()?, u32::try_from(minor).ok()?))
}

impl Table {
    /// Parses a mountinfo file. `root`: the host's root directory, without links.
    fn parse(bytes: &[u8], root: &Path) -> Self {
        let mut table = Self::default();
        for mount in mountinfo::mounts(bytes) {
            let (Some(id), Some(parent), Some(device)) =
                (number(mount.id), number(mount.parent), device(mount.device))
            else {
                continue;
            };
            let is_served = mount.file_system.is_some_and(is_served);
            let mounted = Mounted { id, parent, device, is_served };
            table.all.push(mounted);
            // A mount over the root or above it hides nothing from a handle of the root.
            if let Ok(below) = mount.point.strip_prefix(root)
                && below != Path::new("")
            {
                let point = Path::new("/").join(below);
                table.points.entry(point.as_os_str().as_bytes().into()).or_default().push(mounted);
            }
        }
        table.all.sort_unstable_by_key(|mounted| mounted.id);
        table
    }

    /// Where a path that starts on the mount `from` crosses to other mounts: the lengths of the mount points. Like the kernel, it
    /// continues at each name on the topmost mount there.
    fn crossings(&self, from: u64, path: &[u8]) -> Result<Vec<usize>, Served> {
        let mut at = from;
        let mut crossings = Vec::new();
        let slashes = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        for end in slashes.chain([path.len()]) {
            let Some(here) = self.points.get(&path[..end]) else { continue };
            let mut top = None;
            // The loop has a bound, because the numbers of a torn table may form a circle.
            for _ in here {
                let Some(next) = here.iter().find(|mounted| mounted.parent == at) else { break };
                at = next.id;
                top = Some(next);
            }
            match top {
                Some(top) if top.is_served => return Err(Served(top.device)),
                Some(_) => crossings.push(end),
                None => {}
            }
        }
        Ok(crossings)
    }

    fn get(&self, id: u64) -> Option<Mounted> {
        self.all.binary_search_by_key(&id, |mounted| mounted.id).ok().map(|at| self.all[at])
    }
}

/// Keeps look-ups from file systems that a server answers for.
#[derive(Debug)]
pub(crate) struct MountGuard {
    /// The host's root, without links.
    root: PathBuf,
    /// The root's mount.
    mount: u64,
    /// The file with the mount table.
    file: PathBuf,
    table: Mutex<Table>,
    /// The last file system that this process did not access, since the last call of [`MountGuard::take_left_to_worker`].
    left_to_worker: Mutex<Option<Served>>,
}

impl MountGuard {
    /// A guard for the host at `root`, which `handle` is a handle of. `None` if the kernel does not show the mount of a handle (before
    /// 5.8).
    pub(crate) fn new(root: &Path, handle: &OwnedFd, file: &Path) -> Option<Self> {
        let (mount, _) = mount_of(handle)?;
        let guard = Self {
            root: fs::canonicalize(root).unwrap_or_else(|_| root.to_owned()),
            mount,
            file: file.to_owned(),
            table: Mutex::default(),
            left_to_worker: Mutex::default(),
        };
        guard.refresh();
        Some(guard)
    }

    /// Reads the table again. If it cannot be read, the last one stays.
    pub(crate) fn refresh(&self) {
        match bounded::read(&self.file, bounded::TABLE) {
            Ok(bytes) => *lock(&self.table) = Table::parse(&bytes, &self.root),
            Err(error) => tracing::warn!(%error, "Cannot read the mount table."),
        }
    }

    /// Where a path crosses from one mount to another: the lengths of the mount points. `None` for a path that is not plain names.
    /// [`NEEDS_WORKER`] if it crosses to a file system that a server answers for.
    pub(crate) fn crossings(&self, path: &Path) -> Result<Option<Vec<usize>>, Errno> {
        let bytes = path.as_os_str().as_bytes();
        if !is_plain(bytes) {
            return Ok(None);
        }
        lock(&self.table)
            .crossings(self.mount, bytes)
            .map(Some)
            .map_err(|served| self.leave_to_worker(served))
    }

    /// The file system with a server that a path crosses to, if all its names are directories; `None` if it crosses to none.
    pub(crate) fn served(&self, path: &Path) -> Option<Served> {
        lock(&self.table).crossings(self.mount, path.as_os_str().as_bytes()).err()
    }

    /// Checks that the object of a new handle (`O_PATH`) may be accessed.
    pub(crate) fn check(&self, handle: impl AsFd) -> Result<(), Errno> {
        match mount_of(handle) {
            Some((mount, device)) => self.check_mount(mount, device),
            // The call failed: FUSE without `allow_other` answers only the user that mounted it.
            None => Err(self.leave_to_worker(Served(0))),
        }
    }

    /// The same by the numbers of mount and device.
    pub(crate) fn check_mount(&self, mount: u64, device: u64) -> Result<(), Errno> {
        if mount == self.mount {
            return Ok(());
        }
        let mut found = lock(&self.table).get(mount);
        if found.is_none() {
            // The mount is newer than the table.
            self.refresh();
            found = lock(&self.table).get(mount);
        }
        match found {
            Some(found) if !found.is_served => Ok(()),
            found => Err(self.leave_to_worker(Served(found.map_or(device, |found| found.device)))),
        }
    }

    fn leave_to_worker(&self, served: Served) -> Errno {
        *lock(&self.left_to_worker) = Some(served);
        NEEDS_WORKER
    }

    /// The last file system that this process did not access, since the last call.
    pub(crate) fn take_left_to_worker(&self) -> Option<Served> {
        lock(&self.left_to_worker).take()
    }
}

/// Locks. Each lock covers one operation, so a panic elsewhere leaves the data intact.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a path is absolute, and has only names and single slashes.
fn is_plain(path: &[u8]) -> bool {
    path == b"/"
        || (path.first() == Some(&b'/')
            && path[1..].split(|byte| *byte == b'/').all(|name| !matches!(name, b"" | b"." | b"..")))
}

/// The numbers of mount and device of a handle's object. The call needs no server.
fn mount_of(handle: impl AsFd) -> Option<(u64, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let stat = statx(handle, "", flags, StatxFlags::MNT_ID).ok()?;
    let is_shown = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    is_shown.then(|| (stat.stx_mnt_id, rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The crossings of a path on a root with mount 20 and the given mounts below it.
    fn crossings(mounts: &str, path: &str) -> Result<Vec<usize>, u64> {
        table(mounts).crossings(20, path.as_bytes()).map_err(|Served(device)| device)
    }

    fn table(mounts: &str) -> Table {
        Table::parse(format!("20 1 8:1 / / rw - ext4 /dev/sda1 rw\n{mounts}").as_bytes(), Path::new("/"))
    }

    const MINOR_9: u64 = 9;

    #[test]
    fn a_path_is_served_from_the_mount_point_on_and_its_neighbours_are_not() {
        let fuse = "30 20 0:9 / /a rw shared:3 - fuse.sshfs h: rw\n";
        for served in ["/a", "/a/b", "/a/b/c"] {
            assert_eq!(crossings(fuse, served), Err(MINOR_9), "{served}");
        }
        for local in ["/", "/ab", "/ab/a", "/b/a", "/b"] {
            assert_eq!(crossings(fuse, local), Ok(vec![]), "{local}");
        }
    }

    #[test]
    fn of_stacked_mounts_the_topmost_counts_wherever_its_line_is() {
        let (fuse, over) = ("30 20 0:9 / /a rw - fuse f rw\n", "31 30 0:10 / /a rw - tmpfs t rw\n");
        assert_eq!(crossings(&format!("{fuse}{over}"), "/a/x"), Ok(vec![2]));
        assert_eq!(crossings(&format!("{over}{fuse}"), "/a/x"), Ok(vec![2]));
        let (below, fuse) = ("30 20 0:10 / /a rw - tmpfs t rw\n", "31 30 0:9 / /a rw - nfs4 h:/x rw\n");
        assert_eq!(crossings(&format!("{fuse}{below}"), "/a/x"), Err(MINOR_9));
    }

    #[test]
    fn a_path_does_not_cross_a_mount_that_another_one_hides() {
        let hidden = "30 20 0:9 / /a/b rw - fuse f rw\n31 20 0:10 / /a rw - tmpfs t rw\n";
        assert_eq!(crossings(hidden, "/a/b/c"), Ok(vec![2]));
        let above = "30 20 0:10 / /a rw - tmpfs t rw\n31 30 0:9 / /a/b rw - fuse f rw\n";
        assert_eq!(crossings(above, "/a/b/c"), Err(MINOR_9));
        assert_eq!(crossings(above, "/a/bc"), Ok(vec![2]));
    }

    #[test]
    fn each_crossed_mount_is_given_and_escapes_in_the_table_are_decoded() {
        let mounts = "30 20 8:2 / /var rw - xfs d rw\n31 30 8:3 / /var/lib/a\\040b rw - ext4 e rw\n\
            32 31 0:9 /sub /var/lib/a\\040b/c rw - fuse f rw\n";
        assert_eq!(crossings(mounts, "/var/lib/a b/x"), Ok(vec![4, 12]));
        assert_eq!(
            crossings(mounts, "/var/lib/a b/c"),
            Err(MINOR_9),
            "also a bind mount of one of its directories"
        );
        assert_eq!(crossings(mounts, "/var/lib/a\\040b/c"), Ok(vec![4]));
    }

    #[test]
    fn mount_points_are_relative_to_the_host_root_and_mounts_over_or_above_it_do_not_count() {
        let mounts = b"40 1 8:1 / / rw - ext4 d rw\n41 40 0:9 / /host rw - fuse f rw\n42 40 0:9 / /hostile rw - fuse f rw\n\
            43 40 8:2 / /host/etc rw - xfs d rw\n44 43 0:9 / /host/etc/x rw - fuse f rw\n";
        let table = Table::parse(mounts, Path::new("/host"));
        assert_eq!(table.crossings(40, b"/etc/x"), Err(Served(MINOR_9)));
        assert_eq!(table.crossings(40, b"/etc/y"), Ok(vec![4]));
        assert_eq!(table.crossings(40, b"/ile"), Ok(vec![]));
    }

    #[test]
    fn types_with_a_server_are_recognised_and_local_types_are_not() {
        let served = [
            "fuse",
            "fuse.glusterfs",
            "fuseblk",
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "ceph",
            "9p",
            "virtiofs",
            "autofs",
        ];
        assert!(served.iter().all(|name| is_served(name.as_bytes())));
        let local = [
            "fusectl", "ext4", "xfs", "btrfs", "tmpfs", "overlay", "proc", "nfsd", "9", "erofs", "cgroup2",
            "",
        ];
        assert!(!local.iter().any(|name| is_served(name.as_bytes())));
    }

    #[test]
    fn malformed_lines_are_skipped_and_a_circle_of_numbers_ends() {
        assert_eq!(
            crossings("x y 0:9 / /a rw - fuse f rw\n30 20 0:x / /a rw - fuse f rw\nnonsense\n", "/a"),
            Ok(vec![])
        );
        assert_eq!(
            crossings("30 20 0:9 / /a rw - xfs f rw\n20 30 0:9 / /a rw - xfs f rw\n", "/a/b"),
            Ok(vec![2])
        );
    }

    #[test]
    fn a_path_with_anything_but_names_is_not_plain() {
        for plain in ["/", "/a", "/a/b.c/..d"] {
            assert!(is_plain(plain.as_bytes()), "{plain}");
        }
        for other in ["", "a", "//", "/a/", "/a//b", "/a/./b", "/a/..", "/."] {
            assert!(!is_plain(other.as_bytes()), "{other}");
        }
    }
}
