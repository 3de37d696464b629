use super::*;
use sensor_model::expectation::{
    ClosedDirectoryExpectation, DirectoryExpectation, Expected, FileExpectation, OsImageExpectation, Owner,
    Source, UnitExpectation,
};
use sensor_model::link_exceptions::LinkExceptions;
use sensor_model::name_patterns::NamePatterns;
use std::ffi::OsStr;
use std::path::PathBuf;

fn file(path: &str) -> Expectation {
    Expectation {
        thing: Thing::file(path),
        expected: Expected::File(FileExpectation {
            keys: Box::default(),
            layout_free: false,
            content: None,
            mode: 0o644,
            user: Owner::Id(0),
            group: Owner::Id(0),
            may_be_missing: false,
            xattrs: None,
        }),
        ssh_keys: false,
        label: None,
        source: Source::new("test", "test.yaml").into(),
    }
}

fn things<const N: usize>(numbers: [u32; N]) -> [ThingId; N] {
    numbers.map(ThingId)
}

#[expect(clippy::unnecessary_wraps, reason = "the form of `set_inode`'s argument")]
fn inode(ino: u64) -> Option<Inode> {
    Some(Inode { key: InodeKey { ino, dev: 1, volume: 0 }, generation: 1 })
}

fn key(ino: u64) -> Option<InodeKey> {
    inode(ino).map(|inode| inode.key)
}

fn resolved(paths: &[&str]) -> WatchRegistry {
    let expectations: Vec<_> = paths.iter().map(|path| file(path)).collect();
    let mut registry = WatchRegistry::new(&expectations, |_| Route::default(), |_| Vec::new());
    for watch_id in 0..registry.len() {
        registry.set_inode(watch_id, inode(u64::from(watch_id) + 10));
    }
    registry
}

#[test]
fn a_name_in_a_directory_concerns_only_the_thing_of_that_name() {
    let registry = resolved(&["/etc/a", "/etc/b"]);
    let etc = registry.find(Path::new("/etc")).unwrap();
    assert_eq!(registry.concerned(&[etc], Some(OsStr::new("b")), false, true).in_evidence, things([1]));
    assert_eq!(registry.concerned(&[etc], Some(OsStr::new("c")), false, true), Concerned::default());
}

#[test]
fn a_cut_name_concerns_everything_in_the_directory() {
    let registry = resolved(&["/etc/a", "/etc/b"]);
    let etc = registry.find(Path::new("/etc")).unwrap();
    assert_eq!(registry.concerned(&[etc], Some(OsStr::new("x")), true, true).in_evidence, things([0, 1]));
}

#[test]
fn an_invalid_name_concerns_nothing() {
    let registry = resolved(&["/etc/a", "/etc/d/a"]);
    let etc = registry.find(Path::new("/etc")).unwrap();
    for name in ["", ".", "..", "/etc/a", "d/a"] {
        assert_eq!(
            registry.concerned(&[etc], Some(OsStr::new(name)), false, true),
            Concerned::default(),
            "{name}"
        );
    }
}

#[test]
fn of_several_things_at_one_path_each_is_concerned() {
    let directory = Expectation {
        thing: Thing::directory("/etc/d"),
        expected: Expected::Directory(DirectoryExpectation {
            mode: 0o755,
            user: Owner::Id(0),
            group: Owner::Id(0),
        }),
        ..file("/unused")
    };
    let closed = Expectation {
        thing: Thing::closed_directory("/etc/d"),
        expected: Expected::ClosedDirectory(ClosedDirectoryExpectation {
            names: Vec::new(),
            suffix: None,
            ssh_keys: false,
            except: NamePatterns::default(),
            except_links: LinkExceptions::default(),
        }),
        ..file("/unused")
    };
    let registry =
        WatchRegistry::new(&[closed, directory, file("/etc/d")], |_| Route::default(), |_| Vec::new());
    let of = |path: &str, name: Option<&str>, moved| {
        let watch_id = registry.find(Path::new(path)).unwrap();
        registry.concerned(&[watch_id], name.map(OsStr::new), false, moved).in_evidence
    };
    assert_eq!(of("/etc", Some("d"), false), things([0, 1, 2]));
    assert_eq!(of("/etc/d", Some("new"), false), things([0]));
    assert_eq!(of("/etc/d", None, false), things([1, 2]));
    assert_eq!(of("/etc/d", None, true), things([0, 1, 2]));
}

