//! Another process writes to a target of an apply, between any two of its calls.

use crate::{
    faults::{ApplyStates, every, met},
    world::{RunResult, Snapshot, World},
};
use nix::{
    sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    unistd::Pid,
};
use rustix::{
    fs::{AtFlags, CWD, OFlags},
    process::{Signal, kill_process},
};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::atomic::{AtomicU64, Ordering},
};

const FOREIGN: &str = "another process";

/// A file that changes, one that is added and one that is removed.
const TARGETS: [&str; 3] = ["/etc/app/mode", "/etc/new/deep/er/file", "/etc/goes/deep/file"];

#[derive(Debug, Clone, Copy)]
enum Deed {
    Write,
    RenameOver,
    Remove,
}

impl Deed {
    /// Makes the change. `false` if it is not possible now.
    fn perform(self, world: &World, target: &str) -> bool {
        let path = world.at(target);
        if !path.parent().is_some_and(Path::is_dir) {
            return false;
        }
        match self {
            Self::Write => fs::write(&path, FOREIGN).unwrap(),
            Self::RenameOver => {
                let beside = path.with_file_name("foreign");
                fs::write(&beside, FOREIGN).unwrap();
                fs::rename(&beside, &path).unwrap();
            }
            Self::Remove => return fs::remove_file(&path).is_ok(),
        }
        true
    }

    /// What the path holds because of it.
    fn leaves(self) -> Option<&'static str> {
        (!matches!(self, Self::Remove)).then_some(FOREIGN)
    }
}

/// Waits until the process is stopped; `None` if it ended before.
fn stopped(child: &Child) -> Option<Pid> {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    // `WNOWAIT` leaves the exit status of an ended child for its owner.
    let flags = WaitPidFlag::WUNTRACED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    match waitid(Id::Pid(pid), flags).unwrap() {
        WaitStatus::Stopped(..) => {
            // Reaps the stop, so that the next wait returns another event.
            waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
            Some(pid)
        }
        _ => None,
    }
}

/// Everything except the path, its directories, and temporary names beside it.
fn others(mut snapshot: Snapshot, target: &str) -> Snapshot {
    snapshot.retain(|path, _| !Path::new(target).starts_with(path));
    snapshot
}

/// Output of an apply in which another process made a change right before a call, if the apply reached that call.
fn met_at(world: &World, config: &str, call: u64, meanwhile: impl FnOnce()) -> RunResult {
    let child = world
        .command(&[config], &format!("stop:{call}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if let Some(pid) = stopped(&child) {
        meanwhile();
        kill_process(rustix::process::Pid::from_raw(pid.as_raw()).unwrap(), Signal::CONT).unwrap();
    }
    RunResult::of(child.wait_with_output().unwrap())
}

fn text(said: &RunResult) -> String {
    format!("{}{}", said.out, said.err)
}

#[test]
fn a_change_of_another_process_between_any_two_calls_stays_and_all_other_paths_are_old_or_new() {
    let ends = ApplyStates::new();
    let calls = every(|number| {
        let turn = usize::try_from(number).unwrap();
        let deed = [Deed::Write, Deed::RenameOver, Deed::Remove][turn % 3];
        // Each kind of change meets each target at some neighbouring calls.
        let target = TARGETS[(turn / 3) % 3];
        let world = World::old();
        let mut performed = false;
        let said = met_at(&world, "new", number, || performed = deed.perform(&world, target));
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
            // If another process removes a name before it is final, the apply still has to create it.
            let is_removal = deed.leaves().is_none();
            let made = is_removal && found.get(Path::new(target)) == wanted.get(Path::new(target));
            assert!(there.as_deref() == deed.leaves() || made, "the other process's change is lost: {what}");
            assert!(is_new || made || text(&said).contains(target), "it does not say which: {what}");
        } else {
            assert_eq!(found, *wanted, "{what}");
        }
        true
    });
    println!("stopped at each of {calls} calls");
    assert!(calls > 100, "{calls}");
}

/// Calls that set attributes. The kernel has no call that does so only if they have expected values.
const SETTING: [&str; 4] = ["(fchown)", "(fchmod)", "(fsetxattr)", "(fremovexattr)"];

