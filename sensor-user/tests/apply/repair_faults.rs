//! A repair killed, or its calls failing, at every single system call that writes.

use crate::{
    faults::{every, met},
    world::{Snapshot, World},
};
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

const OTHER_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAqDlmSXCDxZYgp7FmqGdVRTgEDgNPZQSADQBy8tGzRb other\n";

/// A host that differs from its config in each way that a repair restores.
fn drifted() -> World {
    let world = World::old();
    drift(&world);
    world
}

fn drift(world: &World) {
    let at = |path: &str| world.at(path);
    let set_mode =
        |path: &str, mode| fs::set_permissions(at(path), fs::Permissions::from_mode(mode)).unwrap();
    world.write("/etc/app/changes", "not what is declared");
    fs::remove_file(at("/etc/app/stays")).unwrap();
    set_mode("/etc/app", 0o700);
    set_mode("/etc/app/mode", 0o600);
    fs::remove_file(at("/etc/leads")).unwrap();
    symlink("elsewhere", at("/etc/leads")).unwrap();
    fs::remove_file(at("/etc/becomes-link")).unwrap();
    fs::create_dir(at("/etc/becomes-link")).unwrap();
    world.write("/etc/systemd/system/on.service.d/99-undeclared.conf", "[Service]");
    fs::remove_file(at("/etc/systemd/system/multi-user.target.wants/on.service")).unwrap();
    fs::remove_file(at("/etc/systemd/system/never.service")).unwrap();
    world.write("/home/core/.ssh/authorized_keys", OTHER_KEY);
}

fn repair(world: &World, fault: &str) -> crate::world::RunResult {
    world.run(&["repair", "--all", "--yes"], fault)
}

/// One repair restores everything, also the other names of a file that gets a new inode.
fn repair_all(world: &World, what: &str) {
    let said = repair(world, "");
    assert_eq!(said.code, Some(0), "{what}, and then {}{}", said.out, said.err);
    let said = world.run(&["check"], "");
    assert_eq!(said.code, Some(0), "{what}, and then {}{}", said.out, said.err);
}

/// The object at each path, without temporary names and hard links; and whether there are temporary names.
fn state(world: &World) -> (Snapshot, bool) {
    let all = world.snapshot();
    let count = all.len();
    let is_temporary = |name: &str| name.starts_with(".holdfast-");
    let known = all
        .into_iter()
        .filter(|(path, _)| !path.file_name().and_then(|name| name.to_str()).is_some_and(is_temporary));
    let state: Snapshot = known
        .map(|(path, text)| {
            let text = text.split(" by the names ").next().unwrap_or_default().to_owned();
            (path, text)
        })
        .collect();
    let has_temporary = state.len() < count;
    (state, has_temporary)
}

#[test]
fn a_repair_that_dies_or_fails_at_any_call_leaves_each_path_as_it_was_or_as_declared() {
    let world = drifted();
    let before = state(&world).0;
    repair_all(&world, "no fault");
    let (whole, after) = (world.snapshot(), state(&world).0);
    assert_ne!(before, after);
    for fault in ["kill", "EIO", "ENOSPC"] {
        let calls = every(|number| {
            let world = drifted();
            let said = repair(&world, &format!("{fault}:{number}"));
            if !met(&said) {
                assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
                return false;
            }
            let what = format!("{fault} at call {number}: {}{}", said.out, said.err);
            let (found, has_temporary) = state(&world);
            assert!(fault == "kill" || !has_temporary, "a temporary name is left: {what}");
            for path in found.keys().chain(before.keys()) {
                let is = found.get(path);
                let allowed = [before.get(path), after.get(path)];
                assert!(allowed.contains(&is), "{}: {is:?} is none of {allowed:?}: {what}", path.display());
            }
            repair_all(&world, &what);
            assert!(state(&world).0 == after, "{what}");
            if state(&world).1 {
                // A repair removes temporary names only beside things that differ.
                drift(&world);
                repair_all(&world, &what);
            }
            assert!(world.snapshot() == whole, "{what}");
            true
        });
        println!("{fault} at each of {calls} calls");
        assert!(calls > 20, "{calls}");
    }
}

#[test]
fn the_other_names_of_a_repaired_file_are_made_anew_by_the_same_repair() {
    for asked in [&["--all"][..], &["/etc/app/changes"]] {
        let world = World::old();
        let whole = world.snapshot();
        fs::remove_file(world.at("/etc/app/changes")).unwrap();
        world.write("/etc/app/changes", "not what is declared");
        fs::remove_file(world.at("/etc/app/hard")).unwrap();
        fs::hard_link(world.at("/etc/app/changes"), world.at("/etc/app/hard")).unwrap();
        let said = world.run(&[&["repair", "--yes"], asked].concat(), "");
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        assert!(said.out.contains("/etc/app/hard: hard link made"), "{}", said.out);
        assert!(world.snapshot() == whole, "{asked:?}");
    }
}

/// Names that repairs of a process left that has ended. No process has a number above the kernel's limit.
const LEFT: [&str; 3] = [
    "/etc/app/.holdfast-4194305-0.new",
    "/etc/systemd/system/.holdfast-4194305-1.new",
    "/etc/systemd/system/multi-user.target.wants/.holdfast-4194305-2.new",
];

#[test]
fn the_next_repair_removes_what_a_killed_one_left_also_if_it_is_killed_itself() {
    let world = drifted();
    repair_all(&world, "no fault");
    let whole = world.snapshot();
    for fault in ["kill", "EIO"] {
        let calls = every(|number| {
            let world = drifted();
            for path in LEFT {
                world.write(path, "half");
            }
            let said = repair(&world, &format!("{fault}:{number}"));
            let was_met = met(&said);
            assert!(was_met || world.snapshot() == whole, "{}{}", said.out, said.err);
            repair_all(&world, &format!("{fault} at call {number}"));
            drift(&world);
            repair_all(&world, &format!("{fault} at call {number}"));
            assert!(world.snapshot() == whole, "{fault} at call {number}");
            was_met
        });
        assert!(calls >= LEFT.len() as u64, "{calls}");
    }
}
