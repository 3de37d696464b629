//! Groups of a directory tree: the search needs only inode numbers.

use super::super::{Attributor, table::NoTable, tests};
use super::*;
use crate::clock::SystemClock;
use crate::observation::Observer;
use jiff::Timestamp;
use sensor_common::record::ChangeRecord;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// A table with one group that was created while the sensor ran.
struct Made<'a>(u64, &'a str);

impl ProcessTable for Made<'_> {
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

/// A clock that goes on by a step each time it is read.
#[derive(Debug, Default)]
struct TestClock {
    now_ns: AtomicU64,
    step_ns: u64,
}

impl TestClock {
    fn forward(&self, by: Duration) {
        self.now_ns.fetch_add(u64::try_from(by.as_nanos()).unwrap(), Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }
    fn boot_ns(&self) -> u64 {
        self.now_ns.fetch_add(self.step_ns, Ordering::Relaxed)
    }
}

/// A hierarchy: the search needs only inode numbers, which any directory tree has.
struct Tree {
    directory: TempDir,
    clock: Arc<TestClock>,
    cgroups: Cgroups,
}

impl Tree {
    fn new() -> Self {
        Self::with(TestClock::default(), tempfile::tempdir().unwrap())
    }

    fn with(clock: TestClock, directory: TempDir) -> Self {
        let (clock, mount) = (Arc::new(clock), directory.path().to_owned());
        let shared = Arc::clone(&clock) as Arc<dyn Clock>;
        let cgroups = Cgroups::at(Hierarchy::default(), Some(mount), shared);
        Self { directory, clock, cgroups }
    }

    /// Makes a group, and gives its number.
    fn make(&self, path: &str) -> u64 {
        let group = self.directory.path().join(path);
        fs::create_dir_all(&group).unwrap();
        fs::metadata(&group).unwrap().ino()
    }

    fn remove(&self, path: &str) {
        fs::remove_dir(self.directory.path().join(path)).unwrap();
    }

    fn path(&mut self, id: u64) -> Option<String> {
        self.cgroups.path(id, None, &NoTable).path.as_deref().map(str::to_owned)
    }
}

/// A number that no group of a test has.
const NONE: u64 = 1 << 62;

/// Where a user makes groups.
const OF_USER: &str = "user.slice/user-1000.slice/user@1000.service";

#[test]
fn a_group_of_the_start_is_known_after_its_removal() {
    let directory = tempfile::tempdir().unwrap();
    let group = directory.path().join("system.slice/sshd.service");
    fs::create_dir_all(&group).unwrap();
    let id = fs::metadata(&group).unwrap().ino();
    let mut tree = Tree::with(TestClock::default(), directory);
    tree.remove("system.slice/sshd.service");
    assert_eq!(tree.path(id).as_deref(), Some("/system.slice/sshd.service"));
    let root = fs::metadata(tree.directory.path()).unwrap().ino();
    assert_eq!(tree.path(root).as_deref(), Some("/"));
}

#[test]
fn a_group_created_later_is_found_by_its_number() {
    let mut tree = Tree::new();
    let id = tree.make("later.service");
    assert_eq!(tree.path(id).as_deref(), Some("/later.service"));
}

#[test]
fn a_short_lived_group_is_known_from_the_kernel_programs_map() {
    let mut tree = Tree::new();
    // The search that finds nothing is followed by none for a while.
    assert_eq!(tree.path(u64::MAX), None);
    let made = Made(u64::MAX - 1, "/system.slice/run-1.service");
    let known = |path: GroupPath| (path.path.as_deref().map(str::to_owned), path.retry_ns);
    let expected = (Some("/system.slice/run-1.service".to_owned()), None);
    assert_eq!(known(tree.cgroups.path(u64::MAX - 1, None, &made)), expected);
    assert_eq!(known(tree.cgroups.path(u64::MAX - 1, None, &NoTable)), expected);
}

#[test]
fn many_unknown_numbers_cost_one_search_in_a_pause_and_it_caches_all_that_it_visits() {
    let mut tree = Tree::new();
    let ids: Vec<u64> = (0..50).map(|n| tree.make(&format!("{OF_USER}/{n}"))).collect();
    let unit = tree.make("system.slice/later.service");
    assert_eq!(tree.path(NONE), None, "no group has this number");
    assert_eq!(tree.cgroups.path(NONE, None, &NoTable).retry_ns, None, "and none will have it");
    let missed = tree.make("system.slice/missed.service");
    for id in u64::MAX - 100..u64::MAX {
        let answer = tree.cgroups.path(id, None, &NoTable);
        assert_eq!(answer.path, None);
        assert!(answer.retry_ns.is_some() && !tree.cgroups.is_due(answer.retry_ns), "{answer:?}");
    }
    assert_eq!(tree.path(missed), None, "no search followed the first one");
    tree.remove("system.slice/later.service");
    fs::remove_dir_all(tree.directory.path().join(OF_USER)).unwrap();
    assert_eq!(tree.path(unit).as_deref(), Some("/system.slice/later.service"));
    for (n, id) in ids.into_iter().enumerate() {
        assert_eq!(tree.path(id), Some(format!("/{OF_USER}/{n}")));
    }
    let retry_ns = tree.cgroups.path(missed, None, &NoTable).retry_ns;
    tree.clock.forward(PAUSE);
    assert!(tree.cgroups.is_due(retry_ns));
    assert_eq!(tree.path(missed).as_deref(), Some("/system.slice/missed.service"));
}

#[test]
fn groups_of_a_user_displace_none_of_root_and_come_after_them() {
    let mut tree = Tree::new();
    tree.make(OF_USER);
    let root_made = tree.make("zzz.slice/zzz-a.slice/zzz-a-b.slice/x.service");
    let many = u32::try_from(CACHED_OF_USERS * 3).unwrap();
    for n in 0..many {
        tree.make(&format!("{OF_USER}/{n}"));
    }
    assert_eq!(tree.path(NONE), None);
    tree.remove("zzz.slice/zzz-a.slice/zzz-a-b.slice/x.service");
    for n in 0..many {
        let made = Made(u64::MAX - u64::from(n), "/user.slice/user-1000.slice/user@1000.service/x");
        assert!(tree.cgroups.path(made.0, None, &made).path.is_some());
    }
    assert!(tree.path(root_made).is_some(), "of root");
    let mut visited = Vec::new();
    assert!(walk(tree.directory.path(), || false, |_, _, is_of_user| visited.push(is_of_user)));
    assert!(visited.is_sorted(), "groups of users come last");
    assert_eq!(visited.iter().filter(|is_of_user| **is_of_user).count(), many as usize);
}

#[test]
fn a_search_ends_in_time_and_an_unfinished_one_proves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let clock =
        TestClock { step_ns: u64::try_from(SEARCH_TIME.as_nanos()).unwrap() / 10, ..TestClock::default() };
    let mut tree = Tree::with(clock, directory);
    for n in 0..100 {
        tree.make(&format!("{n}"));
    }
    let answer = tree.cgroups.path(u64::MAX, None, &NoTable);
    assert!(answer.path.is_none() && answer.retry_ns.is_some(), "{answer:?}");
    assert!(tree.cgroups.gone.get(u64::MAX).is_none());
    assert!(tree.cgroups.of_root.len() < 20, "{}", tree.cgroups.of_root.len());
}