#[test]
fn a_thing_without_a_watch_is_concerned_when_an_ancestor_of_its_path_moves() {
    let booted = Expectation {
        thing: Thing::OsImage,
        expected: Expected::OsImage(OsImageExpectation::of("registry/os")),
        ..file("/unused")
    };
    let registry =
        WatchRegistry::new(&[booted, file("/run/a"), file("/etc/a")], |_| Route::default(), |_| Vec::new());
    let run = registry.find(Path::new("/run")).unwrap();
    assert_eq!(registry.concerned(&[run], None, false, true).outside_evidence, things([0, 1]));
}

#[test]
fn a_directory_is_enrolled_for_its_names_until_the_last_missing_one_is_there() {
    let expectations = [file("/etc/one/a"), file("/etc/two/a")];
    let mut registry = WatchRegistry::new(&expectations, |_| Route::default(), |_| Vec::new());
    let at = |registry: &WatchRegistry, path: &str| registry.find(Path::new(path)).unwrap();
    let (etc, one, two) = (at(&registry, "/etc"), at(&registry, "/etc/one"), at(&registry, "/etc/two"));
    let by_names =
        |registry: &WatchRegistry| registry.enrolment(key(5).unwrap()).unwrap().1 & ROLE_DIRECTORY != 0;
    registry.set_inode(etc, inode(5));
    for watch_id in [one, one, two] {
        registry.set_inode(watch_id, None);
    }
    assert!(by_names(&registry));
    registry.set_inode(one, inode(6));
    assert!(by_names(&registry), "the other one is missing");
    registry.set_inode(two, inode(7));
    assert!(!by_names(&registry));
    registry.set_inode(two, None);
    assert!(by_names(&registry));
}

#[test]
fn a_moved_ancestor_concerns_all_below_it_and_makes_their_watches_stale() {
    let registry = resolved(&["/etc/d/a", "/usr/b"]);
    let etc = registry.find(Path::new("/etc")).unwrap();
    let concerned = registry.concerned(&[etc], None, false, true);
    assert_eq!(concerned.outside_evidence, things([0]));
    assert!(concerned.stale.contains(&registry.find(Path::new("/etc/d/a")).unwrap()));
    assert!(!concerned.stale.contains(&registry.find(Path::new("/usr/b")).unwrap()));
}

#[test]
fn two_paths_to_one_inode_are_both_concerned() {
    let expectations = [file("/etc/a"), file("/srv/hardlink")];
    let mut registry = WatchRegistry::new(&expectations, |_| Route::default(), |_| Vec::new());
    let (a, b) = (Path::new("/etc/a"), Path::new("/srv/hardlink"));
    let (a, b) = (registry.find(a).unwrap(), registry.find(b).unwrap());
    registry.set_inode(a, inode(7));
    let changes = registry.set_inode(b, inode(7));
    assert!(changes.iter().any(|(changed, to)| Some(*changed) == key(7) && to.unwrap().0 == a));
    assert_eq!(
        registry.concerned(&registry.watches_of_record(a, key(7).unwrap()), None, false, false).in_evidence,
        things([0, 1])
    );
}

#[test]
fn only_a_map_entry_whose_inode_no_watch_leads_to_is_stale() {
    let mut registry = WatchRegistry::new(&[file("/etc/a")], |_| Route::default(), |_| Vec::new());
    let a = registry.find(Path::new("/etc/a")).unwrap();
    registry.set_inode(a, inode(7));
    assert!(!registry.is_stale(key(7).unwrap(), a));
    assert!(!registry.is_stale(key(7).unwrap(), a + 1), "an earlier run had another number for it");
    let unknown = key(99).unwrap();
    assert!(registry.is_stale(unknown, a));
    assert!(!registry.is_stale(unknown, FIRST_OWN), "the daemon's own watch");
}

