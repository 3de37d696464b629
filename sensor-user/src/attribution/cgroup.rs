//! Paths of control groups by their numbers.
//!
//! In: the number that a kernel program read (the group's inode number in the hierarchy), and the process's own
//! `/proc/PID/cgroup` while it exists. Out: the path below the hierarchy's root, which names unit, container and pod. A removed
//! group is known if it existed at the start or was created since; the kernel programs store the latter. It never writes.
//!
//! A user can make as many groups as they like below their own, and processes in them. So the hierarchy is searched at most once in a
//! pause, for a limited time, and groups of users never displace those of root.

#[cfg(test)]
mod tests;

use super::{cache::Cache, live::Live, table::ProcessTable};
use crate::{bounded, clock::Clock, kernel::groups};
use sensor_model::{
    cgroup::Placement,
    host::{hierarchy::Hierarchy, mountinfo},
};
use std::{
    collections::VecDeque,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Most cached groups that only root makes. A full node has some hundreds.
const CACHED_OF_ROOT: usize = 4096;

/// Most cached groups that a user may have made.
const CACHED_OF_USERS: usize = 1024;

/// Most groups of either kind that one walk visits.
const VISITED: usize = 8192;

/// Bytes of the longest path that is kept; twice as long as the kernel programs store.
const LONGEST_PATH: usize = 512;

/// Shortest time between two searches.
const PAUSE: Duration = Duration::from_secs(5);

/// Longest time of a search. Meanwhile the loop of the daemon does nothing else.
const SEARCH_TIME: Duration = Duration::from_millis(200);

/// Looks up paths and caches them.
#[derive(Debug)]
pub(super) struct Cgroups {
    hierarchy: Hierarchy,
    /// The hierarchy's mount point.
    mount: Option<PathBuf>,
    clock: Arc<dyn Clock>,
    /// Groups that only root makes.
    of_root: Cache<u64, Arc<str>>,
    /// Groups that a user may have made.
    of_users: Cache<u64, Arc<str>>,
    /// Numbers that no group has any more.
    gone: Cache<u64, ()>,
    /// Boot-time nanoseconds before which no search begins.
    next_search_ns: u64,
}

/// The answer about a group's number.
#[derive(Debug)]
pub(super) struct GroupPath {
    /// The path of the group, if it is known.
    pub(super) path: Option<Arc<str>>,
    /// Boot-time nanoseconds from which a search may find the path; `None` if the answer stays valid.
    pub(super) retry_ns: Option<u64>,
}

impl From<Option<Arc<str>>> for GroupPath {
    fn from(path: Option<Arc<str>>) -> Self {
        Self { path, retry_ns: None }
    }
}

impl Cgroups {
    /// Finds the hierarchy's mount point in the mount table below `proc`, relative to `root`.
    pub(super) fn new(root: &Path, proc: &Path, clock: Arc<dyn Clock>) -> Self {
        let hierarchy = groups::of(proc);
        Self::at(hierarchy, mount(hierarchy, root, proc), clock)
    }

    /// Caches the existing groups.
    fn at(hierarchy: Hierarchy, mount: Option<PathBuf>, clock: Arc<dyn Clock>) -> Self {
        let (of_root, of_users) = (Cache::new(CACHED_OF_ROOT), Cache::new(CACHED_OF_USERS));
        let gone = Cache::new(CACHED_OF_USERS);
        let mut cgroups = Self { hierarchy, mount, clock, of_root, of_users, gone, next_search_ns: 0 };
        cgroups.walk(None, u64::MAX);
        cgroups
    }

    /// The path of a group, by its number or by a process in it.
    pub(super) fn path(&mut self, id: u64, live: Option<&Live>, table: &dyn ProcessTable) -> GroupPath {
        if id == 0 {
            return self.own(live).map(Arc::from).into();
        }
        if let Some(path) = self.cached(id) {
            return Some(path).into();
        }
        if self.gone.get(id).is_some() {
            return None.into();
        }
        let known = table.group(id).or_else(|| self.own(live).filter(|path| self.number(path) == Some(id)));
        if let Some(path) = known {
            let path: Arc<str> = Arc::from(path);
            self.keep(id, &path);
            return Some(path).into();
        }
        self.search(id)
    }

    /// Whether a search may find now what an earlier one did not.
    pub(super) fn is_due(&self, retry_ns: Option<u64>) -> bool {
        retry_ns.is_some_and(|retry_ns| self.clock.boot_ns() >= retry_ns)
    }

    /// Whether the process of this `/proc/PID/cgroup` may still be in the group of that path.
    pub(super) fn may_be_in(&self, text: &str, path: Option<&str>) -> bool {
        let now = self.hierarchy.path(text);
        now.zip(path).is_none_or(|(now, path)| now == path)
    }

    fn own(&self, live: Option<&Live>) -> Option<String> {
        self.hierarchy.path(&live?.cgroup()?).map(str::to_owned)
    }

    fn number(&self, path: &str) -> Option<u64> {
        let point = self.mount.as_ref()?.join(path.trim_start_matches('/'));
        Some(fs::symlink_metadata(point).ok()?.ino())
    }

    fn cached(&mut self, id: u64) -> Option<Arc<str>> {
        self.of_root.get(id).or_else(|| self.of_users.get(id))
    }

    fn keep(&mut self, id: u64, path: &Arc<str>) {
        if path.len() > LONGEST_PATH {
            return;
        }
        if is_of_user(path) {
            self.of_users.insert(id, Arc::clone(path));
        } else {
            self.of_root.insert(id, Arc::clone(path));
        }
    }

    /// Searches the hierarchy for a number, unless the last search was a moment ago.
    fn search(&mut self, wanted: u64) -> GroupPath {
        if self.mount.is_none() {
            return None.into();
        }
        let now = self.clock.boot_ns();
        if now < self.next_search_ns {
            return GroupPath { path: None, retry_ns: Some(self.next_search_ns) };
        }
        let (found, is_whole) = self.walk(Some(wanted), after(now, SEARCH_TIME));
        self.next_search_ns = after(self.clock.boot_ns(), PAUSE);
        if found.is_none() && is_whole {
            // The kernel uses no number again.
            self.gone.insert(wanted, ());
        }
        GroupPath { retry_ns: (found.is_none() && !is_whole).then_some(self.next_search_ns), path: found }
    }

    /// Walks the hierarchy until a moment, and caches the first groups of either kind. Gives the path of the wanted one, and whether the
    /// walk visited all groups.
    fn walk(&mut self, wanted: Option<u64>, until_ns: u64) -> (Option<Arc<str>>, bool) {
        let Some(mount) = self.mount.clone() else { return (None, true) };
        let clock = Arc::clone(&self.clock);
        let (mut found, mut left) = (None, [CACHED_OF_ROOT, CACHED_OF_USERS]);
        let is_late = || clock.boot_ns() >= until_ns;
        let is_whole = walk(&mount, is_late, |id, path, is_of_user| {
            let left = &mut left[usize::from(is_of_user)];
            if *left > 0 && self.cached(id).is_none() {
                self.keep(id, &path);
            }
            *left = left.saturating_sub(1);
            if wanted == Some(id) {
                found = Some(path);
            }
        });
        if let (Some(id), Some(path)) = (wanted, &found) {
            self.keep(id, path);
        }
        (found, is_whole)
    }
}

fn after(now_ns: u64, time: Duration) -> u64 {
    now_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Whether a group is below a unit, a container or a pod and belongs to it. A user may make any number of such groups.
fn is_of_user(path: &str) -> bool {
    let Some((parent, _)) = path.rsplit_once('/') else { return false };
    let parent = Placement::of_path(parent);
    parent.is_specific() && Placement::of_path(path) == parent
}

/// Walks a hierarchy until it `is_late`, groups near the root first and those of users last. Calls `visit` with each group's number and
/// path, and whether a user may have made it. `false`: there are more groups than it visited.
fn walk(mount: &Path, is_late: impl Fn() -> bool, mut visit: impl FnMut(u64, Arc<str>, bool)) -> bool {
    let (mut of_root, mut of_users) = (VecDeque::from([PathBuf::new()]), VecDeque::new());
    let mut left = [VISITED; 2];
    let mut is_whole = true;
    loop {
        let next = of_root.pop_front().map(|directory| (directory, false));
        let next = next.or_else(|| of_users.pop_front().map(|directory| (directory, true)));
        let Some((directory, is_below_user)) = next else { return is_whole };
        if is_late() {
            return false;
        }
        let point = mount.join(&directory);
        let Ok(metadata) = fs::symlink_metadata(&point) else { continue };
        visit(metadata.ino(), Arc::from(shown(&directory)), is_below_user);
        for entry in fs::read_dir(&point).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let below = directory.join(entry.file_name());
            let is_of_user = is_below_user || is_of_user(&shown(&below));
            let left = &mut left[usize::from(is_of_user)];
            if *left == 0 {
                // One directory may have any number of groups, so even their names are not all read.
                is_whole = false;
                break;
            }
            *left -= 1;
            if below.as_os_str().len() >= LONGEST_PATH {
                is_whole = false;
            } else if is_of_user {
                of_users.push_back(below);
            } else {
                of_root.push_back(below);
            }
        }
    }
}

/// The path of a group below the hierarchy's root, as `/proc/PID/cgroup` shows it.
fn shown(directory: &Path) -> String {
    format!("/{}", directory.display())
}

/// The mount point of a hierarchy, by the mount table below `proc`. One below `root` comes before others.
pub(crate) fn mount(hierarchy: Hierarchy, root: &Path, proc: &Path) -> Option<PathBuf> {
    // Read as bytes: one mount point that is not UTF-8 must not lose all units and pods.
    let table = bounded::read(&proc.join("self/mountinfo"), bounded::TABLE).unwrap_or_else(|error| {
        tracing::warn!(%error, "Cannot read the mount table: units and pods of actors may be missing.");
        Vec::new()
    });
    let points = || mountinfo::mounts(&table).filter(|mount| hierarchy.is_at(mount)).map(|mount| mount.point);
    // In a container with the host's /sys mounted, the host's hierarchy is below the root.
    points()
        .filter(|point| point.starts_with(root) || root == Path::new("/"))
        .min_by_key(|point| point.as_os_str().len())
        .or_else(|| points().next())
}
