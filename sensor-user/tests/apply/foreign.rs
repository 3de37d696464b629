//! Somebody else writes to a target of an apply, between any two of its calls.

use crate::{
    faults::{Ends, every, met},
    world::{Said, Snapshot, World},
};
use nix::{
    sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    unistd::Pid,
};
use rustix::process::{Signal, kill_process};
use std::{
    fs,
    path::Path,
    process::{Child, Stdio},
};

const FOREIGN: &str = "somebody else's";

/// A file that changes, one that comes and one that goes.
const TARGETS: [&str; 3] = ["/etc/app/mode", "/etc/new/deep/er/file", "/etc/goes/deep/file"];

#[derive(Debug, Clone, Copy)]
enum Deed {
    Write,
    RenameOver,
    Remove,
}

impl Deed {
    /// Does it. `false` where that is not possible now.
    fn perform(self, world: &World, target: &str) -> bool {
        let path = world.at(target);
        if !path.parent().is_some_and(Path::is_dir) {
            return false;
        }
        match self {
            Self::Write => fs::write(&path, FOREIGN).unwrap(),
            Self::RenameOver => {
                let beside = path.with_file_name("somebody-else");
                fs::write(&beside, FOREIGN).unwrap();
                fs::rename(&beside, &path).unwrap();
            }
            Self::Remove => return fs::remove_file(&path).is_ok(),
        }
        true
    }

    /// What is at the path because of it.
    fn leaves(self) -> Option<&'static str> {
        (!matches!(self, Self::Remove)).then_some(FOREIGN)
    }
}

/// Waits until it stands still; `None` when it ended without.
fn stopped(child: &Child) -> Option<Pid> {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    // The exit status of a child that has ended is left for its owner.
    let flags = WaitPidFlag::WUNTRACED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    match waitid(Id::Pid(pid), flags).unwrap() {
        WaitStatus::Stopped(..) => {
            // Taken, so that the next wait is for something else.
            waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
            Some(pid)
        }
        _ => None,
    }
}

/// Everything but the path, its directories, and what a name beside it would be.
fn others(mut snapshot: Snapshot, target: &str) -> Snapshot {
    snapshot.retain(|path, _| !Path::new(target).starts_with(path));
    snapshot
}

fn text(said: &Said) -> String {
    format!("{}{}", said.out, said.err)
}

#[test]
fn what_somebody_else_writes_between_any_two_calls_stays_and_everything_else_is_all_old_or_all_new() {
    let ends = Ends::new();
    let calls = every(|number| {
        let turn = usize::try_from(number).unwrap();
        let deed = [Deed::Write, Deed::RenameOver, Deed::Remove][turn % 3];
        // Each call meets each of them at some of its neighbours.
        let target = TARGETS[(turn / 3) % 3];
        let world = World::old();
        let child = world
            .command(&["new"], &format!("stop:{number}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut performed = false;
        if let Some(pid) = stopped(&child) {
            performed = deed.perform(&world, target);
            kill_process(rustix::process::Pid::from_raw(pid.as_raw()).unwrap(), Signal::CONT).unwrap();
        }
        let said = Said::of(child.wait_with_output().unwrap());
        if !met(&said) {
            assert_eq!(said.code, Some(0), "{}", text(&said));
            return false;
        }
        let what = format!("{deed:?} {target} at call {number}: {}", text(&said));
        assert!(!world.has_journal(), "{what}");
        let is_new = world.current().as_deref() == Some("generations/2/config");
        let wanted = if is_new { &ends.new } else { &ends.old };
        let found = world.snapshot();
        assert_eq!(others(found.clone(), target), others(wanted.clone(), target), "{what}");
        if performed {
            let there = fs::read_to_string(world.at(target)).ok();
            // A name that somebody removed before it was there for good is one that is still to be made.
            let is_removal = deed.leaves().is_none();
            let made = is_removal && found.get(Path::new(target)) == wanted.get(Path::new(target));
            assert!(there.as_deref() == deed.leaves() || made, "what somebody else wrote is lost: {what}");
            assert!(is_new || made || text(&said).contains(target), "it does not say which: {what}");
        } else {
            assert_eq!(found, *wanted, "{what}");
        }
        true
    });
    println!("stopped at each of {calls} calls");
    assert!(calls > 100, "{calls}");
}
