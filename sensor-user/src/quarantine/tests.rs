//! Objects of all kinds, moved by a rename and by a copy.

#[cfg(feature = "fault-injection")]
mod crash;
mod hostile;

use super::{
    items::Locked,
    limits::{MOST_DEEP, MOST_ITEMS, MOVE_BYTES, MOVE_OBJECTS},
    *,
};
use crate::{disk::Place, observation::Observer};
use nix::{
    sys::stat::{Mode, SFlag, makedev, mknod},
    unistd::mkfifo,
};
use sensor_model::{expectation::ClosedBy, record::Actor};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    os::unix::{
        ffi::OsStringExt as _,
        fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};
use tempfile::TempDir;

const TIME: &str = "2026-11-25T19:30:51.000000000Z";

/// The rule that closes the directory.
fn rule() -> ClosedBy {
    ClosedBy {
        rule: "/etc/closed/".into(),
        policy: "closed.yaml".into(),
        packages_unread: false,
        image_unindexed: false,
    }
}

struct Case {
    root: PathBuf,
    _directory: Option<TempDir>,
    observer: Observer,
    quarantine: Quarantine,
}

impl Case {
    fn new(renames: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("etc/closed")).unwrap();
        fs::create_dir_all(directory.path().join("state")).unwrap();
        let root = directory.path().to_owned();
        Self { _directory: Some(directory), ..Self::at(root, renames) }
    }

    fn at(root: PathBuf, renames: bool) -> Self {
        let observer = Observer::new(&root).unwrap();
        let mut quarantine = Quarantine::open(&root.join("state")).unwrap();
        quarantine.renames = renames;
        Self { root, _directory: None, observer, quarantine }
    }

    fn closed(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.root.join("etc/closed").join(name.as_ref())
    }

    fn take(&self, name: impl AsRef<OsStr>) -> Result<Option<Manifest>, QuarantineError> {
        self.take_beside(name, &OwnFiles::default())
    }

    fn take_beside(
        &self,
        name: impl AsRef<OsStr>,
        own: &OwnFiles,
    ) -> Result<Option<Manifest>, QuarantineError> {
        self.take_by(self.quarantine.begin_moves(&self.observer)?, name, own)
    }

    fn take_by(
        &self,
        session: Moves<'_>,
        name: impl AsRef<OsStr>,
        own: &OwnFiles,
    ) -> Result<Option<Manifest>, QuarantineError> {
        let actors = [Actor { pid: 7, argv: vec!["touch".to_owned()], ..Actor::default() }];
        self.take_of(session, name, own, &actors)
    }

    fn take_of(
        &self,
        mut session: Moves<'_>,
        name: impl AsRef<OsStr>,
        own: &OwnFiles,
        actors: &[Actor],
    ) -> Result<Option<Manifest>, QuarantineError> {
        let path = Path::new("/etc/closed").join(name.as_ref());
        let place = Place::find(self.observer.root(), &path).unwrap().unwrap();
        let cause = Cause { time: TIME, actors, rule: &rule() };
        session.take(&place, own, cause)
    }

    fn items(&self) -> Vec<Manifest> {
        let (items, broken) = self.quarantine.items().unwrap();
        assert!(broken.is_empty(), "{broken:?}");
        items
    }

    /// The object of an item.
    fn object(&self, item: &Manifest) -> PathBuf {
        self.root.join("state/quarantine").join(&item.id).join("object")
    }

    fn names(&self) -> Vec<OsString> {
        let mut names: Vec<_> =
            fs::read_dir(self.closed("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    fn refusal(&self, name: &str) -> String {
        let before = described(&self.closed(name));
        let error = self.take(name).unwrap_err().to_string();
        assert_eq!(described(&self.closed(name)), before, "it is as it was");
        assert_eq!(self.items(), []);
        assert_eq!(self.names().len(), 1, "no temporary name is left");
        error
    }
}

/// Everything that a move has to keep: type, mode, owner, times, content, target, number, attribute.
type Described = BTreeMap<PathBuf, (u32, u32, u32, i64, u64, Vec<u8>)>;

fn described(path: &Path) -> Described {
    fn add(path: &Path, relative: &Path, found: &mut Described) {
        let Ok(metadata) = fs::symlink_metadata(path) else { return };
        let mut content = Vec::new();
        if metadata.is_file() && metadata.len() < 1 << 20 {
            content = fs::read(path).unwrap();
        } else if metadata.is_symlink() {
            content = fs::read_link(path).unwrap().into_os_string().into_vec();
        } else if metadata.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                let name = entry.unwrap().file_name();
                add(&path.join(&name), &relative.join(&name), found);
            }
        }
        let mut value = [0; 64];
        let length = rustix::fs::lgetxattr(path, "user.test", &mut value).unwrap_or(0);
        content.extend_from_slice(&value[..length]);
        let times = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
        let facts = (metadata.mode(), metadata.uid(), metadata.gid(), times, metadata.rdev(), content);
        found.insert(relative.to_owned(), facts);
    }
    let mut found = Described::new();
    add(path, Path::new("."), &mut found);
    found
}

