//! Paths of control groups by their numbers.
//!
//! In: the number that a kernel program read (the group's inode number in the hierarchy), and the process's own
//! `/proc/PID/cgroup` while it exists. Out: the path below the hierarchy's root, which names unit, container and pod. A removed
//! group is known if it existed at the start or was created since; the kernel programs store the latter. It never writes.

use super::{cache::Cache, live::Live, table::ProcessTable};
use crate::{bounded, kernel::groups};
use sensor_model::host::{hierarchy::Hierarchy, mountinfo};
use std::{
    collections::VecDeque,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Most cached groups. A full node has some hundreds.
const CACHED: usize = 4096;

/// Most groups that one search visits.
const SEARCHED: usize = 20_000;

/// Looks up paths and caches them.
#[derive(Debug)]
pub(super) struct Cgroups {
    hierarchy: Hierarchy,
    /// The hierarchy's mount point.
    mount: Option<PathBuf>,
    /// `None` for numbers that no search found, so that each costs one search at most.
    paths: Cache<u64, Option<Arc<str>>>,
}

impl Cgroups {
    /// Finds the hierarchy's mount point in the mount table below `proc`, relative to `root`.
    pub(super) fn new(root: &Path, proc: &Path) -> Self {
        let hierarchy = groups::of(proc);
        Self::at(hierarchy, mount(hierarchy, root, proc))
    }

    /// Caches the existing groups.
    fn at(hierarchy: Hierarchy, mount: Option<PathBuf>) -> Self {
        let mut paths = Cache::new(CACHED);
        if let Some(mount) = &mount {
            walk(mount, CACHED, |id, path| {
                paths.insert(id, Some(path));
                false
            });
        }
        Self { hierarchy, mount, paths }
    }

    /// The path of a group, by its number or by a process in it.
    pub(super) fn path(
        &mut self,
        id: u64,
        live: Option<&Live>,
        table: &dyn ProcessTable,
    ) -> Option<Arc<str>> {
        if id == 0 {
            return self.own(live).map(Arc::from);
        }
        if let Some(path) = self.paths.get(id) {
            return path;
        }
        if let Some(path) = table.group(id) {
            let path: Arc<str> = Arc::from(path);
            self.paths.insert(id, Some(Arc::clone(&path)));
            return Some(path);
        }
        let own = self.own(live).filter(|path| self.number(path) == Some(id));
        let path = match own {
            Some(path) => Some(Arc::from(path)),
            None => self.search(id),
        };
        self.paths.insert(id, path.clone());
        path
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

    fn search(&self, wanted: u64) -> Option<Arc<str>> {
        let mut found = None;
        walk(self.mount.as_ref()?, SEARCHED, |id, path| {
            let right = id == wanted;
            if right {
                found = Some(path);
            }
            right
        });
        found
    }
}

/// Walks a hierarchy, groups near the root first, at most `limit`, until `each` gives true.
fn walk(mount: &Path, limit: usize, mut each: impl FnMut(u64, Arc<str>) -> bool) {
    let mut pending = VecDeque::from([(mount.to_owned(), String::new())]);
    let mut seen = 0;
    while let Some((directory, path)) = pending.pop_front() {
        let Ok(metadata) = fs::symlink_metadata(&directory) else { continue };
        let shown: Arc<str> = Arc::from(if path.is_empty() { "/" } else { path.as_str() });
        seen += 1;
        if each(metadata.ino(), shown) || seen > limit {
            return;
        }
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                pending.push_back((entry.path(), format!("{path}/{name}")));
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::super::table::NoTable;
    use super::*;

    /// A table with one group that was created while the sensor ran.
    struct Made(u64, &'static str);

    impl ProcessTable for Made {
        fn process(&self, _: u32) -> Option<sensor_common::map::Process> {
            None
        }
        fn execution(&self, _: u64) -> Option<sensor_common::map::Execution> {
            None
        }
        fn group(&self, id: u64) -> Option<String> {
            (id == self.0).then(|| self.1.to_owned())
        }
    }

    #[test]
    fn a_group_of_the_start_is_known_after_its_removal() {
        // The walk needs only inode numbers, which any directory tree has.
        let tree = tempfile::tempdir().unwrap();
        let group = tree.path().join("system.slice/sshd.service");
        fs::create_dir_all(&group).unwrap();
        let id = fs::metadata(&group).unwrap().ino();
        let mut cgroups = Cgroups::at(Hierarchy::default(), Some(tree.path().to_owned()));
        fs::remove_dir(&group).unwrap();
        assert_eq!(cgroups.path(id, None, &NoTable).as_deref(), Some("/system.slice/sshd.service"));
        let root = fs::metadata(tree.path()).unwrap().ino();
        assert_eq!(cgroups.path(root, None, &NoTable).as_deref(), Some("/"));
    }

    #[test]
    fn a_group_created_later_is_found_by_its_number() {
        let tree = tempfile::tempdir().unwrap();
        let mut cgroups = Cgroups::at(Hierarchy::default(), Some(tree.path().to_owned()));
        let group = tree.path().join("later.service");
        fs::create_dir(&group).unwrap();
        let id = fs::metadata(&group).unwrap().ino();
        assert_eq!(cgroups.path(id, None, &NoTable).as_deref(), Some("/later.service"));
    }

    #[test]
    fn a_short_lived_group_is_known_from_the_kernel_programs_map() {
        let tree = tempfile::tempdir().unwrap();
        let mut cgroups = Cgroups::at(Hierarchy::default(), Some(tree.path().to_owned()));
        let made = Made(u64::MAX - 1, "/system.slice/run-1.service");
        assert_eq!(cgroups.path(u64::MAX - 1, None, &made).as_deref(), Some("/system.slice/run-1.service"));
        assert_eq!(
            cgroups.path(u64::MAX - 1, None, &NoTable).as_deref(),
            Some("/system.slice/run-1.service")
        );
    }

    #[test]
    fn a_number_without_a_group_is_searched_for_once() {
        let tree = tempfile::tempdir().unwrap();
        let mut cgroups = Cgroups::at(Hierarchy::default(), Some(tree.path().to_owned()));
        assert_eq!(cgroups.path(u64::MAX, None, &NoTable), None);
        assert_eq!(cgroups.paths.get(u64::MAX), Some(None));
    }

    #[test]
    fn only_cgroup2_mounts_count_and_a_mount_point_that_is_not_utf_8_hides_none() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("self")).unwrap();
        let table = b"30 23 0:26 / /tmp/\xff rw - tmpfs tmpfs rw\n31 30 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        fs::write(proc.path().join("self/mountinfo"), table).unwrap();
        fs::write(proc.path().join("self/cgroup"), "0::/x.service\n").unwrap();
        let cgroups = Cgroups::new(Path::new("/"), proc.path());
        assert_eq!(cgroups.mount.as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
    }
}
