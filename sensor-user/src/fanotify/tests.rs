//! Real changes and real marks, if this process may set marks.

use super::*;
use crate::clock::SystemClock;
use crate::observation::Observer;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    process::Command,
};
use tempfile::TempDir;

struct Host {
    root: TempDir,
    observer: Arc<Observer>,
    backend: FanotifyBackend,
}

/// A root with a watched directory and file. If fanotify is not allowed, or the file system of the temporary directory has no
/// handles, it prints that and gives `None`.
fn host() -> Option<Host> {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    fs::write(root.path().join("etc/file"), "x").unwrap();
    let observer = Arc::new(Observer::new(root.path()).unwrap());
    let mut backend = match FanotifyBackend::new(Arc::clone(&observer), Arc::new(SystemClock)) {
        Ok(backend) => backend,
        Err(error) => {
            println!("skipped: {error}");
            return None;
        }
    };
    for path in ["/etc", "/etc/file"] {
        match backend.watch(Path::new(path)) {
            Ok(is_new) => assert!(is_new),
            Err(
                error @ FanotifyError::Watch {
                    errno: Errno::EOPNOTSUPP | Errno::ENODEV | Errno::EXDEV, ..
                },
            ) => {
                println!("skipped: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        }
    }
    Some(Host { root, observer, backend })
}

impl Host {
    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    /// The changes as (path, name, operation), after at least one has arrived.
    fn changes(&mut self) -> Vec<(String, Option<String>, Operation)> {
        if !self.backend.has_waiting() {
            let mut ready = [PollFd::new(self.backend.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut ready, PollTimeout::from(10_000_u16)).unwrap(), 1, "no event came");
        }
        let events = self.backend.read().unwrap();
        events
            .into_iter()
            .map(|happening| match happening {
                FanotifyEvent::Change(change) => (
                    change.path.to_str().unwrap().to_owned(),
                    change.name.map(|name| name.to_str().unwrap().to_owned()),
                    change.operation,
                ),
                FanotifyEvent::Lost => panic!("lost"),
            })
            .collect()
    }

    fn saw(&mut self, path: &str, name: Option<&str>, operation: Operation) {
        let changes = self.changes();
        let wanted = (path.to_owned(), name.map(str::to_owned), operation);
        assert!(changes.contains(&wanted), "{wanted:?} not in {changes:?}");
    }
}

#[test]
fn changes_of_a_file_and_of_names_in_a_directory_give_events() {
    let Some(mut host) = host() else { return };
    fs::write(host.at("/etc/file"), "y").unwrap();
    host.saw("/etc/file", None, Operation::Write);
    fs::set_permissions(host.at("/etc/file"), Permissions::from_mode(0o600)).unwrap();
    host.saw("/etc/file", None, Operation::SetAttributes);
    fs::write(host.at("/etc/new"), "").unwrap();
    host.saw("/etc", Some("new"), Operation::Create);
    fs::create_dir(host.at("/etc/sub")).unwrap();
    host.saw("/etc", Some("sub"), Operation::MakeDirectory);
    fs::remove_dir(host.at("/etc/sub")).unwrap();
    host.saw("/etc", Some("sub"), Operation::RemoveDirectory);
    fs::rename(host.at("/etc/new"), host.at("/etc/file")).unwrap();
    let changes = host.changes();
    for (name, operation) in [("new", Operation::Rename), ("file", Operation::RenameOver)] {
        assert!(changes.contains(&("/etc".to_owned(), Some(name.to_owned()), operation)), "{changes:?}");
    }
    fs::set_permissions(host.at("/etc"), Permissions::from_mode(0o700)).unwrap();
    host.saw("/etc", None, Operation::SetAttributes);
    fs::rename(host.at("/etc"), host.at("/moved")).unwrap();
    host.saw("/etc", None, Operation::Rename);
}

#[test]
fn a_write_through_another_hard_link_gives_an_event_for_the_file() {
    let Some(mut host) = host() else { return };
    fs::hard_link(host.at("/etc/file"), host.at("/elsewhere")).unwrap();
    host.backend.read().unwrap();
    fs::write(host.at("/elsewhere"), "z").unwrap();
    host.saw("/etc/file", None, Operation::Write);
}

#[test]
fn each_of_two_watched_paths_to_one_object_has_its_events_and_can_be_unwatched_alone() {
    let Some(mut host) = host() else { return };
    fs::hard_link(host.at("/etc/file"), host.at("/etc/other")).unwrap();
    assert!(host.backend.watch(Path::new("/etc/other")).unwrap());
    host.backend.read().unwrap();
    fs::write(host.at("/etc/file"), "z").unwrap();
    let changes = host.changes();
    for path in ["/etc/file", "/etc/other"] {
        assert!(changes.contains(&(path.to_owned(), None, Operation::Write)), "{path}: {changes:?}");
    }
    host.backend.unwatch(Path::new("/etc/other"));
    fs::write(host.at("/etc/other"), "y").unwrap();
    host.saw("/etc/file", None, Operation::Write);
}

#[test]
fn the_errors_for_a_missing_object_and_for_an_unwatchable_one_differ() {
    let Some(mut host) = host() else { return };
    std::os::unix::fs::symlink("file", host.at("/etc/link")).unwrap();
    for path in ["/etc/none", "/none/at/all", "/etc/file/below", "/etc/link"] {
        assert!(host.backend.watch(Path::new(path)).unwrap_err().is_absence(), "{path}");
    }
    // Every machine has this file system without stable handles.
    let root = Arc::new(Observer::new(Path::new("/")).unwrap());
    let mut backend = FanotifyBackend::new(root, Arc::new(SystemClock)).unwrap();
    match backend.watch(Path::new("/proc/self/status")) {
        Err(error) => assert!(!error.is_absence(), "{error}"),
        Ok(_) => println!("this kernel watches procfs"),
    }
}

#[test]
fn a_new_object_at_a_path_has_events_after_the_path_is_watched_again() {
    let Some(mut host) = host() else { return };
    assert!(!host.backend.watch(Path::new("/etc/file")).unwrap(), "the same object");
    fs::write(host.at("/etc/new"), "new").unwrap();
    fs::rename(host.at("/etc/new"), host.at("/etc/file")).unwrap();
    assert!(host.backend.watch(Path::new("/etc/file")).unwrap(), "another object");
    host.saw("/etc", Some("file"), Operation::RenameOver);
    fs::write(host.at("/etc/file"), "y").unwrap();
    host.saw("/etc/file", None, Operation::Write);
    host.backend.unwatch(Path::new("/etc/file"));
    fs::write(host.at("/etc/file"), "z").unwrap();
    fs::write(host.at("/etc/last"), "").unwrap();
    let changes = host.changes();
    assert!(changes.iter().all(|(path, _, _)| path == "/etc"), "{changes:?}");
}

#[test]
fn an_event_has_the_process_that_made_the_change() {
    let Some(mut host) = host() else { return };
    let mut child =
        Command::new("sh").arg("-c").arg("echo y > \"$0\"").arg(host.at("/etc/file")).spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    let events = host.backend.read().unwrap();
    let writers: Vec<_> = events
        .iter()
        .filter_map(|happening| match happening {
            FanotifyEvent::Change(change) if change.operation == Operation::Write => change.pid,
            _ => None,
        })
        .collect();
    assert_eq!(writers.first(), Some(&pid), "{events:?}");
    assert!(writers.iter().all(|writer| *writer == pid));
}

#[test]
fn an_observation_causes_no_event() {
    let Some(mut host) = host() else { return };
    host.backend.read().unwrap();
    fs::read(host.at("/etc/file")).unwrap();
    fs::read_dir(host.at("/etc")).unwrap().for_each(drop);
    host.observer.open(Path::new("/etc/file")).unwrap();
    assert_eq!(host.backend.read().unwrap(), []);
}

#[test]
fn a_full_queue_is_reported_as_a_loss() {
    let Some(mut host) = host() else { return };
    let limit: u32 = fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(16_384);
    if limit > 200_000 {
        println!("skipped: the queue takes {limit} events");
        return;
    }
    // Different names, so that the kernel merges no events.
    for n in 0..limit + 16 {
        fs::File::create(host.at(&format!("/etc/{n}"))).unwrap();
    }
    let mut lost = false;
    loop {
        let events = host.backend.read().unwrap();
        if events.is_empty() {
            break;
        }
        lost |= events.contains(&FanotifyEvent::Lost);
    }
    assert!(lost);
}

#[test]
fn the_error_for_a_missing_object_names_its_path() {
    let Some(mut host) = host() else { return };
    let error = host.backend.watch(Path::new("/etc/none")).unwrap_err();
    assert!(error.to_string().contains("/etc/none"), "{error}");
}