/// Makes an object of each type, each with an owner and a mode of its own.
fn make_all(case: &Case) -> Vec<OsString> {
    let mut names: Vec<OsString> =
        ["file", "tree", "link", "fifo", "socket", "device"].iter().map(OsString::from).collect();
    names.push(OsString::from_vec(b"\xff\n \\".to_vec()));
    names.push(OsString::from("n".repeat(255)));
    fs::write(case.closed("file"), "content").unwrap();
    chown(case.closed("file"), Some(12), Some(34)).unwrap();
    fs::set_permissions(case.closed("file"), fs::Permissions::from_mode(0o4755)).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    // Not every file system has attributes.
    let _ = rustix::fs::setxattr(case.closed("file"), "user.test", b"value", flags);
    fs::create_dir_all(case.closed("tree/deep/er")).unwrap();
    fs::write(case.closed("tree/deep/file"), vec![b'x'; 200_000]).unwrap();
    symlink("../../..", case.closed("tree/deep/up")).unwrap();
    fs::set_permissions(case.closed("tree/deep"), fs::Permissions::from_mode(0o500)).unwrap();
    symlink("/nowhere", case.closed("link")).unwrap();
    mkfifo(&case.closed("fifo"), Mode::from_bits_truncate(0o640)).unwrap();
    drop(UnixListener::bind(case.closed("socket")).unwrap());
    mknod(&case.closed("device"), SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(1, 3)).unwrap();
    for name in &names[6..] {
        fs::write(case.closed(name), "any name").unwrap();
    }
    names
}

#[test]
fn a_session_without_directories_moves_everything_else() {
    let host = Case::new(true);
    fs::create_dir(host.closed("directory")).unwrap();
    fs::write(host.closed("file"), "").unwrap();
    let take = |name: &str| {
        let session = host.quarantine.begin_moves(&host.observer).unwrap().without_directories();
        host.take_by(session, name, &OwnFiles::default())
    };
    assert!(take("directory").is_err());
    assert!(take("file").unwrap().is_some());
    assert_eq!(host.names(), ["directory"]);
}

#[test]
fn an_object_of_any_type_and_name_is_moved_as_it_is_and_put_back_as_it_was() {
    for renames in [true, false] {
        let case = Case::new(renames);
        let names = make_all(&case);
        let before: Vec<Described> = names.iter().map(|name| described(&case.closed(name))).collect();
        let mut items = Vec::new();
        for (name, before) in names.iter().zip(&before) {
            let item = case.take(name).unwrap().unwrap();
            assert!(!case.closed(name).is_symlink() && !case.closed(name).exists());
            assert_eq!(described(&case.object(&item)), *before, "{name:?}");
            assert_eq!(item.copied, !renames);
            assert_eq!(item.actors[0].argv, ["touch"]);
            assert_eq!((item.rule.as_str(), item.policy.as_str()), ("/etc/closed/", "closed.yaml"));
            assert_eq!(item.original().unwrap(), Path::new("/etc/closed").join(name));
            items.push(item);
        }
        assert_eq!(case.names(), [""; 0]);
        assert_eq!(case.items().len(), names.len());
        let file = &items[0];
        assert_eq!((file.mode.as_str(), file.uid, file.gid, file.size), ("4755", 12, 34, 7));
        assert_eq!(
            file.sha256.as_deref(),
            Some("ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73")
        );
        assert_eq!((items[1].objects, items[1].size, items[1].sha256.as_deref()), (5, 200_000, None));
        assert_eq!(items[2].target.as_deref(), Some("/nowhere"));
        assert_eq!(items[5].device, Some([1, 3]));
        assert_eq!(items[6].path, "/etc/closed/\\xff\\x0a \\\\");
        let state = fs::metadata(case.root.join("state/quarantine")).unwrap();
        assert_eq!(state.mode() & 0o7777, 0o700, "nobody else reaches a setuid file in it");
        for ((name, before), item) in names.iter().zip(&before).zip(&items) {
            case.quarantine.restore(&case.observer, &item.id).unwrap();
            assert_eq!(described(&case.closed(name)), *before, "{name:?}");
        }
        assert_eq!(case.items(), []);
        assert_eq!(case.names().len(), names.len(), "no temporary name is left");
    }
}