#[test]
fn an_inode_is_removed_only_when_no_path_leads_to_it() {
    let expectations = [file("/etc/a"), file("/etc/b")];
    let mut registry = WatchRegistry::new(&expectations, |_| Route::default(), |_| Vec::new());
    let a = registry.find(Path::new("/etc/a")).unwrap();
    let b = registry.find(Path::new("/etc/b")).unwrap();
    registry.set_inode(a, inode(7));
    registry.set_inode(b, inode(7));
    let kept = registry.set_inode(a, inode(8));
    assert!(kept.iter().any(|(changed, to)| Some(*changed) == key(7) && to.is_some()));
    let gone = registry.set_inode(b, inode(8));
    assert!(gone.iter().any(|(changed, to)| Some(*changed) == key(7) && to.is_none()));
}

#[test]
fn an_ancestor_is_enrolled_for_its_names_while_a_path_below_it_does_not_resolve() {
    let expectations = [file("/opt/missing/deeper/a")];
    let mut registry = WatchRegistry::new(&expectations, |_| Route::default(), |_| Vec::new());
    let opt = registry.find(Path::new("/opt")).unwrap();
    let missing = registry.find(Path::new("/opt/missing")).unwrap();
    let roles = |changes: Vec<(InodeKey, Option<(u32, u32)>)>, wanted: Option<InodeKey>| {
        changes.into_iter().find(|(changed, _)| Some(*changed) == wanted).unwrap().1.unwrap().1
    };
    registry.set_inode(opt, inode(5));
    assert_ne!(roles(registry.set_inode(missing, None), key(5)) & ROLE_DIRECTORY, 0);
    let concerned = registry.concerned(&[opt], Some(OsStr::new("missing")), false, true);
    assert_eq!(concerned.outside_evidence, things([0]));
    assert_eq!(roles(registry.set_inode(missing, inode(6)), key(5)) & ROLE_DIRECTORY, 0);
}

const fn about(inode: Inode, moves: bool) -> RecordTarget {
    RecordTarget { inode, is_name: false, moves }
}

#[test]
fn a_record_of_an_inode_with_a_reused_number_does_not_match() {
    let mut registry = resolved(&["/etc/a"]);
    let a = registry.find(Path::new("/etc/a")).unwrap();
    let old = registry.get(a).unwrap().inode().unwrap();
    assert!(registry.matches(a, &about(old, true)), "its removal");
    assert!(!registry.matches(a, &about(old, false)), "it has left");
    assert!(!registry.matches(a, &about(Inode { generation: 2, ..old }, false)), "another inode");
    registry.set_inode(a, Some(old));
    assert!(registry.matches(a, &about(old, false)), "the path still leads to it");
}

#[test]
fn a_record_of_a_move_matches_once_after_a_verification_found_the_new_inode() {
    let mut registry = resolved(&["/etc/a"]);
    let a = registry.find(Path::new("/etc/a")).unwrap();
    let old = registry.get(a).unwrap().inode().unwrap();
    registry.set_inode(a, inode(99));
    assert!(!registry.matches(a, &about(old, false)), "a write to an inode that is elsewhere");
    assert!(registry.matches(a, &about(old, true)));
    assert!(!registry.matches(a, &about(old, true)), "another process moves it on");
    assert!(registry.matches(a, &about(inode(99).unwrap(), false)));
}

#[test]
fn records_of_names_in_a_removed_directory_match_until_the_record_of_its_removal() {
    let mut registry = resolved(&["/etc/d/a"]);
    let d = registry.find(Path::new("/etc/d")).unwrap();
    let old = registry.get(d).unwrap().inode().unwrap();
    let name = |inode| RecordTarget { inode, is_name: true, moves: true };
    registry.set_inode(d, None);
    assert!(registry.matches(d, &name(old)), "the file in it was removed first");
    assert!(registry.matches(d, &about(old, true)), "then the directory");
    assert!(!registry.matches(d, &name(Inode { generation: 2, ..old })), "its number is another directory's");
    assert!(!registry.matches(d, &name(old)));
}

