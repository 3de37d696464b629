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
    let ids = Ids::default();
    let host = case.context(&ids);
    fs::create_dir(case.at("/state")).unwrap();
    let quarantine = Quarantine::open(&case.at("/state")).unwrap();
    let rule = ClosedBy {
        rule: "/etc/systemd/system/".into(),
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
    host.move_undeclared(Path::new("/etc/systemd/system"), &closed, how).unwrap()
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
