//! Moves and returns that are killed, or fail, at each of their calls.

use super::*;
use std::process::Command;

/// The variable that names the root and the mode of the process that is killed.
const CHILD: &str = "HOLDFAST_QUARANTINE_CHILD";

fn make(case: &Case) {
    fs::create_dir_all(case.closed("tree/deep")).unwrap();
    fs::write(case.closed("tree/deep/file"), "content").unwrap();
    symlink("/nowhere", case.closed("tree/link")).unwrap();
}

/// Only in the process that [`killed`] starts.
#[test]
fn child() {
    let Ok(text) = std::env::var(CHILD) else { return };
    let (mode, root) = text.rsplit_once(' ').unwrap();
    let case = Case::at(root.into(), mode.ends_with("rename"));
    if mode.starts_with("take") {
        case.take("tree").unwrap().unwrap();
    } else {
        let id = case.items()[0].id.clone();
        case.quarantine.restore(&case.observer, &id).unwrap();
    }
}

/// Runs a process that stops at a call. Returns whether it ended before that call.
fn killed(case: &Case, mode: &str, fault: &str) -> bool {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "quarantine::tests::crash::child", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{mode} {}", case.root.display()))
        .env("HOLDFAST_FAULT", fault)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stderr).into_owned();
    let is_met = text.contains("fault: ");
    assert!(is_met || child.status.success(), "{mode} {fault}: {text}");
    !is_met
}

/// A copy whose times could not be set says so and is complete.
fn without_times(path: &Path) -> Described {
    let mut found = described(path);
    for facts in found.values_mut() {
        facts.3 = 0;
    }
    found
}

/// What is at the path and in the items, and nothing else anywhere.
fn check(case: &Case, expected: &Described, what: &str) {
    case.quarantine.recover(&case.observer).unwrap();
    let items = case.items();
    let at_path = without_times(&case.closed("tree"));
    for item in &items {
        assert_eq!(without_times(&case.object(item)), *expected, "{what}");
        assert_eq!(item.temporary, None, "{what}");
    }
    if items.is_empty() {
        assert_eq!(at_path, *expected, "{what}: it is lost");
    } else {
        assert!(at_path.is_empty() || at_path == *expected, "{what}: half an object: {at_path:?}");
    }
    let names = case.names();
    assert!(names.iter().all(|name| name == "tree"), "{what}: {names:?}");
    let left = fs::read_dir(case.root.join("state/quarantine")).unwrap().count();
    assert_eq!(left, items.len() + 1, "{what}: leftovers in the quarantine");
}

#[test]
fn a_move_that_is_killed_or_fails_at_any_call_loses_nothing_and_leaves_nothing() {
    let mut calls = 0;
    for mode in ["take rename", "take copy", "restore rename", "restore copy"] {
        // Each call is killed. A sample of them fails, because each attempt starts a process.
        for (fault, step) in [("kill", 1), ("EIO", 2), ("ENOSPC", 4)] {
            for number in (1..).step_by(step) {
                let case = Case::new(mode.ends_with("rename"));
                make(&case);
                let expected = without_times(&case.closed("tree"));
                if mode.starts_with("restore") {
                    case.take("tree").unwrap().unwrap();
                }
                let what = format!("{mode}, {fault}:{number}");
                if killed(&case, mode, &format!("{fault}:{number}")) {
                    // A rename back takes no space.
                    let takes_none = mode == "restore rename" && fault == "ENOSPC";
                    assert!(number > 8 || takes_none, "{what}: the fault was never met");
                    check(&case, &expected, &what);
                    let is_moved = mode.starts_with("take");
                    assert_eq!(case.closed("tree").exists(), !is_moved, "{what}");
                    break;
                }
                calls += 1;
                check(&case, &expected, &what);
            }
        }
    }
    assert!(calls > 100, "{calls}");
}
