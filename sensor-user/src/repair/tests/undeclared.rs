//! Undeclared names that a revert moves, and those that stay.

use super::*;
use crate::quarantine::{Cause, OwnFiles, Quarantine};
use sensor_model::{
    expectation::{ClosedBy, ClosedDirectoryExpectation},
    link_exceptions::{LinkException, LinkExceptions},
    name_patterns::NamePatterns,
};
use std::time::Duration;

/// Moves the undeclared names of the directory of units, in which nothing is declared and these links are excepted.
fn moved(case: &Case, except_links: LinkExceptions) -> closed::Moved {
    let closed = ClosedDirectoryExpectation {
        names: Vec::new(),
        suffix: None,
        ssh_keys: false,
        except: NamePatterns::default(),
        except_links,
    };
    quarantine(case, "/etc/systemd/system/", |host, how| {
        host.move_undeclared(Path::new("/etc/systemd/system"), &closed, how).unwrap()
    })
}

/// Calls a function with a quarantine that gets what the rule of this path moves.
fn quarantine<T>(
    case: &Case,
    rule: &str,
    moves: impl FnOnce(&RepairContext<'_>, closed::Move<'_>) -> T,
) -> T {
    let ids = Ids::default();
    let host = case.context(&ids);
    fs::create_dir_all(case.at("/state")).unwrap();
    let quarantine = Quarantine::open(&case.at("/state")).unwrap();
    let rule = ClosedBy {
        rule: rule.into(),
        policy: "closed.yaml".into(),
        packages_unread: false,
        image_unindexed: false,
    };
    let how = closed::Move {
        quarantine: &quarantine,
        own: &OwnFiles::default(),
        cause: Cause { time: "2026-11-25T19:30:51.000000000Z", actors: &[], rule: &rule },
        writers: &[],
        time: Duration::MAX,
    };
    moves(&host, how)
}

/// The paths of what was moved.
fn paths(moved: &closed::Moved) -> Vec<&str> {
    moved.items.iter().map(|item| item.path.as_str()).collect()
}

#[test]
fn an_excepted_link_stays_and_a_link_to_another_target_is_moved() {
    let case = Case::new();
    let unit = "/usr/lib/systemd/system/dbus-broker.service";
    symlink(unit, case.at("/etc/systemd/system/dbus-a.service")).unwrap();
    symlink("/tmp/a.service", case.at("/etc/systemd/system/dbus-b.service")).unwrap();
    fs::write(case.at("/etc/systemd/system/dbus-c.service"), "[Service]").unwrap();
    let link =
        LinkException { name: "dbus-*".to_owned(), target: "/usr/lib/systemd/system/*.service".to_owned() };
    let moved = moved(&case, LinkExceptions::new(vec![link]).unwrap());
    assert!(moved.errors.is_empty() && !moved.is_more, "{moved:?}");
    assert_eq!(paths(&moved), ["/etc/systemd/system/dbus-b.service", "/etc/systemd/system/dbus-c.service"]);
    assert_eq!(fs::read_link(case.at("/etc/systemd/system/dbus-a.service")).unwrap(), Path::new(unit));
}

#[test]
fn names_that_are_too_large_to_be_moved_keep_no_other_name_in_place() {
    let case = Case::new();
    for number in 0..200 {
        let file = fs::File::create(case.at(&format!("/etc/systemd/system/large-{number}"))).unwrap();
        file.set_len(65 << 20).unwrap();
    }
    fs::write(case.at("/etc/systemd/system/small.service"), "[Service]").unwrap();
    let moved = moved(&case, LinkExceptions::default());
    assert_eq!(paths(&moved), ["/etc/systemd/system/small.service"]);
    assert_eq!((moved.errors.len(), moved.is_more), (200, false));
}

/// Moves what is at a path where nothing may be.
fn moved_at(case: &Case, path: &str) -> Result<closed::Moved, RepairError> {
    quarantine(case, path, |host, how| host.move_unexpected(Path::new(path), how))
}

#[test]
fn an_object_of_each_type_but_a_directory_is_moved_from_a_path_where_nothing_may_be() {
    let case = Case::new();
    let path = case.at("/etc/rc.local");
    let makes: [(&str, &dyn Fn()); 3] = [
        ("regular", &|| fs::write(&path, "x").unwrap()),
        ("symlink", &|| symlink("/etc", &path).unwrap()),
        ("fifo", &|| mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap()),
    ];
    for (kind, make) in makes {
        make();
        let moved = moved_at(&case, "/etc/rc.local").unwrap();
        assert!(moved.errors.is_empty() && paths(&moved) == ["/etc/rc.local"], "{kind}: {moved:?}");
        assert_eq!((moved.items[0].kind.as_str(), &*moved.items[0].rule), (kind, "/etc/rc.local"));
        assert!(fs::symlink_metadata(&path).is_err());
    }
    // Nothing is there, and a directory above may be missing.
    for path in ["/etc/rc.local", "/etc/missing/rc.local"] {
        let moved = moved_at(&case, path).unwrap();
        assert!(moved.items.is_empty() && moved.errors.is_empty(), "{moved:?}");
    }
}

#[test]
fn a_directory_at_a_path_where_nothing_may_be_stays_and_the_reason_names_the_key_for_directories() {
    let case = Case::new();
    fs::create_dir(case.at("/etc/sudoers.d")).unwrap();
    fs::write(case.at("/etc/sudoers.d/alice"), "").unwrap();
    let error = moved_at(&case, "/etc/sudoers.d").unwrap_err().to_string();
    assert!(
        error.starts_with("/etc/sudoers.d: a directory is there") && error.contains("closed: true"),
        "{error}"
    );
    assert!(case.at("/etc/sudoers.d/alice").exists());
}

#[test]
fn a_repair_does_not_remove_what_is_at_a_path_where_nothing_may_be() {
    let mut case = Case::new();
    fs::write(case.at("/etc/rc.local"), "x").unwrap();
    let rule = ClosedBy {
        rule: "/etc/rc.local".into(),
        policy: "closed.yaml".into(),
        packages_unread: false,
        image_unindexed: false,
    };
    let expectation = Expectation {
        thing: Thing::file("/etc/rc.local"),
        expected: Expected::Absent,
        ssh_keys: false,
        label: None,
        source: ExpectationSource::ClosedBy(rule),
    };
    let Case { runtime, restorer, rendered, .. } = &mut case;
    let result = runtime.block_on(restorer.restore(rendered, &expectation, &Ids::default()));
    let error = result.unwrap_err().to_string();
    assert!(error.contains("holdfast adopt") && error.contains("remove it"), "{error}");
    assert!(case.at("/etc/rc.local").exists());
}
