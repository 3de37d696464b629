//! Which paths lie on file systems that a server answers for, decided before anything there is touched.
//!
//! In: the table of mounts, and paths below the host root. Out: where a path crosses from one mount to the next, or that it
//! crosses to a file system whose server (a process, another machine) may never answer: a system call there can wait for
//! ever, and no signal ends it. The mount of the host root itself is always read. It touches nothing but the table, and
//! asks a handle only what needs no server.

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

/// Types of file systems whose operations wait for a server. Those of FUSE are known by their beginning.
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

/// What an operation ends with that would have touched such a file system.
pub(crate) const REFUSED: Errno = Errno::EREMOTE;

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
    /// By their numbers, sorted.
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
            // What lies over the root or above it hides nothing from a handle of the root.
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

    /// Where a path from the mount `from` crosses to other mounts: the lengths of the mount points. Walks as the kernel
    /// does: at each name to what is mounted there on the mount that was reached, and on top of that.
    fn way(&self, from: u64, path: &[u8]) -> Result<Vec<usize>, Served> {
        let mut at = from;
        let mut crossings = Vec::new();
        let slashes = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        for end in slashes.chain([path.len()]) {
            let Some(here) = self.points.get(&path[..end]) else { continue };
            let mut top = None;
            // No more than there are: the numbers of a torn table may go round.
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
pub(crate) struct Guard {
    /// The host's root, without links.
    root: PathBuf,
    /// The mount that it lies on.
    mount: u64,
    /// Where the table of mounts is read.
    file: PathBuf,
    table: Mutex<Table>,
    /// What was refused since that was last asked.
    refused: Mutex<Option<Served>>,
}

impl Guard {
    /// For the host at `root`, of which `handle` is one. `None` where the kernel does not tell the mount of a handle
    /// (before 5.8).
    pub(crate) fn new(root: &Path, handle: &OwnedFd, file: &Path) -> Option<Self> {
        let (mount, _) = mount_of(handle)?;
        let guard = Self {
            root: fs::canonicalize(root).unwrap_or_else(|_| root.to_owned()),
            mount,
            file: file.to_owned(),
            table: Mutex::default(),
            refused: Mutex::default(),
        };
        guard.refresh();
        Some(guard)
    }

    /// Reads the table again. One that cannot be read stays as it was.
    pub(crate) fn refresh(&self) {
        match bounded::read(&self.file, bounded::TABLE) {
            Ok(bytes) => *lock(&self.table) = Table::parse(&bytes, &self.root),
            Err(error) => tracing::warn!(%error, "Cannot read the mount table."),
        }
    }

    /// Where a path crosses from one mount to another: the lengths of the mount points. `None` for a path that has
    /// anything but names in it. [`REFUSED`] where it crosses to a file system that a server answers for.
    pub(crate) fn way(&self, path: &Path) -> Result<Option<Vec<usize>>, Errno> {
        let bytes = path.as_os_str().as_bytes();
        if !is_plain(bytes) {
            return Ok(None);
        }
        lock(&self.table).way(self.mount, bytes).map(Some).map_err(|served| self.refuse(served))
    }

    /// The file system that a server answers for and that a path crosses to, where its names are taken for directories.
    pub(crate) fn served(&self, path: &Path) -> Option<Served> {
        lock(&self.table).way(self.mount, path.as_os_str().as_bytes()).err()
    }

    /// Whether a handle (`O_PATH`) that was just opened is one of an object that may be touched.
    pub(crate) fn check(&self, handle: impl AsFd) -> Result<(), Errno> {
        match mount_of(handle) {
            Some((mount, device)) => self.check_mount(mount, device),
            // FUSE answers only the user that mounted it, unless it was mounted with `allow_other`.
            None => Err(self.refuse(Served(0))),
        }
    }

    /// The same by number of mount and device.
    pub(crate) fn check_mount(&self, mount: u64, device: u64) -> Result<(), Errno> {
        if mount == self.mount {
            return Ok(());
        }
        let mut found = lock(&self.table).get(mount);
        if found.is_none() {
            // It came since.
            self.refresh();
            found = lock(&self.table).get(mount);
        }
        match found {
            Some(found) if !found.is_served => Ok(()),
            found => Err(self.refuse(Served(found.map_or(device, |found| found.device)))),
        }
    }

    fn refuse(&self, served: Served) -> Errno {
        *lock(&self.refused) = Some(served);
        REFUSED
    }

    /// What was refused since the last call.
    pub(crate) fn take_refused(&self) -> Option<Served> {
        lock(&self.refused).take()
    }
}

/// One operation at a time is done under each lock: a panic elsewhere cannot leave it broken.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a path is names and single slashes, from the root on.
fn is_plain(path: &[u8]) -> bool {
    path == b"/"
        || (path.first() == Some(&b'/')
            && path[1..].split(|byte| *byte == b'/').all(|name| !matches!(name, b"" | b"." | b"..")))
}

/// Number of the mount and of the device of what a handle leads to. Asked so that no server is asked.
fn mount_of(handle: impl AsFd) -> Option<(u64, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let stat = statx(handle, "", flags, StatxFlags::MNT_ID).ok()?;
    let is_told = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    is_told.then(|| (stat.stx_mnt_id, rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a root on mount 20, and of what is mounted below it.
    fn way(mounts: &str, path: &str) -> Result<Vec<usize>, u64> {
        table(mounts).way(20, path.as_bytes()).map_err(|Served(device)| device)
    }

    fn table(mounts: &str) -> Table {
        Table::parse(format!("20 1 8:1 / / rw - ext4 /dev/sda1 rw\n{mounts}").as_bytes(), Path::new("/"))
    }

    const MINOR_9: u64 = 9;

    #[test]
    fn a_path_is_served_from_the_mount_point_on_and_its_neighbours_are_not() {
        let fuse = "30 20 0:9 / /a rw shared:3 - fuse.sshfs h: rw\n";
        for served in ["/a", "/a/b", "/a/b/c"] {
            assert_eq!(way(fuse, served), Err(MINOR_9), "{served}");
        }
        for local in ["/", "/ab", "/ab/a", "/b/a", "/b"] {
            assert_eq!(way(fuse, local), Ok(vec![]), "{local}");
        }
    }

    #[test]
    fn of_stacked_mounts_the_one_on_top_counts_wherever_its_line_is() {
        let (fuse, over) = ("30 20 0:9 / /a rw - fuse f rw\n", "31 30 0:10 / /a rw - tmpfs t rw\n");
        assert_eq!(way(&format!("{fuse}{over}"), "/a/x"), Ok(vec![2]));
        assert_eq!(way(&format!("{over}{fuse}"), "/a/x"), Ok(vec![2]));
        let (below, fuse) = ("30 20 0:10 / /a rw - tmpfs t rw\n", "31 30 0:9 / /a rw - nfs4 h:/x rw\n");
        assert_eq!(way(&format!("{fuse}{below}"), "/a/x"), Err(MINOR_9));
    }

    #[test]
    fn a_mount_that_another_one_hides_is_not_on_the_way() {
        let hidden = "30 20 0:9 / /a/b rw - fuse f rw\n31 20 0:10 / /a rw - tmpfs t rw\n";
        assert_eq!(way(hidden, "/a/b/c"), Ok(vec![2]));
        let above = "30 20 0:10 / /a rw - tmpfs t rw\n31 30 0:9 / /a/b rw - fuse f rw\n";
        assert_eq!(way(above, "/a/b/c"), Err(MINOR_9));
        assert_eq!(way(above, "/a/bc"), Ok(vec![2]));
    }

    #[test]
    fn each_mount_that_is_crossed_is_told_and_escapes_are_names() {
        let mounts = "30 20 8:2 / /var rw - xfs d rw\n31 30 8:3 / /var/lib/a\\040b rw - ext4 e rw\n\
            32 31 0:9 /sub /var/lib/a\\040b/c rw - fuse f rw\n";
        assert_eq!(way(mounts, "/var/lib/a b/x"), Ok(vec![4, 12]));
        assert_eq!(
            way(mounts, "/var/lib/a b/c"),
            Err(MINOR_9),
            "also a directory of it that is bound elsewhere"
        );
        assert_eq!(way(mounts, "/var/lib/a\\040b/c"), Ok(vec![4]));
    }

    #[test]
    fn points_are_told_below_the_host_root_and_what_is_over_or_above_it_is_none() {
        let mounts = b"40 1 8:1 / / rw - ext4 d rw\n41 40 0:9 / /host rw - fuse f rw\n42 40 0:9 / /hostile rw - fuse f rw\n\
            43 40 8:2 / /host/etc rw - xfs d rw\n44 43 0:9 / /host/etc/x rw - fuse f rw\n";
        let table = Table::parse(mounts, Path::new("/host"));
        assert_eq!(table.way(40, b"/etc/x"), Err(Served(MINOR_9)));
        assert_eq!(table.way(40, b"/etc/y"), Ok(vec![4]));
        assert_eq!(table.way(40, b"/ile"), Ok(vec![]));
    }

    #[test]
    fn types_that_wait_for_a_server_are_known_and_kernel_file_systems_are_none() {
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
    fn lines_that_are_none_are_left_out_and_numbers_that_go_round_end() {
        assert_eq!(
            way("x y 0:9 / /a rw - fuse f rw\n30 20 0:x / /a rw - fuse f rw\nnonsense\n", "/a"),
            Ok(vec![])
        );
        assert_eq!(way("30 20 0:9 / /a rw - xfs f rw\n20 30 0:9 / /a rw - xfs f rw\n", "/a/b"), Ok(vec![2]));
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
