//! The apply is killed, or its calls fail, at every single writing system call.

use crate::world::{RunResult, Snapshot, World};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

/// The states before and after the apply, without the day of the password, which is the same today.
pub(crate) struct ApplyStates {
    pub(crate) old: Snapshot,
    pub(crate) new: Snapshot,
}

impl ApplyStates {
    pub(crate) fn new() -> Self {
        let world = World::old();
        let old = world.snapshot();
        let said = world.apply(&["new"], "");
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        Self { old, new: world.snapshot() }
    }

    /// The host is all old or all new, by the current config.
    fn check(&self, world: &World, what: &str) {
        assert!(!world.has_journal(), "{what}: a journal is left");
        let is_new = world.current().as_deref() == Some("generations/2/config");
        let wanted = if is_new { &self.new } else { &self.old };
        let found = world.snapshot();
        if found != *wanted {
            let differ: Vec<_> = wanted
                .iter()
                .filter(|(path, text)| found.get(*path) != Some(text))
                .map(|(path, _)| path)
                .chain(found.keys().filter(|path| !wanted.contains_key(*path)))
                .collect();
            panic!("{what}: neither old nor new (current is new: {is_new}): {differ:?}");
        }
        assert!(
            fs::read_dir(world.state().join("apply/contents")).unwrap().count() == 0,
            "{what}: contents are left"
        );
    }
}