#[test]
fn a_directory_that_another_process_changes_is_left_and_named() {
    const TARGET: &str = "/etc/app";
    let ends = ApplyStates::new();
    let (left, overwritten) = (AtomicU64::new(0), AtomicU64::new(0));
    let calls = every(|number| {
        let is_mode = number % 2 == 0;
        let world = World::old();
        let path = world.at(TARGET);
        let said = met_at(&world, "new", number, || {
            if is_mode {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o711)).unwrap();
            } else {
                rustix::fs::setxattr(&path, "user.x", b"", rustix::fs::XattrFlags::empty()).unwrap();
            }
        });
        if !met(&said) {
            assert_eq!(said.code, Some(0), "{}", text(&said));
            return false;
        }
        let what = format!("mode {is_mode} at call {number}: {}", text(&said));
        assert!(!world.has_journal(), "{what}");
        let is_new = world.current().as_deref() == Some("generations/2/config");
        let wanted = if is_new { &ends.new } else { &ends.old };
        let besides = |mut snapshot: Snapshot| {
            snapshot.remove(Path::new(TARGET));
            snapshot
        };
        assert_eq!(besides(world.snapshot()), besides(wanted.clone()), "{what}");
        let is_there = if is_mode {
            fs::metadata(&path).unwrap().mode() & 0o7777 == 0o711
        } else {
            rustix::fs::getxattr(&path, "user.x", &mut [0; 8][..]) == Ok(0)
        };
        if is_there {
            left.fetch_add(1, Ordering::Relaxed);
            assert!(is_new || text(&said).contains(TARGET), "it does not say which: {what}");
        } else {
            overwritten.fetch_add(1, Ordering::Relaxed);
            assert!(SETTING.iter().any(|call| said.err.contains(call)), "it is lost: {what}");
        }
        true
    });
    println!("stopped at each of {calls} calls: {left:?} left, {overwritten:?} overwritten");
    assert!(overwritten.into_inner() < 8 && left.into_inner() > 100);
}

/// The owner of a home tries to make root write elsewhere.
fn leads_elsewhere(world: &World, directory: &str) -> bool {
    let path = world.at(directory);
    let swapped = fs::rename(&path, world.at("/home/core/away")).is_ok();
    // A user may also be faster than the directory.
    let there = path.parent().is_some_and(Path::is_dir) && symlink("/etc/x", &path).is_ok();
    swapped || there
}

#[test]
fn a_link_that_a_user_makes_between_any_two_calls_leads_no_key_to_another_directory() {
    const HOME: &str = "/home/core";
    let swaps = AtomicU64::new(0);
    let calls = every(|number| {
        let directory = [".ssh", ".ssh/authorized_keys.d"][usize::try_from(number).unwrap() % 2];
        let world = World::new();
        chown(world.at(HOME), Some(1000), Some(1000)).unwrap();
        fs::create_dir_all(world.at("/etc/x/authorized_keys.d")).unwrap();
        // Also if a name existed for a moment: its owner could have written to it, or kept it, meanwhile.
        let times = |path: &str| {
            let found = fs::symlink_metadata(world.at(path)).unwrap();
            (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec())
        };
        let roots = ["/etc/x", "/etc/x/authorized_keys.d"];
        let before = roots.map(times);
        let said = met_at(&world, "keys", number, || {
            let swapped = leads_elsewhere(&world, &format!("{HOME}/{directory}"));
            swaps.fetch_add(u64::from(swapped), Ordering::Relaxed);
        });
        let what = format!("{directory} at call {number}: {}", text(&said));
        assert_eq!(roots.map(times), before, "{what}");
        if !met(&said) {
            assert_eq!(said.code, Some(0), "{what}");
            return false;
        }
        true
    });
    let swaps = swaps.into_inner();
    println!("a link at each of {calls} calls, {swaps} of them in the way");
    assert!(swaps > 20, "{swaps}");
}

/// A link, a directory and a file that root creates for a user in the user's own directory.
const GIFTS: &str = "
    storage:
      links: [{path: /home/core/link, target: /etc/elsewhere, user: {id: 1000}, group: {id: 1000}}]
      directories: [{path: /home/core/made, mode: 448, user: {id: 1000}, group: {id: 1000}}]
      files: [{path: /home/core/file, mode: 420, user: {id: 1000}, group: {id: 1000}, contents: {source: 'data:,x'}}]
";

/// An object of root's that a user puts in the place of one that root is creating.
#[derive(Debug, Clone, Copy)]
enum Bait {
    /// A file of root's in the user's directory, renamed.
    File,
    /// The same for a directory with something in it.
    Directory,
    /// Another name of root's file elsewhere.
    NameOfFile,
    /// Another name of root's link elsewhere, with the target of the declared one.
    NameOfLink,
}

impl Bait {
    const ALL: [Self; 4] = [Self::File, Self::Directory, Self::NameOfFile, Self::NameOfLink];

