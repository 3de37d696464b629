use super::*;
use sensor_model::drift_policy::DriftPolicy;
use sensor_model::expectation::{Expectation, Expected, FileExpectation, Owner, Source, UnitExpectation};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;

fn file(path: &str, owner: (u32, u32)) -> Expectation {
    Expectation {
        thing: Thing::file(path),
        expected: Expected::File(FileExpectation {
            keys: Vec::new(),
            layout_free: false,
            content: None,
            mode: 0o644,
            user: Owner::Id(owner.0),
            group: Owner::Id(owner.1),
            may_be_missing: false,
        }),
        ssh_keys: false,
        label: None,
        source: Source::new("test", "test.yaml").into(),
    }
}

fn seen(looked: Result<Looked, MapsError>) -> LookResult {
    match looked.unwrap() {
        Looked::Seen(seen) => *seen,
        Looked::Served(served) => panic!("{served:?}"),
    }
}

/// Writes the file until its change time moves, which takes a tick of the kernel's clock.
fn change(path: &Path) {
    let time = || {
        let metadata = fs::metadata(path).unwrap();
        (metadata.ctime(), metadata.ctime_nsec())
    };
    let before = time();
    while time() == before {
        fs::write(path, "same").unwrap();
    }
}

#[tokio::test]
async fn a_change_met_by_a_look_that_decided_nothing_is_still_a_change_to_the_next_look() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a");
    fs::write(&path, "same").unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    let desired = Desired {
        expectations: vec![file("/a", (metadata.uid(), metadata.gid()))],
        policy: DriftPolicy::merge(&[]).unwrap(),
        ..Desired::default()
    };
    let observer = Arc::new(Observer::new(root.path()).unwrap());
    let mut looker = Looker::new(observer, root.path(), None, &desired);
    let untouched = |seen: &LookResult| match seen.outcome.finding {
        Finding::Compliant { untouched } => untouched,
        Finding::Differs { .. } => panic!("{:?}", seen.differences),
    };

    let first = seen(looker.look(0, &desired).await);
    assert!(!untouched(&first));
    looker.decided(0, &first);
    assert!(untouched(&seen(looker.look(0, &desired).await)));

    change(&path);
    assert!(!untouched(&seen(looker.look(0, &desired).await)));
    let second = seen(looker.look(0, &desired).await);
    assert!(!untouched(&second), "the look before this one decided nothing");
    looker.decided(0, &second);
    assert!(untouched(&seen(looker.look(0, &desired).await)));
}

/// A looker at some expectations, on a root of its own, without the kernel as a witness.
fn looker(root: &Path, expectations: Vec<Expectation>) -> (Looker, Desired) {
    let desired = Desired { expectations, policy: DriftPolicy::merge(&[]).unwrap(), ..Desired::default() };
    let observer = Arc::new(Observer::new(root).unwrap());
    (Looker::new(observer, root, None, &desired), desired)
}

#[tokio::test]
async fn the_directories_behind_a_link_that_came_are_watched_after_the_next_look() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    fs::create_dir_all(at("etc/foo")).unwrap();
    fs::create_dir(at("tmp")).unwrap();
    fs::write(at("etc/foo/a"), "same").unwrap();
    let (mut looker, desired) = looker(root.path(), vec![file("/etc/foo/a", (0, 0))]);
    seen(looker.look(0, &desired).await);
    assert_eq!(looker.take_new_watches(), [] as [u32; 0]);

    fs::rename(at("etc/foo"), at("tmp/foo")).unwrap();
    std::os::unix::fs::symlink("/tmp/foo", at("etc/foo")).unwrap();
    looker.reroute([0]);
    seen(looker.look(0, &desired).await);
    let fresh: Vec<PathBuf> = looker
        .take_new_watches()
        .into_iter()
        .map(|id| looker.registry.get(id).unwrap().path.to_path_buf())
        .collect();
    assert_eq!(fresh, [Path::new("/tmp"), Path::new("/tmp/foo")]);
    seen(looker.look(0, &desired).await);
    assert_eq!(looker.take_new_watches(), [] as [u32; 0], "it is known now");
}

