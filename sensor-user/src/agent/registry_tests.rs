use super::*;
use sensor_model::expectation::{Expected, FileExpectation, Owner, Source, UnitExpectation};

fn file(path: &str) -> Expectation {
    Expectation {
        thing: Thing::File { path: path.into() },
        expected: Expected::File(FileExpectation {
            keys: Vec::new(),
            layout_free: false,
            content: None,
            mode: 0o644,
            user: Owner::Id(0),
            group: Owner::Id(0),
            label: None,
            may_be_missing: false,
        }),
        ssh_keys: false,
        source: Source { machine_config: "test".into(), origin: "test.yaml".into() },
    }
}

#[expect(clippy::unnecessary_wraps, reason = "what `resolved` takes")]
fn inode(ino: u64) -> Option<Inode> {
    Some(Inode { key: InodeKey { ino, dev: 1, padding: 0 }, generation: 1 })
}

fn key(ino: u64) -> Option<InodeKey> {
    inode(ino).map(|inode| inode.key)
}

fn resolved(paths: &[&str]) -> Registry {
    let expectations: Vec<_> = paths.iter().map(|path| file(path)).collect();
    let mut registry = Registry::new(&expectations, |_| Vec::new(), |_| Vec::new());
    for id in 0..registry.len() {
        registry.resolved(id, inode(u64::from(id) + 10));
    }
    registry
}

#[test]
fn a_name_in_a_directory_concerns_only_the_thing_of_that_name() {
    let registry = resolved(&["/etc/a", "/etc/b"]);
    let etc = registry.find(Path::new("/etc")).unwrap();
    assert_eq!(registry.concerned(&[etc], Some(OsStr::new("b")), false, true).direct, [1]);
    assert_eq!(registry.concerned(&[etc], Some(OsStr::new("c")), false, true), Concerned::default());
}

#[test]
fn a_cut_name_concerns_everything_in_the_directory() {
    let registry = resolved(&["/etc/a", "/etc/b"]);
    let etc = registry.find(Path::new("/etc")).unwrap();
    assert_eq!(registry.concerned(&[etc], Some(OsStr::new("x")), true, true).direct, [0, 1]);
}

#[test]
fn a_moved_ancestor_concerns_all_below_it_and_makes_their_watches_stale() {
    let registry = resolved(&["/etc/d/a", "/usr/b"]);
    let etc = registry.find(Path::new("/etc")).unwrap();
    let concerned = registry.concerned(&[etc], None, false, true);
    assert_eq!(concerned.beyond, [0]);
    assert!(concerned.stale.contains(&registry.find(Path::new("/etc/d/a")).unwrap()));
    assert!(!concerned.stale.contains(&registry.find(Path::new("/usr/b")).unwrap()));
}

#[test]
fn two_paths_to_one_inode_are_both_concerned() {
    let expectations = [file("/etc/a"), file("/srv/hardlink")];
    let mut registry = Registry::new(&expectations, |_| Vec::new(), |_| Vec::new());
    let (a, b) = (Path::new("/etc/a"), Path::new("/srv/hardlink"));
    let (a, b) = (registry.find(a).unwrap(), registry.find(b).unwrap());
    registry.resolved(a, inode(7));
    let changes = registry.resolved(b, inode(7));
    assert!(changes.iter().any(|(changed, to)| Some(*changed) == key(7) && to.unwrap().0 == a));
    assert_eq!(registry.concerned(&registry.about(a, key(7).unwrap()), None, false, false).direct, [0, 1]);
}

#[test]
fn an_inode_is_removed_only_when_no_path_leads_to_it() {
    let expectations = [file("/etc/a"), file("/etc/b")];
    let mut registry = Registry::new(&expectations, |_| Vec::new(), |_| Vec::new());
    let a = registry.find(Path::new("/etc/a")).unwrap();
    let b = registry.find(Path::new("/etc/b")).unwrap();
    registry.resolved(a, inode(7));
    registry.resolved(b, inode(7));
    let kept = registry.resolved(a, inode(8));
    assert!(kept.iter().any(|(changed, to)| Some(*changed) == key(7) && to.is_some()));
    let gone = registry.resolved(b, inode(8));
    assert!(gone.iter().any(|(changed, to)| Some(*changed) == key(7) && to.is_none()));
}

#[test]
fn names_matter_in_an_ancestor_while_a_path_below_it_does_not_resolve() {
    let expectations = [file("/opt/missing/deeper/a")];
    let mut registry = Registry::new(&expectations, |_| Vec::new(), |_| Vec::new());
    let opt = registry.find(Path::new("/opt")).unwrap();
    let missing = registry.find(Path::new("/opt/missing")).unwrap();
    let roles = |changes: Vec<(InodeKey, Option<(u32, u32)>)>, wanted: Option<InodeKey>| {
        changes.into_iter().find(|(changed, _)| Some(*changed) == wanted).unwrap().1.unwrap().1
    };
    registry.resolved(opt, inode(5));
    assert_ne!(roles(registry.resolved(missing, None), key(5)) & ROLE_DIRECTORY, 0);
    let concerned = registry.concerned(&[opt], Some(OsStr::new("missing")), false, true);
    assert_eq!(concerned.beyond, [0]);
    assert_eq!(roles(registry.resolved(missing, inode(6)), key(5)) & ROLE_DIRECTORY, 0);
}

