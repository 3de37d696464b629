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
            keys: Box::default(),
            layout_free: false,
            content: None,
            mode: 0o644,
            user: Owner::Id(owner.0),
            group: Owner::Id(owner.1),
            may_be_missing: false,
            xattrs: None,
        }),
        ssh_keys: false,
        label: None,
        source: Source::new("test", "test.yaml").into(),
    }
}

fn seen(outcome: Result<VerifyOutcome, MapsError>) -> VerifiedThing {
    match outcome.unwrap() {
        VerifyOutcome::Verified(seen) => *seen,
        VerifyOutcome::NeedsWorker(served) => panic!("{served:?}"),
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
async fn a_change_that_an_undecided_verification_observed_is_a_change_for_the_next_one_too() {
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
    let mut verifier = Verifier::new(observer, root.path(), None, &desired);
    let untouched = |seen: &VerifiedThing| match seen.verification.finding {
        Finding::Compliant { untouched } => untouched,
        Finding::Differs { .. } => panic!("{:?}", seen.differences),
    };

    let first = seen(verifier.verify(ThingId(0), &desired).await);
    assert!(!untouched(&first));
    verifier.remember_decided(ThingId(0), &first);
    assert!(untouched(&seen(verifier.verify(ThingId(0), &desired).await)));

    change(&path);
    assert!(!untouched(&seen(verifier.verify(ThingId(0), &desired).await)));
    let second = seen(verifier.verify(ThingId(0), &desired).await);
    assert!(!untouched(&second), "the verification before this one decided nothing");
    verifier.remember_decided(ThingId(0), &second);
    assert!(untouched(&seen(verifier.verify(ThingId(0), &desired).await)));
}

/// A verifier of some expectations, on a root of its own, without kernel programs.
fn verifier(root: &Path, expectations: Vec<Expectation>) -> (Verifier, Desired) {
    let desired = Desired { expectations, policy: DriftPolicy::merge(&[]).unwrap(), ..Desired::default() };
    let observer = Arc::new(Observer::new(root).unwrap());
    (Verifier::new(observer, root, None, &desired), desired)
}

#[tokio::test]
async fn the_directories_behind_a_new_link_are_watched_after_the_next_verification() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    fs::create_dir_all(at("etc/foo")).unwrap();
    fs::create_dir(at("tmp")).unwrap();
    fs::write(at("etc/foo/a"), "same").unwrap();
    let (mut verifier, desired) = verifier(root.path(), vec![file("/etc/foo/a", (0, 0))]);
    seen(verifier.verify(ThingId(0), &desired).await);
    assert_eq!(verifier.take_new_watches(), [] as [u32; 0]);

    fs::rename(at("etc/foo"), at("tmp/foo")).unwrap();
    std::os::unix::fs::symlink("/tmp/foo", at("etc/foo")).unwrap();
    verifier.mark_rerouted([ThingId(0)]);
    seen(verifier.verify(ThingId(0), &desired).await);
    let fresh: Vec<PathBuf> = verifier
        .take_new_watches()
        .into_iter()
        .map(|watch_id| verifier.registry.get(watch_id).unwrap().path.to_path_buf())
        .collect();
    assert_eq!(fresh, [Path::new("/tmp"), Path::new("/tmp/foo")]);
    seen(verifier.verify(ThingId(0), &desired).await);
    assert_eq!(verifier.take_new_watches(), [] as [u32; 0], "it is known now");
}

#[tokio::test]
async fn a_route_is_resolved_again_until_no_verification_is_pending() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    fs::create_dir_all(at("var/home")).unwrap();
    std::os::unix::fs::symlink("var/home", at("home")).unwrap();
    let (mut verifier, desired) = verifier(root.path(), vec![file("/home/core/keys", (0, 0))]);
    // The record of the new directory is about its parent.
    let parent = verifier.registry.find(Path::new("/var/home")).unwrap();
    let report = |verifier: &mut Verifier| {
        let concerned = verifier.registry.concerned(&[parent], Some(OsStr::new("core")), false, false);
        verifier.mark_rerouted(concerned.outside_evidence);
    };
    report(&mut verifier);
    let result = seen(verifier.verify(ThingId(0), &desired).await);
    verifier.remember_decided(ThingId(0), &result);
    // The directory appears only now.
    fs::create_dir(at("var/home/core")).unwrap();
    let result = seen(verifier.verify(ThingId(0), &desired).await);
    verifier.remember_decided(ThingId(0), &result);
    verifier.clear_rerouted(ThingId(0));
    let core = verifier.registry.find(Path::new("/var/home/core")).unwrap();
    assert_eq!(verifier.take_new_watches(), [core]);
}

#[tokio::test]
async fn a_thing_with_an_unmarked_path_is_unseen_until_the_path_is_marked() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    fs::write(root.path().join("etc/a"), "same").unwrap();
    fs::write(root.path().join("etc/b"), "same").unwrap();
    let (mut verifier, desired) = verifier(root.path(), vec![file("/etc/a", (0, 0)), file("/etc/b", (0, 0))]);
    let own = verifier.registry.find(Path::new("/etc/a")).unwrap();
    let parent = verifier.registry.find(Path::new("/etc")).unwrap();
    verifier.set_marked(own, false);
    verifier.set_marked(own, false);
    assert_eq!(
        seen(verifier.verify(ThingId(0), &desired).await).unseen_because,
        Some(GapReason::FanotifyUnwatched)
    );
    assert_eq!(seen(verifier.verify(ThingId(1), &desired).await).unseen_because, None);
    verifier.set_marked(parent, false);
    assert_eq!(
        seen(verifier.verify(ThingId(1), &desired).await).unseen_because,
        Some(GapReason::FanotifyUnwatched)
    );
    verifier.set_marked(parent, true);
    assert_eq!(seen(verifier.verify(ThingId(1), &desired).await).unseen_because, None);
    assert_eq!(
        seen(verifier.verify(ThingId(0), &desired).await).unseen_because,
        Some(GapReason::FanotifyUnwatched),
        "its own mark is missing"
    );
    verifier.set_marked(own, true);
    assert_eq!(seen(verifier.verify(ThingId(0), &desired).await).unseen_because, None);
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
async fn a_directory_that_enables_units_is_watched_once_a_verification_found_it() {
    let root = tempfile::tempdir().unwrap();
    let system = root.path().join("etc/systemd/system");
    fs::create_dir_all(&system).unwrap();
    let expected = UnitExpectation { enabled: Some(false), masked: None, install_directories: Vec::new() };
    let unit = Expectation {
        thing: Thing::Unit { name: "x.service".to_owned() },
        expected: Expected::Unit(expected),
        ..file("/unused", (0, 0))
    };
    let (mut verifier, desired) = verifier(root.path(), vec![unit]);
    seen(verifier.verify(ThingId(0), &desired).await);
    let wants = Path::new("/etc/systemd/system/other.target.wants");
    assert!(verifier.registry.find(wants).is_none());
    fs::create_dir(system.join("other.target.wants")).unwrap();
    seen(verifier.verify(ThingId(0), &desired).await);
    let watch_id = verifier.registry.find(wants).unwrap();
    assert_eq!(verifier.take_new_watches(), [watch_id]);
    let concerned = verifier.registry.concerned(&[watch_id], Some(OsStr::new("x.service")), false, true);
    assert_eq!(concerned.in_evidence, [ThingId(0)]);
}
