//! Paths of control groups by their numbers.
//!
//! In: the number that a kernel program read (the inode number on cgroup2), and the process's own
//! `/proc/PID/cgroup` while it is there. Out: the path below the hierarchy's root, which tells unit,
//! container and pod. Groups that are gone are known if they were asked for before. It never writes.

use super::{cache::Cache, live::Live};
use std::{
    collections::VecDeque,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Groups remembered; a full node has some hundreds.
const CACHED: usize = 4096;

/// Groups looked at in one search.
const SEARCHED: usize = 20_000;

/// Looks paths up and remembers them.
#[derive(Debug)]
pub(super) struct Cgroups {
    /// Where cgroup2 is mounted.
    mount: Option<PathBuf>,
    /// `None` for numbers that were searched for in vain, so that each costs one search at most.
    paths: Cache<u64, Option<Arc<str>>>,
}

impl Cgroups {
    /// Looks for a cgroup2 mount in the mount table below `proc`, its points taken below `root`.
    pub(super) fn new(root: &Path, proc: &Path) -> Self {
        let table = fs::read_to_string(proc.join("self/mountinfo")).unwrap_or_default();
        // In a container that has the host's /sys mounted, the host's hierarchy is below the root.
        let mount = mount_points(&table)
            .map(|point| PathBuf::from(&point))
            .filter(|point| point.starts_with(root) || root == Path::new("/"))
            .min_by_key(|point| point.as_os_str().len())
            .or_else(|| mount_points(&table).next().map(PathBuf::from));
        Self { mount, paths: Cache::new(CACHED) }
    }

    /// Path of a group, by its number or by a process that is in it.
    pub(super) fn path(&mut self, id: u64, live: Option<&Live>) -> Option<Arc<str>> {
        if id == 0 {
            return live.and_then(Live::cgroup).as_deref().and_then(unified).map(Arc::from);
        }
        if let Some(path) = self.paths.get(id) {
            return path;
        }
        let own = live
            .and_then(Live::cgroup)
            .as_deref()
            .and_then(unified)
            .filter(|path| self.number(path) == Some(id));
        let path = match own {
            Some(path) => Some(Arc::from(path)),
            None => self.search(id),
        };
        self.paths.insert(id, path.clone());
        path
    }

    fn number(&self, path: &str) -> Option<u64> {
        let point = self.mount.as_ref()?.join(path.trim_start_matches('/'));
        Some(fs::symlink_metadata(point).ok()?.ino())
    }

    /// Walks the hierarchy, nearest groups first, and remembers every number on the way.
    fn search(&mut self, id: u64) -> Option<Arc<str>> {
        let mount = self.mount.clone()?;
        let mut pending = VecDeque::from([(mount, String::new())]);
        let mut searched = 0;
        while let Some((directory, path)) = pending.pop_front() {
            let Ok(metadata) = fs::symlink_metadata(&directory) else { continue };
            let shown: Arc<str> = Arc::from(if path.is_empty() { "/" } else { path.as_str() });
            if metadata.ino() == id {
                return Some(shown);
            }
            searched += 1;
            if searched > SEARCHED {
                return None;
            }
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    pending.push_back((entry.path(), format!("{path}/{name}")));
                }
            }
        }
        None
    }
}

/// Mount points of cgroup2 in a mount table.
fn mount_points(table: &str) -> impl Iterator<Item = String> {
    table.lines().filter_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let point = front.split(' ').nth(4)?;
        back.starts_with("cgroup2 ").then(|| point.replace("\\040", " "))
    })
}

/// The path in the unified hierarchy, from the text of `/proc/PID/cgroup`. One that starts outside
/// the reader's cgroup namespace is of no use.
fn unified(text: &str) -> Option<String> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    (!path.starts_with("/..")).then(|| path.trim_end_matches(" (deleted)").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_its_number() {
        // Any directory tree has numbers; the walk needs nothing of cgroup2 itself.
        let tree = tempfile::tempdir().unwrap();
        let group = tree.path().join("system.slice/sshd.service");
        fs::create_dir_all(&group).unwrap();
        let id = fs::metadata(&group).unwrap().ino();
        let mut cgroups = Cgroups { mount: Some(tree.path().to_owned()), paths: Cache::new(8) };
        assert_eq!(cgroups.path(id, None).as_deref(), Some("/system.slice/sshd.service"));
        fs::remove_dir(&group).unwrap();
        assert_eq!(
            cgroups.path(id, None).as_deref(),
            Some("/system.slice/sshd.service"),
            "remembered when gone"
        );
        assert_eq!(cgroups.path(fs::metadata(tree.path()).unwrap().ino(), None).as_deref(), Some("/"));
    }

    #[test]
    fn a_number_that_is_nowhere_is_searched_for_once() {
        let tree = tempfile::tempdir().unwrap();
        let mut cgroups = Cgroups { mount: Some(tree.path().to_owned()), paths: Cache::new(8) };
        assert_eq!(cgroups.path(u64::MAX, None), None);
        assert_eq!(cgroups.paths.get(u64::MAX), Some(None));
    }

    #[test]
    fn the_unified_path_is_told_from_those_of_version_1() {
        let text =
            "12:pids:/user.slice\n1:name=systemd:/user.slice/user-0.slice/session-3.scope\n0::/x.service\n";
        assert_eq!(unified(text).as_deref(), Some("/x.service"));
        assert_eq!(unified("0::/../../x\n"), None);
    }

    #[test]
    fn only_cgroup2_mounts_count() {
        let table = "30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n31 30 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_points(table).collect::<Vec<_>>(), ["/sys/fs/cgroup/unified"]);
    }
}