#[test]
fn a_record_with_one_watchs_number_has_the_other_watches_of_the_inode_too() {
    let expectations = [file("/etc/a"), file("/srv/hardlink")];
    let mut registry = WatchRegistry::new(&expectations, |_| Route::default(), |_| Vec::new());
    let a = registry.find(Path::new("/etc/a")).unwrap();
    let b = registry.find(Path::new("/srv/hardlink")).unwrap();
    registry.set_inode(a, inode(7));
    registry.set_inode(b, inode(7));
    registry.set_inode(a, inode(8));
    assert_eq!(registry.watches_of_record(a, key(7).unwrap()), [b, a]);
}

#[test]
fn a_unit_without_contents_is_watched_in_the_install_directories_of_its_own_file() {
    let unit = Expectation {
        thing: Thing::Unit { name: "a.timer".to_owned() },
        expected: Expected::Unit(UnitExpectation {
            enabled: Some(true),
            masked: None,
            install_directories: Vec::new(),
        }),
        ..file("/unused")
    };
    let registry =
        WatchRegistry::new(&[unit], |_| Route::default(), |_| vec!["timers.target.wants".to_owned()]);
    assert!(registry.find(Path::new("/etc/systemd/system/timers.target.wants")).is_some());
}

#[test]
fn later_things_have_the_next_numbers_and_only_changed_watches_are_to_be_enrolled() {
    let mut registry = resolved(&["/etc/a/one", "/srv/x"]);
    let before = registry.len();
    let moved = registry.extend(&[file("/etc/a/two"), file("/etc/b")], |_| Route::default(), |_| Vec::new());
    let mut paths: Vec<_> =
        moved.iter().map(|watch_id| registry.get(*watch_id).unwrap().path.display().to_string()).collect();
    paths.sort();
    // /etc has another role now, because a name in it matters. The roles of /, /etc/a and /srv are the same.
    assert_eq!(paths, ["/etc", "/etc/a/two", "/etc/b"]);
    for watch_id in &moved {
        registry.set_inode(*watch_id, inode(u64::from(*watch_id) + 10));
    }
    assert_eq!(registry.len(), before + 2);
    let etc = registry.find(Path::new("/etc")).unwrap();
    let concerned = registry.concerned(&[etc], Some(OsStr::new("b")), false, false);
    assert_eq!(concerned.in_evidence, things([3]), "the second of the two that came later");
    let directory = registry.find(Path::new("/etc/a")).unwrap();
    assert_eq!(
        registry.concerned(&[directory], Some(OsStr::new("two")), false, false).in_evidence,
        things([2])
    );
    assert_eq!(
        registry.concerned(&[directory], Some(OsStr::new("one")), false, false).in_evidence,
        things([0])
    );
    let (_, roles) = registry.enrolment(key(u64::from(etc) + 10).unwrap()).unwrap();
    assert!(roles & ROLE_DIRECTORY != 0);
}

/// A registry of one thing below `/home`, which is a link to `/var/home`.
fn linked(path: &str) -> WatchRegistry {
    let real = |path: &Path| Path::new("/var").join(path.strip_prefix("/").unwrap());
    let route = |path: &Path| {
        let parent = real(path.parent().unwrap());
        let mut directories: Vec<PathBuf> = parent.ancestors().map(Path::to_owned).collect();
        directories.reverse();
        Route { directories, ..Route::default() }
    };
    WatchRegistry::new(&[file(path)], route, |_| Vec::new())
}