#[tokio::test]
async fn a_way_is_looked_at_until_nothing_is_to_be_looked_at_and_not_until_a_look_that_came_before_the_change()
 {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    fs::create_dir_all(at("var/home")).unwrap();
    std::os::unix::fs::symlink("var/home", at("home")).unwrap();
    let (mut looker, desired) = looker(root.path(), vec![file("/home/core/keys", (0, 0))]);
    // What a directory comes to be told by.
    let parent = looker.registry.find(Path::new("/var/home")).unwrap();
    let told = |looker: &mut Looker| {
        let concerned = looker.registry.concerned(&[parent], Some(OsStr::new("core")), false, false);
        looker.reroute(concerned.beyond);
    };
    told(&mut looker);
    let result = seen(looker.look(0, &desired).await);
    looker.decided(0, &result);
    // It is there only now.
    fs::create_dir(at("var/home/core")).unwrap();
    let result = seen(looker.look(0, &desired).await);
    looker.decided(0, &result);
    looker.settled(0);
    let core = looker.registry.find(Path::new("/var/home/core")).unwrap();
    assert_eq!(looker.take_new_watches(), [core]);
}

#[tokio::test]
async fn nobody_vouches_for_what_cannot_be_watched_until_it_can() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    fs::write(root.path().join("etc/a"), "same").unwrap();
    fs::write(root.path().join("etc/b"), "same").unwrap();
    let (mut looker, desired) = looker(root.path(), vec![file("/etc/a", (0, 0)), file("/etc/b", (0, 0))]);
    let own = looker.registry.find(Path::new("/etc/a")).unwrap();
    let parent = looker.registry.find(Path::new("/etc")).unwrap();
    looker.set_marked(own, false);
    looker.set_marked(own, false);
    assert_eq!(seen(looker.look(0, &desired).await).unseen_because, Some(UNWATCHED));
    assert_eq!(seen(looker.look(1, &desired).await).unseen_because, None);
    looker.set_marked(parent, false);
    assert_eq!(seen(looker.look(1, &desired).await).unseen_because, Some(UNWATCHED));
    looker.set_marked(parent, true);
    assert_eq!(seen(looker.look(1, &desired).await).unseen_because, None);
    assert_eq!(
        seen(looker.look(0, &desired).await).unseen_because,
        Some(UNWATCHED),
        "its own mark is missing"
    );
    looker.set_marked(own, true);
    assert_eq!(seen(looker.look(0, &desired).await).unseen_because, None);
}

#[test]
fn file_systems_that_others_write_to_are_foreign_and_those_of_this_host_are_not() {
    let observer = Observer::new(Path::new("/")).unwrap();
    let named = |magic| foreign(magic, &observer, Path::new("/proc/self/status"));
    for (magic, name) in [(0x6969, "nfs"), (0x6573_5546, "fuse"), (0xff53_4d42, "cifs"), (0x0102_1997, "9p")]
    {
        assert_eq!(named(magic), Some(name));
    }
    // tmpfs, ext4, xfs, btrfs, erofs, and an overlay that was mounted without an upper directory.
    for magic in [0x0102_1994, 0xef53, 0x5846_5342, 0x9123_683e, 0xe0f5_e1e2, 0x794c_7630] {
        assert_eq!(named(magic), None, "{magic:#x}");
    }
    let procfs = 0x9fa0;
    for path in ["/proc/self/status", "/proc/no/such/thing"] {
        assert_eq!(observer.file_system(Path::new(path)), Some(procfs), "{path}");
    }
}

#[tokio::test]
async fn a_directory_that_enables_units_is_watched_once_a_look_has_met_it() {
    let root = tempfile::tempdir().unwrap();
    let system = root.path().join("etc/systemd/system");
    fs::create_dir_all(&system).unwrap();
    let expected = UnitExpectation { enabled: Some(false), masked: None, install_directories: Vec::new() };
    let unit = Expectation {
        thing: Thing::Unit { name: "x.service".to_owned() },
        expected: Expected::Unit(expected),
        ..file("/unused", (0, 0))
    };
    let (mut looker, desired) = looker(root.path(), vec![unit]);
    seen(looker.look(0, &desired).await);
    let wants = Path::new("/etc/systemd/system/other.target.wants");
    assert!(looker.registry.find(wants).is_none());
    fs::create_dir(system.join("other.target.wants")).unwrap();
    seen(looker.look(0, &desired).await);
    let id = looker.registry.find(wants).unwrap();
    assert_eq!(looker.take_new_watches(), [id]);
    let concerned = looker.registry.concerned(&[id], Some(OsStr::new("x.service")), false, true);
    assert_eq!(concerned.direct, [0]);
}
