//! Tests that need mounts. Each test runs itself again in its own mount namespace. A user without rights can create one, too, if user
//! namespaces are allowed.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use holdfast::{
    clock::Clock,
    image::take_baseline,
    observation::Observer,
    purge::{Purge, PurgeScope},
    report::forensic::{Durability, ForensicLog, LogLimits, verify},
    report::metrics::{BuildInfo, Metrics},
};
use jiff::Timestamp;
use nix::mount::{MsFlags, mount, umount};
use sensor_model::{
    expectation::{
        DirectoryExpectation, Expectation, Expected, FileExpectation, ImageLayer, Owner, Source, Thing,
    },
    observation::Observation,
    record::{Record, RecordKind},
    strength::Strength,
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Marks the second run.
const INSIDE: &str = "HOLDFAST_TEST_NAMESPACE";

/// Whether this is the run in the namespace. If not, starts that run and returns its result.
fn inside(test: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let allowed = Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success());
    if !allowed {
        println!("skipped: no mount namespace can be made here");
        return false;
    }
    let status = Command::new("unshare")
        .arg("-rm")
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success(), "{test} failed in its namespace");
    false
}

fn bind(from: &Path, to: &Path) {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

fn expectation(thing: Thing, expected: Expected) -> Expectation {
    let source = Source::new("50-test", "test.yaml").into();
    Expectation { thing, expected, ssh_keys: false, label: None, source }
}

/// An observer without a guard, and one whose guard reads the mount table. In these tests the guard allows all file systems.
fn observers(root: &Path) -> [Observer; 2] {
    [Observer::new(root).unwrap(), Observer::guarded(root).unwrap()]
}

fn is_mounted_over(observers: &[Observer], expectation: &Expectation) -> bool {
    let is_over = observers.iter().map(|observer| match observer.observe(expectation).observation {
        Observation::Object(object) => object.mounted_over,
        other => panic!("{other:?}"),
    });
    let is_over: Vec<bool> = is_over.collect();
    assert_eq!(is_over[0], is_over[1]);
    is_over[0]
}

#[test]
fn a_mount_over_a_managed_file_or_directory_is_observed() {
    if !inside("a_mount_over_a_managed_file_or_directory_is_observed") {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let etc = root.path().join("etc");
    fs::create_dir_all(etc.join("d")).unwrap();
    fs::write(etc.join("file"), "declared").unwrap();
    fs::write(root.path().join("other"), "other").unwrap();
    let observer = observers(root.path());
    let (user, group) = (Owner::Id(0), Owner::Id(0));
    let file = expectation(
        Thing::file("/etc/file"),
        Expected::File(FileExpectation {
            content: None,
            keys: Box::default(),
            layout_free: false,
            mode: 0o644,
            user: user.clone(),
            group: group.clone(),
            may_be_missing: false,
            xattrs: None,
        }),
    );
    let directory = expectation(
        Thing::directory("/etc/d"),
        Expected::Directory(DirectoryExpectation { mode: 0o755, user, group }),
    );
    assert!(!is_mounted_over(&observer, &file) && !is_mounted_over(&observer, &directory));
    // The same file system, so that the device number is the same.
    bind(&root.path().join("other"), &etc.join("file"));
    mount(Some("none"), &etc.join("d"), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    assert!(is_mounted_over(&observer, &file) && is_mounted_over(&observer, &directory));
    // A mount over an ancestor hides the thing, but is not a mount over the thing itself.
    bind(&etc, &etc);
    assert!(!is_mounted_over(&observer, &file));
}

#[test]
fn a_declared_directory_may_be_a_mount_point_but_not_become_one() {
    if !inside("a_declared_directory_may_be_a_mount_point_but_not_become_one") {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    fs::create_dir(&data).unwrap();
    let tmpfs = || mount(Some("none"), &data, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let directory = expectation(
        Thing::directory("/data"),
        Expected::Directory(DirectoryExpectation { mode: 0o755, user: Owner::Id(0), group: Owner::Id(0) }),
    );
    tmpfs();
    let observer = observers(root.path());
    assert!(!is_mounted_over(&observer, &directory), "it was mounted at the first observation");
    assert!(!is_mounted_over(&observer, &directory));
    tmpfs();
    assert!(is_mounted_over(&observer, &directory), "another file system is mounted over it");
    umount(&data).unwrap();
    assert!(!is_mounted_over(&observer, &directory));
}

/// A clock that the test advances.
#[derive(Debug, Default)]
struct ManualClock(AtomicU64);

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }
    fn boot_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A process mounts a file system over an empty directory of the image before the daemon starts. No path of the image is missing then.
#[test]
fn a_mount_over_an_empty_directory_of_an_image_is_observed_although_it_is_older_than_the_observer() {
    if !inside(
        "a_mount_over_an_empty_directory_of_an_image_is_observed_although_it_is_older_than_the_observer",
    ) {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let of = |path: &str, strength: Strength| {
        let layer = ImageLayer { layer: "1".into(), image: "sha256:1".into(), strength: Some(strength) };
        let expected = DirectoryExpectation { mode: 0o755, user: Owner::Id(0), group: Owner::Id(0) };
        let mut expectation = expectation(Thing::directory(path), Expected::Directory(expected));
        expectation.source = layer.into();
        expectation
    };
    let mut found = Vec::new();
    for path in ["/usr/lib/empty", "/etc/empty", "/usr/local/share", "/boot/efi"] {
        let directory = root.path().join(&path[1..]);
        fs::create_dir_all(&directory).unwrap();
        mount(Some("none"), &directory, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        for strength in [Strength::Layer, Strength::Baseline] {
            found.push(is_mounted_over(&observers(root.path()), &of(path, strength)));
        }
    }
    assert_eq!(found, [true, false, true, false, false, false, false, false]);
}

#[test]
fn a_purge_enters_no_other_mount_and_names_it() {
    if !inside("a_purge_enters_no_other_mount_and_names_it") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (state, others) = (folder.path().join("state"), folder.path().join("others"));
    let mounted = ["scan/inner", "images", "canary"].map(|name| state.join(name));
    for directory in [&others, &mounted[0], &mounted[1]] {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("file"), "").unwrap();
    }
    fs::write(&mounted[2], "").unwrap();
    // All of it is on one file system.
    bind(&others, &mounted[0]);
    bind(&others, &mounted[1]);
    bind(&others.join("file"), &mounted[2]);
    let scope = PurgeScope { state: &state, purges_state: true, log: None };
    let done = Purge::prepare(scope).unwrap().run().unwrap();
    let mut kept = done.kept;
    kept.sort();
    let mut expected = mounted.to_vec();
    expected.sort();
    assert_eq!(kept, expected);
    assert!(others.join("file").exists());
    for path in &mounted {
        umount(path).unwrap();
    }
    let done = Purge::prepare(scope).unwrap().run().unwrap();
    assert!(done.kept.is_empty() && !state.exists(), "{done:?}");
}

fn drift(log: &ForensicLog, n: usize) -> Record {
    let mut record = log.record(RecordKind::Drift);
    record.path = Some(format!("/etc/{n}"));
    record
}

#[test]
fn a_full_disk_loses_no_record() {
    if !inside("a_full_disk_loses_no_record") {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    mount(Some("none"), root.path(), Some("tmpfs"), MsFlags::empty(), Some("size=256k")).unwrap();
    let clock = Arc::new(ManualClock::default());
    let build = BuildInfo {
        version: String::new(),
        commit: String::new(),
        object: String::new(),
        kernel: String::new(),
    };
    let metrics = Arc::new(Metrics::new(build, Timestamp::UNIX_EPOCH));
    let directory = root.path().join("log");
    let shared = Arc::clone(&clock) as Arc<dyn Clock>;
    let mut log =
        ForensicLog::open(&directory, LogLimits::default(), shared, "boot".to_owned(), metrics).unwrap();
    let filler = root.path().join("filler");
    let mut next = 0;
    for _ in 0..3 {
        let refused = fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(nix::libc::ENOSPC));
        // The last block of the log has room for one page at a time. A group of many records needs more.
        for _ in 0..3 {
            let group: Vec<Record> = (0..40)
                .map(|_| {
                    next += 1;
                    drift(&log, next)
                })
                .collect();
            assert_eq!(log.append(&group), Durability::Pending);
        }
        assert!(log.degraded().unwrap().contains("No space left"), "{:?}", log.degraded());
        fs::remove_file(&filler).unwrap();
        let pause = u64::try_from(log.retry_in().unwrap().as_nanos()).unwrap();
        clock.0.fetch_add(pause, Ordering::Relaxed);
        assert_eq!(log.append(&[]), Durability::Written);
        assert_eq!(log.degraded(), None);
    }
    let found = verify(&directory).unwrap();
    assert_eq!((found.fault, found.entries), (None, next as u64));
}

#[test]
fn a_baseline_has_a_named_path_below_another_one_on_another_file_system() {
    if !inside("a_baseline_has_a_named_path_below_another_one_on_another_file_system") {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let opt = root.path().join("opt");
    fs::create_dir_all(&opt).unwrap();
    mount(Some("none"), &opt, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    fs::create_dir(opt.join("a")).unwrap();
    fs::write(opt.join("a/file"), "x").unwrap();
    let observer = Observer::new(root.path()).unwrap();
    let taken = |paths: &[&str]| {
        let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        let found = take_baseline(&observer, &paths, &mut |_| {}).unwrap().paths;
        found.into_iter().map(|one| one.path).collect::<Vec<_>>()
    };
    assert_eq!(taken(&["/"]), ["/", "/opt"], "it stays on the file systems of the named paths");
    assert_eq!(taken(&["/", "/opt"]), ["/", "/opt", "/opt/a", "/opt/a/file"]);
    assert_eq!(taken(&["/", "/opt", "/opt/a", "/opt/a/file"]), ["/", "/opt", "/opt/a", "/opt/a/file"]);
    assert_eq!(taken(&["/", "/opt/a", "/opt/a/file"]), ["/", "/opt", "/opt/a", "/opt/a/file"]);
}