    fn path(self, world: &World) -> PathBuf {
        world.at(match self {
            Self::File => "/home/core/secret",
            Self::Directory => "/home/core/secrets",
            Self::NameOfFile => "/etc/secret",
            Self::NameOfLink => "/etc/link",
        })
    }

    fn lay(self, world: &World) {
        let path = self.path(world);
        match self {
            Self::NameOfLink => symlink("/etc/elsewhere", path).unwrap(),
            Self::Directory => {
                fs::create_dir(&path).unwrap();
                fs::write(path.join("in"), "root's").unwrap();
            }
            Self::File | Self::NameOfFile => {
                fs::write(&path, "root's").unwrap();
                fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
            }
        }
    }

    /// Puts it in the place of every temporary name in the user's directory.
    fn swap(self, world: &World) -> bool {
        let home = world.at("/home/core");
        let names: Vec<PathBuf> = fs::read_dir(&home)
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(".holdfast-apply-"))
            .map(|entry| entry.path())
            .collect();
        for (number, name) in names.iter().enumerate() {
            fs::rename(name, home.join(format!("away-{number}"))).unwrap();
            match self {
                Self::File | Self::Directory => {
                    // There is only one of it.
                    fs::rename(self.path(world), name).unwrap();
                    break;
                }
                Self::NameOfFile | Self::NameOfLink => {
                    rustix::fs::linkat(CWD, self.path(world), CWD, name, AtFlags::empty()).unwrap();
                }
            }
        }
        !names.is_empty()
    }
}

#[test]
fn a_user_who_replaces_a_new_object_between_any_two_calls_gets_no_file_of_root() {
    for bait in Bait::ALL {
        let swaps = AtomicU64::new(0);
        let calls = every(|number| {
            let world = World::new();
            world.config("gifts", GIFTS);
            chown(world.at("/home/core"), Some(1000), Some(1000)).unwrap();
            bait.lay(&world);
            // Whatever happens to its names.
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let handle = rustix::fs::open(bait.path(&world), flags, rustix::fs::Mode::empty()).unwrap();
            let owner = || {
                let stat = rustix::fs::fstat(&handle).unwrap();
                (stat.st_uid, stat.st_gid, stat.st_mode)
            };
            let before = owner();
            let said = met_at(&world, "gifts", number, || {
                swaps.fetch_add(u64::from(bait.swap(&world)), Ordering::Relaxed);
            });
            let what = format!("{bait:?} at call {number}: {}", text(&said));
            assert_eq!(owner(), before, "{what}");
            if !met(&said) {
                assert_eq!(said.code, Some(0), "{what}");
                return false;
            }
            true
        });
        let swaps = swaps.into_inner();
        println!("{bait:?} put in the place of something at {swaps} of {calls} calls");
        assert!(swaps > 10, "{swaps}");
    }
}

#[test]
fn while_an_apply_is_held_no_other_begins_and_a_dry_run_only_reports_it() {
    let world = World::old();
    assert_eq!(world.apply(&["new"], "").code, Some(0));
    // In the middle of its writes.
    let child =
        world.command(&["old"], "stop:200").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = stopped(&child).expect("more than two hundred calls");
    assert!(world.has_journal());
    let before = (world.snapshot(), world.contents());
    let nothing = world.config_file("nothing").display().to_string();
    let others: [&[&str]; 4] =
        [&["apply", &nothing], &["apply", "--resume"], &["rollback"], &["apply", &nothing, "--force"]];
    for arguments in others {
        let said = world.run(&[arguments, &["--no-acts"]].concat(), "");
        assert_eq!(said.code, Some(3), "{arguments:?}: {}", text(&said));
        assert!(said.err.contains("another apply is at work"), "{arguments:?}: {}", said.err);
    }
    for arguments in [&["apply", &nothing, "--dry-run"][..], &["rollback", "--dry-run"]] {
        let said = world.run(arguments, "");
        assert_eq!(said.code, Some(1), "{arguments:?}: {}", text(&said));
        assert!(text(&said).contains("number 3 was interrupted"), "{arguments:?}: {}", text(&said));
    }
    assert_eq!((world.snapshot(), world.contents()), before, "another command wrote beside it");
    kill_process(rustix::process::Pid::from_raw(pid.as_raw()).unwrap(), Signal::CONT).unwrap();
    let said = RunResult::of(child.wait_with_output().unwrap());
    assert_eq!(said.code, Some(0), "{}", text(&said));
    assert!(!world.has_journal());
}