#[test]
fn a_link_is_moved_and_never_followed() {
    for renames in [true, false] {
        let case = Case::new(renames);
        fs::create_dir(case.root.join("kept")).unwrap();
        fs::write(case.root.join("kept/file"), "kept").unwrap();
        symlink(case.root.join("kept"), case.closed("link")).unwrap();
        fs::create_dir(case.closed("tree")).unwrap();
        symlink(case.root.join("kept"), case.closed("tree/link")).unwrap();
        for name in ["link", "tree"] {
            let item = case.take(name).unwrap().unwrap();
            case.quarantine.remove(&case.observer, &item.id).unwrap();
        }
        assert_eq!(fs::read_to_string(case.root.join("kept/file")).unwrap(), "kept");
        assert_eq!(case.items(), []);
    }
}

#[test]
fn a_name_that_is_gone_makes_no_item() {
    for renames in [true, false] {
        let case = Case::new(renames);
        assert_eq!(case.take("none").unwrap(), None);
        assert_eq!(case.items(), []);
    }
}

#[test]
fn what_is_larger_than_a_move_may_be_stays_with_a_reason() {
    for renames in [true, false] {
        let case = Case::new(renames);
        fs::File::create(case.closed("large")).unwrap().set_len(MOVE_BYTES + 1).unwrap();
        assert!(case.refusal("large").contains("bytes, which are the limit of one move"));
        fs::remove_file(case.closed("large")).unwrap();
        fs::create_dir(case.closed("many")).unwrap();
        for number in 0..MOVE_OBJECTS {
            fs::write(case.closed(format!("many/{number}")), "").unwrap();
        }
        assert!(case.refusal("many").contains("objects, which are the limit of one move"));
        fs::remove_file(case.closed("many/0")).unwrap();
        case.take("many").unwrap().unwrap();
        let mut deep = case.closed("deep");
        for _ in 0..=MOST_DEEP {
            deep.push("d");
        }
        fs::create_dir_all(deep).unwrap();
        let case = Case { quarantine: Case::at(case.root.clone(), renames).quarantine, ..case };
        let error = case.take("deep").unwrap_err().to_string();
        assert!(error.contains("nested more than"), "{error}");
        assert_eq!((case.items().len(), case.names().len()), (1, 1));
    }
}

#[test]
fn a_full_quarantine_refuses_until_an_item_is_removed() {
    let case = Case::new(true);
    fs::write(case.closed("first"), "").unwrap();
    let first = case.take("first").unwrap().unwrap();
    // Items by number, with the manifest of the first.
    let directory = case.root.join("state/quarantine");
    for number in 1..MOST_ITEMS {
        let item = directory.join(format!("20200101-000000-{number}"));
        fs::create_dir(&item).unwrap();
        fs::copy(directory.join(&first.id).join("manifest.json"), item.join("manifest.json")).unwrap();
        fs::write(item.join("object"), "").unwrap();
    }
    fs::write(case.closed("one more"), "").unwrap();
    let error = case.take("one more").unwrap_err().to_string();
    assert!(error.starts_with("/etc/closed/one more: the quarantine is full"), "{error}");
    assert!(case.closed("one more").exists());
    case.quarantine.remove(&case.observer, "20200101-000000-1").unwrap();
    case.take("one more").unwrap().unwrap();
}

#[test]
fn files_of_holdfast_itself_stay() {
    let case = Case::new(true);
    fs::create_dir_all(case.closed("lib/holdfast")).unwrap();
    let own = OwnFiles::of([case.closed("lib/holdfast/quarantine").as_path()]);
    let error = case.take_beside("lib", &own).unwrap_err().to_string();
    assert!(error.contains("Holdfast's own files"), "{error}");
    assert!(case.closed("lib/holdfast").exists());
}