#[test]
fn a_mount_over_the_real_path_of_a_thing_behind_a_link_concerns_it() {
    let registry = linked("/home/core/.ssh/authorized_keys");
    for point in ["/var/home", "/var/home/core/.ssh", "/var/home/core/.ssh/authorized_keys", "/home", "/"] {
        assert_eq!(registry.under_mount(Path::new(point)), things([0]), "{point}");
    }
    for point in ["/var/home/core/.config", "/var/home/other", "/var/lib", "/etc"] {
        assert_eq!(registry.under_mount(Path::new(point)), [] as [ThingId; 0], "{point}");
    }
    let registry = linked("/home/core");
    assert_eq!(registry.under_mount(Path::new("/var/home/core/below")), things([0]), "in the thing itself");
}

#[test]
fn a_directory_behind_a_link_that_appears_or_disappears_concerns_the_things_below_it() {
    let registry = linked("/home/core/.ssh/authorized_keys");
    let watch_id = |path: &str| registry.find(Path::new(path)).unwrap();
    for (directory, name, cut) in
        [("/var/home", "core", false), ("/var", "home", false), ("/var/home", "", true)]
    {
        let concerned = registry.concerned(&[watch_id(directory)], Some(OsStr::new(name)), cut, true);
        assert!(
            concerned.outside_evidence == things([0])
                && concerned.stale.contains(&watch_id("/var/home/core/.ssh")),
            "{directory} {name}: {concerned:?}"
        );
    }
    let other = registry.concerned(&[watch_id("/var/home")], Some(OsStr::new("other")), false, true);
    assert_eq!(other, Concerned::default());
}

fn route(directories: &[&str], missing: Option<(&str, &str)>) -> Route {
    let directories = directories.iter().map(PathBuf::from).collect();
    Route { directories, missing: missing.map(|(at, name)| (at.into(), name.into())), ..Route::default() }
}

#[test]
fn a_directory_that_appears_at_the_end_of_a_route_concerns_the_thing_of_the_route() {
    let thing = "/home/core/.ssh/keys";
    let to_home = route(&["/", "/var", "/var/home"], Some(("/var/home", "core")));
    let mut registry = WatchRegistry::new(&[file(thing)], |_| to_home.clone(), |_| Vec::new());
    let came = |registry: &WatchRegistry, directory: &str, name: &str, cut| {
        let watch_id = registry.find(Path::new(directory)).unwrap();
        registry.concerned(&[watch_id], Some(OsStr::new(name)), cut, true).outside_evidence
    };
    assert_eq!(came(&registry, "/var/home", "core", false), things([0]));
    assert_eq!(came(&registry, "/var/home", "other", false), [] as [ThingId; 0]);
    assert_eq!(
        came(&registry, "/var/home", "co", true),
        things([0]),
        "the record has only the beginning of the name"
    );

    assert_eq!(registry.set_route(ThingId(0), Path::new(thing), &to_home), [] as [u32; 0], "it is known");
    let further = route(&["/", "/var", "/var/home", "/var/home/core"], Some(("/var/home/core", ".ssh")));
    assert_eq!(registry.set_route(ThingId(0), Path::new(thing), &further).len(), 1);
    assert_eq!(came(&registry, "/var/home/core", ".ssh", false), things([0]));
    // Another name is missing now.
    let elsewhere = route(&["/", "/var", "/var/home"], Some(("/var/home", "other")));
    registry.set_route(ThingId(0), Path::new(thing), &elsewhere);
    assert_eq!(came(&registry, "/var/home", "other", false), things([0]));
}

#[test]
fn a_thing_with_another_route_is_watched_on_that_route() {
    let mut registry = resolved(&["/etc/foo/a", "/etc/b"]);
    let thing = Path::new("/etc/foo/a");
    let route = route(&["/", "/etc", "/tmp", "/tmp/foo"], None);
    let added = registry.set_route(ThingId(0), thing, &route);
    let paths: Vec<_> =
        added.iter().map(|watch_id| registry.get(*watch_id).unwrap().path.display().to_string()).collect();
    assert_eq!(paths, ["/tmp", "/tmp/foo"]);
    assert_eq!(registry.set_route(ThingId(0), thing, &route), [] as [u32; 0], "and is then known");
    for (watch_id, ino) in added.iter().zip(90..) {
        registry.set_inode(*watch_id, inode(ino));
    }
    let tmp = registry.find(Path::new("/tmp/foo")).unwrap();
    let moved = registry.concerned(&[tmp], None, false, true);
    assert_eq!(moved.outside_evidence, things([0]), "the directory behind the link is exchanged");
    assert_eq!(registry.concerned(&[tmp], Some(OsStr::new("a")), false, true).in_evidence, things([0]));
}