#[test]
fn paths_that_only_a_user_makes_so_long_are_not_kept() {
    let mut tree = Tree::new();
    let long = format!("{OF_USER}/{0}/{0}/{0}", "x".repeat(200));
    let id = tree.make(&long);
    assert_eq!(tree.path(id), None);
    let made = Made(id, &"/x".repeat(LONGEST_PATH));
    assert!(tree.cgroups.path(id, None, &made).path.is_some());
    assert_eq!(tree.cgroups.cached(id), None);
}

#[test]
fn only_cgroup2_mounts_count_and_a_mount_point_that_is_not_utf_8_hides_none() {
    let proc = tempfile::tempdir().unwrap();
    fs::create_dir(proc.path().join("self")).unwrap();
    let table = b"30 23 0:26 / /tmp/\xff rw - tmpfs tmpfs rw\n31 30 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
    fs::write(proc.path().join("self/mountinfo"), table).unwrap();
    fs::write(proc.path().join("self/cgroup"), "0::/x.service\n").unwrap();
    let cgroups = Cgroups::new(Path::new("/"), proc.path(), Arc::new(SystemClock));
    assert_eq!(cgroups.mount.as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
}

#[test]
fn an_actor_without_a_searched_group_gets_its_unit_from_the_next_search() {
    let tree = Tree::new();
    let root = tempfile::tempdir().unwrap();
    let proc = root.path().join("proc");
    fs::create_dir_all(proc.join("self")).unwrap();
    let table = format!("31 30 0:27 / {} rw - cgroup2 cgroup2 rw\n", tree.directory.path().display());
    fs::write(proc.join("self/mountinfo"), table).unwrap();
    let observer = Arc::new(Observer::new(root.path()).unwrap());
    let clock = Arc::clone(&tree.clock) as Arc<dyn Clock>;
    let mut attributor = Attributor::new(observer, root.path(), &proc, 1, clock).unwrap();
    let executions = tests::Table::one();
    let mut unit = |cgroup| {
        attributor.attribute(&ChangeRecord { cgroup, ..tests::record(tests::DEAD, 10, 20) }, &executions).unit
    };
    assert_eq!(unit(NONE), None, "a search that finds nothing");
    let id = tree.make("system.slice/later.service");
    assert_eq!((unit(id), unit(id)), (None, None));
    tree.clock.forward(PAUSE);
    assert_eq!(unit(id).as_deref(), Some("later.service"));
}