/// Runs every number until one at which no fault happens; returns their number.
pub(crate) fn every(check: impl Fn(u64) -> bool + Sync) -> u64 {
    let next = AtomicU64::new(1);
    let last = AtomicU64::new(u64::MAX);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number > last.load(Ordering::Relaxed) {
                        return;
                    }
                    if !check(number) {
                        last.fetch_min(number, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    last.load(Ordering::Relaxed) - 1
}

pub(crate) fn met(said: &RunResult) -> bool {
    said.err.contains("fault: ")
}

#[test]
fn killed_at_any_call_the_next_start_finishes_or_restores_everything() {
    let ends = ApplyStates::new();
    let calls = every(|number| {
        let world = World::old();
        let said = world.apply(&["new"], &format!("kill:{number}"));
        if !met(&said) {
            assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
            return false;
        }
        assert_eq!(said.code, None, "killed by a signal");
        let began = world.has_journal();
        if number % 16 == 1 {
            let left = (world.snapshot(), world.has_journal());
            assert_eq!(world.run(&["history"], "").code, Some(0), "{number}");
            assert_eq!(
                (world.snapshot(), world.has_journal()),
                left,
                "reading the history changed something"
            );
        }
        let said = world.resume("");
        assert!(said.code.is_some(), "{number}");
        ends.check(&world, &format!("killed at call {number}: {}{}", said.out, said.err));
        // The node's state agrees, also if the process died before its first note of the state.
        let stood = if began && world.current().as_deref() != Some("generations/2/config") {
            "state Degraded: "
        } else {
            "state Done, "
        };
        let history = world.run(&["history"], "").out;
        assert!(history.starts_with(stood), "killed at call {number}: {history}");
        assert!(!said.err.contains("cannot happen"), "killed at call {number}: {}", said.err);
        // The config can be applied afterwards, whatever was left.
        if number % 16 == 0 {
            assert_eq!(world.apply(&["new"], "").code, Some(0), "{number}");
        }
        true
    });
    println!("killed at each of {calls} calls");
    assert!(calls > 100, "{calls}");
}

#[test]
fn killed_again_during_the_recovery_the_apply_still_ends() {
    let ends = ApplyStates::new();
    // A sample of both, so that each part of the first apply meets each part of the second.
    let mut deaths = 0;
    for first in (20..400).step_by(37) {
        for second in (1..200).step_by(17) {
            let world = World::old();
            if !met(&world.apply(&["new"], &format!("kill:{first}"))) {
                return;
            }
            let said = world.resume(&format!("kill:{second}"));
            deaths += 1;
            world.resume("");
            ends.check(&world, &format!("killed at call {first} and {second}"));
            if !met(&said) {
                break;
            }
        }
    }
    assert!(deaths > 20, "{deaths}");
}

#[test]
fn a_call_that_fails_once_leads_to_all_old_or_all_new() {
    let ends = ApplyStates::new();
    let calls = every(|number| {
        let world = World::old();
        let said = world.apply(&["new"], &format!("EIO:{number}"));
        if !met(&said) {
            return false;
        }
        // The next start ends the apply.
        if world.has_journal() {
            world.resume("");
        } else if said.code != Some(0) {
            assert!(!said.err.is_empty() || !said.out.is_empty(), "{number}: it does not say why");
        }
        if world.state().join("apply/contents").exists()
            && fs::read_dir(world.state().join("apply/contents")).unwrap().count() > 0
        {
            world.apply(&["old"], "");
        }
        let found = world.snapshot();
        assert!(found == ends.old || found == ends.new, "EIO at call {number}: {}{}", said.out, said.err);
        true
    });
    println!("EIO at each of {calls} calls");
    assert!(calls > 100, "{calls}");
}

#[test]
fn a_disk_that_is_full_from_any_call_on_leaves_all_old_and_space_lets_the_apply_continue() {
    let ends = ApplyStates::new();
    let calls = every(|number| {
        let world = World::old();
        let said = world.apply(&["new"], &format!("ENOSPC:{number}"));
        if !met(&said) {
            return false;
        }
        if world.has_journal() {
            // Whatever happened while the disk was full, the apply ends afterwards.
            world.resume("");
        }
        let found = world.snapshot();
        assert!(
            found == ends.old || found == ends.new,
            "full from call {number} on: {}{}",
            said.out,
            said.err
        );
        if number % 16 == 0 {
            assert_eq!(world.apply(&["new"], "").code, Some(0), "{number}");
        }
        true
    });
    println!("full from each of {calls} calls on");
    assert!(calls > 50, "{calls}");
}

#[test]
fn a_config_file_of_any_name_is_read_again_after_a_death_and_by_the_next_apply() {
    for name in ["new.mc", "new.yaml.bak", "NEW.YAML"] {
        let deaths = AtomicU64::new(0);
        let apply = |world: &World, fault: &str| {
            fs::copy(world.config_file("new"), world.state().with_file_name(name)).unwrap();
            let file = world.state().with_file_name(name);
            world.run(&["apply", file.to_str().unwrap(), "--no-acts"], fault)
        };
        for number in (40..).step_by(29) {
            let world = World::old();
            let said = apply(&world, &format!("kill:{number}"));
            if !met(&said) {
                assert_eq!(said.code, Some(0), "{name}: {}{}", said.out, said.err);
                break;
            }
            deaths.fetch_add(1, Ordering::Relaxed);
            let said = world.resume("");
            assert!(matches!(said.code, Some(0 | 3)), "{name} {number}: {}{}", said.out, said.err);
            assert!(!world.has_journal(), "{name} {number}: {}{}", said.out, said.err);
            let said = apply(&world, "");
            assert_eq!(said.code, Some(0), "{name} {number}: {}{}", said.out, said.err);
            let said = world.apply(&["old"], "");
            assert_eq!(said.code, Some(0), "{name} {number}: {}{}", said.out, said.err);
        }
        assert!(deaths.into_inner() > 3, "{name}");
    }
}

#[test]
fn the_state_of_an_apply_that_was_killed_is_purged_only_after_its_end() {
    let world = (60..)
        .step_by(23)
        .map(|number| {
            let world = World::old();
            assert!(met(&world.apply(&["new"], &format!("kill:{number}"))), "no call leaves a journal");
            world
        })
        .find(World::has_journal)
        .unwrap();
    let detach = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.args(["detach", "--purge", "--state"]).arg(world.state());
        command.arg("--pins").arg(world.at("/no-pins")).arg("--run").arg(world.at("/no-run"));
        RunResult::of(command.output().unwrap())
    };
    let said = detach();
    assert_eq!(said.code, Some(3), "{}", said.out);
    assert!(said.err.contains("holdfast apply --resume"), "{}", said.err);
    assert!(world.has_journal());
    world.resume("");
    assert!(!world.has_journal());
    let said = detach();
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(!world.state().exists(), "{}", said.out);
}

fn lines(journal: &[u8]) -> usize {
    journal.split_inclusive(|byte| *byte == b'\n').count()
}

#[test]
fn an_apply_whose_config_is_lost_rolls_back() {
    let ends = ApplyStates::new();
    let mut met_both = [false; 2];
    for number in (60..).step_by(23) {
        let world = World::old();
        if !met(&world.apply(&["new"], &format!("kill:{number}"))) {
            break;
        }
        let Ok(journal) = fs::read(world.state().join("apply/journal")) else { continue };
        let is_written = lines(&journal) > 1;
        if String::from_utf8_lossy(&journal).contains("\"record\":\"done\"") {
            continue;
        }
        met_both[usize::from(is_written)] = true;
        for entry in fs::read_dir(world.state().join("apply/generations/2/config")).unwrap() {
            fs::write(entry.unwrap().path(), "no config").unwrap();
        }
        let said = world.resume("");
        assert!(!world.has_journal(), "{number}: {}{}", said.out, said.err);
        assert_eq!(world.current().as_deref(), Some("generations/1/config"), "{number}");
        assert_eq!(world.snapshot(), ends.old, "{number}: {}{}", said.out, said.err);
    }
    assert_eq!(met_both, [true; 2], "killed before and after everything was written");
}

#[test]
fn a_byte_that_changed_in_the_journal_while_files_are_written_stops_everything_and_names_the_line() {
    let mut cases = 0;
    for number in (100..240).step_by(35) {
        let world = World::old();
        assert!(met(&world.apply(&["new"], &format!("kill:{number}"))));
        let path = world.state().join("apply/journal");
        let Ok(journal) = fs::read(&path) else { continue };
        if lines(&journal) != 1 {
            continue;
        }
        let (left, contents) = (world.snapshot(), world.contents());
        for at in [0, 63, 64, 65, journal.len() / 2, journal.len() - 2, journal.len() - 1] {
            let mut changed = journal.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            let said = world.resume("");
            assert_eq!(said.code, Some(3), "byte {at}: {}{}", said.out, said.err);
            assert!(said.err.contains("apply journal, line 1"), "byte {at}: {}", said.err);
            assert_eq!(fs::read(&path).unwrap(), changed, "byte {at}");
            assert_eq!((world.snapshot(), world.contents()), (left.clone(), contents), "byte {at}");
        }
        fs::write(&path, &journal).unwrap();
        world.resume("");
        assert!(!world.has_journal());
        cases += 1;
    }
    assert!(cases > 1, "{cases}");
}

#[test]
fn the_lock_file_of_the_shadow_file_is_made_by_a_call_that_can_fail() {
    let world = World::old();
    let lock = world.at("/etc/.pwd.lock");
    fs::remove_file(&lock).unwrap();
    let before = world.snapshot();
    let refused = (1..20).find_map(|number| {
        let said = world.apply(&["new"], &format!("EIO:{number}"));
        assert!(met(&said), "{}{}", said.out, said.err);
        said.err.contains("/etc/.pwd.lock: open: ").then_some(said)
    });
    assert_eq!(refused.expect("a call makes the file").code, Some(3));
    assert!(!world.has_journal() && world.snapshot() == before);
    assert_eq!(world.apply(&["new"], "").code, Some(0));
    assert_eq!(fs::metadata(&lock).unwrap().permissions().mode() & 0o7777, 0o600);
}

#[test]
fn the_store_of_a_first_apply_is_made_by_calls_that_can_fail_and_the_next_apply_completes_it() {
    for fault in ["kill", "EIO", "ENOSPC"] {
        let mut calls: Vec<String> = Vec::new();
        for number in 1.. {
            let world = World::new();
            let before = world.snapshot();
            let said = world.apply(&["old"], &format!("{fault}:{number}"));
            assert!(met(&said), "{fault} {number}: {}{}", said.out, said.err);
            let call = said.err.lines().find(|line| line.starts_with("fault: ")).unwrap();
            // The state directory, its four directories and the lock file are made before all other calls.
            let is_made = ["(mkdir)", "(create)"].iter().any(|made| call.ends_with(made));
            if !is_made || world.state().join("apply/lock").exists() {
                break;
            }
            assert_eq!(said.code, (fault != "kill").then_some(3), "{fault} {number}: {}", said.err);
            assert!(world.snapshot() == before && world.current().is_none(), "{fault} {number}");
            calls.push(call.to_owned());
            assert_eq!(world.apply(&["old"], "").code, Some(0), "{fault} {number}");
            assert_eq!(world.current().as_deref(), Some("generations/1/config"), "{fault} {number}");
        }
        assert_eq!(calls.len(), 6, "{fault}: {calls:?}");
    }
}