const fn about(inode: Inode, moves: bool) -> About {
    About { inode, is_name: false, moves }
}

#[test]
fn an_inode_that_got_a_removed_ones_number_does_not_speak_for_its_path() {
    let mut registry = resolved(&["/etc/a"]);
    let a = registry.find(Path::new("/etc/a")).unwrap();
    let old = registry.get(a).unwrap().inode.unwrap();
    assert!(registry.speaks(a, &about(old, true)), "its removal");
    assert!(!registry.speaks(a, &about(old, false)), "it has left");
    assert!(!registry.speaks(a, &about(Inode { generation: 2, ..old }, false)), "another inode");
    registry.resolved(a, Some(old));
    assert!(registry.speaks(a, &about(old, false)), "it turned out to be there still");
}

#[test]
fn the_record_of_a_move_that_a_look_has_overtaken_speaks_once() {
    let mut registry = resolved(&["/etc/a"]);
    let a = registry.find(Path::new("/etc/a")).unwrap();
    let old = registry.get(a).unwrap().inode.unwrap();
    registry.resolved(a, inode(99));
    assert!(!registry.speaks(a, &about(old, false)), "a write to an inode that is elsewhere");
    assert!(registry.speaks(a, &about(old, true)));
    assert!(!registry.speaks(a, &about(old, true)), "it is moved on by somebody else");
    assert!(registry.speaks(a, &about(inode(99).unwrap(), false)));
}

#[test]
fn names_in_a_directory_that_was_removed_speak_until_its_removal_was_told() {
    let mut registry = resolved(&["/etc/d/a"]);
    let d = registry.find(Path::new("/etc/d")).unwrap();
    let old = registry.get(d).unwrap().inode.unwrap();
    let name = |inode| About { inode, is_name: true, moves: true };
    registry.resolved(d, None);
    assert!(registry.speaks(d, &name(old)), "the file in it was removed first");
    assert!(registry.speaks(d, &about(old, true)), "then the directory");
    assert!(!registry.speaks(d, &name(Inode { generation: 2, ..old })), "its number is another directory's");
    assert!(!registry.speaks(d, &name(old)));
}

#[test]
fn a_record_under_one_paths_number_reaches_the_other_paths_of_the_inode() {
    let expectations = [file("/etc/a"), file("/srv/hardlink")];
    let mut registry = Registry::new(&expectations, |_| Vec::new(), |_| Vec::new());
    let a = registry.find(Path::new("/etc/a")).unwrap();
    let b = registry.find(Path::new("/srv/hardlink")).unwrap();
    registry.resolved(a, inode(7));
    registry.resolved(b, inode(7));
    registry.resolved(a, inode(8));
    assert_eq!(registry.about(a, key(7).unwrap()), [b, a]);
}

#[test]
fn a_unit_without_contents_is_watched_where_its_own_file_says_that_it_is_enabled() {
    let unit = Expectation {
        thing: Thing::Unit { name: "a.timer".to_owned() },
        expected: Expected::Unit(UnitExpectation {
            enabled: Some(true),
            masked: None,
            install_directories: Vec::new(),
        }),
        ..file("/unused")
    };
    let registry = Registry::new(&[unit], |_| Vec::new(), |_| vec!["timers.target.wants".to_owned()]);
    assert!(registry.find(Path::new("/etc/systemd/system/timers.target.wants")).is_some());
}

#[test]
fn things_that_come_later_are_numbered_on_and_only_what_they_change_is_to_be_enrolled() {
    let mut registry = resolved(&["/etc/a/one", "/srv/x"]);
    let before = registry.len();
    let moved = registry.extend(&[file("/etc/a/two"), file("/etc/b")], |_| Vec::new(), |_| Vec::new());
    let mut paths: Vec<_> =
        moved.iter().map(|id| registry.get(*id).unwrap().path.display().to_string()).collect();
    paths.sort();
    // /etc becomes a directory in which a name matters; /, /etc/a and /srv stay what they are.
    assert_eq!(paths, ["/etc", "/etc/a/two", "/etc/b"]);
    for id in &moved {
        registry.resolved(*id, inode(u64::from(*id) + 10));
    }
    assert_eq!(registry.len(), before + 2);
    let etc = registry.find(Path::new("/etc")).unwrap();
    let concerned = registry.concerned(&[etc], Some(OsStr::new("b")), false, false);
    assert_eq!(concerned.direct, [3], "the second of the two that came later");
    let directory = registry.find(Path::new("/etc/a")).unwrap();
    assert_eq!(registry.concerned(&[directory], Some(OsStr::new("two")), false, false).direct, [2]);
    assert_eq!(registry.concerned(&[directory], Some(OsStr::new("one")), false, false).direct, [0]);
    let (_, roles) = registry.enrolment(key(u64::from(etc) + 10).unwrap()).unwrap();
    assert!(roles & ROLE_DIRECTORY != 0);
}