#[test]
fn an_item_is_put_back_only_where_nothing_is() {
    for renames in [true, false] {
        let case = Case::new(renames);
        fs::write(case.closed("file"), "moved").unwrap();
        let item = case.take("file").unwrap().unwrap();
        fs::write(case.closed("file"), "new").unwrap();
        let error = case.quarantine.restore(&case.observer, &item.id).unwrap_err().to_string();
        assert_eq!(error, "/etc/closed/file: something is there; move it away first");
        fs::remove_dir_all(case.closed("")).unwrap();
        let error = case.quarantine.restore(&case.observer, &item.id).unwrap_err().to_string();
        assert_eq!(error, "/etc/closed/file: its directory is missing; make it first");
        assert_eq!(fs::read_to_string(case.object(&item)).unwrap(), "moved");
        for id in ["", ".", "..", "lock", "20200101-000000-9", "../quarantine", "/etc"] {
            let error = case.quarantine.restore(&case.observer, id).unwrap_err();
            assert!(error.is_input(), "{id}: {error}");
        }
    }
}

#[test]
fn one_process_at_a_time_uses_the_quarantine() {
    let case = Case::new(true);
    fs::write(case.closed("file"), "").unwrap();
    let locked: Locked<'_> = case.quarantine.lock().unwrap();
    let other = Case::at(case.root.clone(), true);
    assert!(other.take("file").unwrap_err().to_string().contains("another process of Holdfast"));
    drop(locked);
    other.take("file").unwrap().unwrap();
}

#[test]
fn the_manifest_tells_of_other_names_of_a_file() {
    let case = Case::new(true);
    fs::write(case.root.join("other"), "").unwrap();
    fs::hard_link(case.root.join("other"), case.closed("file")).unwrap();
    assert_eq!(case.take("file").unwrap().unwrap().links, 2);
}

#[test]
fn an_object_that_is_exchanged_all_the_time_is_never_lost() {
    for renames in [true, false] {
        let case = Case::new(renames);
        let (path, beside) = (case.closed("file"), case.root.join("etc/beside"));
        fs::write(case.root.join("kept"), "kept").unwrap();
        let kept = case.root.join("kept");
        let attacker = std::thread::spawn(move || {
            for number in 0..300 {
                if number % 3 == 0 {
                    symlink(&kept, &beside).unwrap();
                } else {
                    fs::write(&beside, number.to_string()).unwrap();
                }
                fs::rename(&beside, &path).unwrap();
            }
        });
        let mut last = None;
        while !attacker.is_finished() {
            last = case.take("file").unwrap().or(last);
            if case.items().len() > MOST_ITEMS / 2 {
                break;
            }
        }
        attacker.join().unwrap();
        last = case.take("file").unwrap().or(last);
        let last = last.unwrap();
        assert_eq!(fs::read_to_string(case.object(&last)).unwrap(), "299");
        assert_eq!(last.sha256.as_deref().map(str::len), Some(64));
        assert_eq!(fs::read_to_string(case.root.join("kept")).unwrap(), "kept");
        assert_eq!(case.names(), [""; 0]);
    }
}

#[test]
fn a_device_node_that_cannot_be_copied_stays_and_the_error_names_the_capability() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    // Capabilities belong to threads.
    let without = || {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(rustix::thread::CapabilitySet::MKNOD);
        rustix::thread::set_capabilities(None, sets).unwrap();
        let case = Case::new(false);
        mkfifo(&case.closed("pipe"), Mode::S_IRUSR).unwrap();
        assert!(case.take("pipe").unwrap().is_some(), "a pipe needs no capability");
        fs::remove_dir_all(case.root.join("state/quarantine")).unwrap();
        let case = Case::at(case.root.clone(), false);
        make_device(&case.closed("null"));
        assert!(case.refusal("null").contains("it lacks CAP_MKNOD"));
        fs::remove_file(case.closed("null")).unwrap();
        fs::create_dir_all(case.closed("tree/deep")).unwrap();
        make_device(&case.closed("tree/deep/null"));
        fs::write(case.closed("tree/file"), "kept").unwrap();
        let error = case.refusal("tree");
        assert!(error.starts_with("/etc/closed/tree: ") && error.contains("Nothing was moved"), "{error}");
    };
    std::thread::spawn(without).join().unwrap();
}

/// Makes a device node with the rights of the process, which this thread may have given up.
fn make_device(path: &Path) {
    let path = path.to_owned();
    let mut sets = rustix::thread::capabilities(None).unwrap();
    let given_up = sets;
    sets.effective.insert(rustix::thread::CapabilitySet::MKNOD);
    rustix::thread::set_capabilities(None, sets).unwrap();
    mknod(&path, SFlag::S_IFCHR, Mode::S_IRUSR, makedev(1, 3)).unwrap();
    rustix::thread::set_capabilities(None, given_up).unwrap();
}