fn unit(name: &str) -> Expectation {
    let expected = UnitExpectation { enabled: Some(false), masked: None, install_directories: Vec::new() };
    Expectation {
        thing: Thing::Unit { name: name.to_owned() },
        expected: Expected::Unit(expected),
        ..file("/unused")
    }
}

#[test]
fn a_link_in_any_directory_that_enables_units_concerns_the_unit_of_its_name() {
    let units = [unit("x.service"), unit("y@.service"), unit("z@one.service"), file("/etc/a")];
    let mut registry = WatchRegistry::new(&units, |_| Route::default(), |_| Vec::new());
    let wants = Path::new("/etc/systemd/system/other.target.wants");
    assert!(registry.find(wants).is_none(), "no config declares it");

    // The directory appears: it may hold any links already.
    let system = registry.find(Path::new("/etc/systemd/system")).unwrap();
    let come = registry.concerned(&[system], Some(wants.file_name().unwrap()), false, true);
    assert_eq!(come.in_evidence, things([0, 1, 2]));
    let other = registry.concerned(&[system], Some(OsStr::new("else.service")), false, true);
    assert_eq!(other.in_evidence, [] as [ThingId; 0]);

    let watch_id = registry.watch_units_in(wants, None).unwrap();
    registry.set_inode(watch_id, inode(50));
    for met in [None, inode(50)] {
        assert!(registry.watch_units_in(wants, met).is_none(), "it is watched now");
    }
    let again = registry.concerned(&[system], Some(wants.file_name().unwrap()), false, true);
    assert_eq!(again.stale, [watch_id], "another directory may be there");
    assert_eq!(registry.watch_units_in(wants, inode(51)), Some(watch_id), "it is another one");
    let of = |name: &str| registry.concerned(&[watch_id], Some(OsStr::new(name)), false, true).in_evidence;
    assert_eq!(of("x.service"), things([0]));
    assert_eq!(of("y@instance.service"), things([1]));
    assert_eq!(of("z@one.service"), things([2]));
    assert_eq!(of("else.service"), [] as [ThingId; 0]);
    assert_eq!(
        registry.concerned(&[watch_id], None, false, true).outside_evidence,
        things([0, 1, 2]),
        "it goes with all its links"
    );
}

#[test]
fn a_unit_that_a_package_adds_or_removes_is_concerned() {
    let registry =
        WatchRegistry::new(&[unit("x.service"), unit("y.service")], |_| Route::default(), |_| Vec::new());
    for directory in ["/usr/lib/systemd/system", "/usr/local/lib/systemd/system", "/etc/systemd/system"] {
        let watch_id = registry.find(Path::new(directory)).unwrap();
        let of =
            |name: &str| registry.concerned(&[watch_id], Some(OsStr::new(name)), false, true).in_evidence;
        assert_eq!((of("x.service"), of("else.service")), (vec![ThingId(0)], vec![]), "{directory}");
    }
}

#[test]
fn directories_of_generators_and_transient_units_enable_no_units() {
    for (directory, may) in [
        ("/etc/systemd/system/a.target.wants", true),
        ("/usr/lib/systemd/system/a.target.upholds", true),
        ("/run/systemd/system/a.service.requires", true),
        ("/run/systemd/generator/a.target.wants", false),
        ("/run/systemd/generator.late/a.target.wants", false),
        ("/run/systemd/transient/a.target.wants", false),
        ("/etc/systemd/system/a.service.d", false),
    ] {
        assert_eq!(may_enable(Path::new(directory)), may, "{directory}");
    }
}
