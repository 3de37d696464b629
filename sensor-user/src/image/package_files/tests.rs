use super::*;
use crate::image::{Images, Indexed, PACKAGES, expected, index_packages};
use nix::{sys::stat::Mode, unistd::mkfifo};
use rustix::fs::{XattrFlags, setxattr};
use sensor_model::{
    drift_policy::{DriftPolicy, DriftPolicyFile},
    expectation::Expected,
    image::{Known, Strength},
};
use std::{
    fs::{self, Permissions},
    os::unix::fs::{FileExt as _, PermissionsExt as _, symlink},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

const CONTENT: &str = "program of the package";

/// A host with one package of dpkg, and a state directory.
struct Host {
    directory: tempfile::TempDir,
}

impl Host {
    /// The package has these files, each with [`CONTENT`], and the configuration file `/etc/a.conf`. Nothing but the files exists.
    fn new(files: &[&str]) -> Self {
        let host = Self { directory: tempfile::tempdir().unwrap() };
        let sum = |content: &str| hex::encode(Md5::digest(content));
        host.write(
            "/var/lib/dpkg/status",
            &format!(
                "Package: a\nStatus: install ok installed\nArchitecture: all\nVersion: 1\nConffiles:\n /etc/a.conf {}\n",
                sum("as shipped")
            ),
        );
        host.write("/etc/a.conf", "as shipped");
        let list = files.join("\n");
        host.write("/var/lib/dpkg/info/a.list", &format!("/.\n/etc/a.conf\n{list}"));
        let sums: Vec<String> =
            files.iter().map(|file| format!("{}  {}\n", sum(CONTENT), &file[1..])).collect();
        host.write("/var/lib/dpkg/info/a.md5sums", &sums.concat());
        for file in files {
            host.write(file, CONTENT);
        }
        host
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join("root").join(&path[1..])
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    fn observer(&self) -> Observer {
        Observer::new(&self.directory.path().join("root")).unwrap()
    }

    fn index(&self) -> (Indexed, UnmatchedFiles) {
        index_packages(&self.observer(), &Images::of(&self.state()), &mut |_, _| {}).unwrap()
    }

    /// What the index has at a path, and what a verdict about it rests on.
    fn entry(&self, path: &str) -> (ImageEntry, Strength) {
        let index = Images::of(&self.state()).named(PACKAGES).unwrap().unwrap();
        let entry = index.find(path.as_bytes()).unwrap().unwrap();
        let strength = index.meta().strength(&entry);
        (entry, strength)
    }

    /// The watched paths of a rule for everything, with the SHA-256 and the mode that are expected.
    fn watched(&self) -> Vec<(String, Option<[u8; 32]>, u32)> {
        let rules = "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: test}\nspec:\n  rules:\n  \
                     - {path: /, image: true, action: observe}\n";
        let file = DriftPolicyFile::parse("test.yaml", rules.as_bytes()).unwrap();
        let policy = DriftPolicy::merge(&[file]).unwrap();
        let found = expected(&self.observer(), &policy, &self.state()).into_iter();
        found
            .filter_map(|one| match &one.expected {
                Expected::File(file) => {
                    assert_eq!(one.source.strength(), Some(Strength::PackageMd5));
                    let path = one.thing.path().to_string_lossy().into_owned();
                    Some((path, file.content.map(|content| content.sha256), file.mode))
                }
                _ => None,
            })
            .collect()
    }
}

fn is_md5_alone(entry: &ImageEntry) -> bool {
    entry.md5.is_some() && entry.sha256.is_none() && entry.known == Known::Content
}

/// Path, reason, and whether the entry is that of the index before.
fn listed(unmatched: &UnmatchedFiles) -> Vec<(&str, UnmatchedReason, bool)> {
    unmatched.first.iter().map(|file| (file.path.as_str(), file.reason, file.kept)).collect()
}

#[test]
fn a_file_with_the_md5_of_its_package_is_watched_by_sha256_and_mode_and_its_strength_stays_the_md5() {
    let host = Host::new(&["/usr/bin/tool"]);
    fs::set_permissions(host.at("/usr/bin/tool"), Permissions::from_mode(0o4711)).unwrap();
    let (_, unmatched) = host.index();
    assert_eq!(unmatched, UnmatchedFiles::default());
    let (entry, strength) = host.entry("/usr/bin/tool");
    let stat = nix::sys::stat::stat(&host.at("/usr/bin/tool")).unwrap();
    let sha256: [u8; 32] = Sha256::digest(CONTENT).into();
    assert_eq!((entry.sha256, entry.size), (Some(sha256), CONTENT.len() as u64));
    assert_eq!((entry.mode, entry.uid, entry.gid), (0o4711, stat.st_uid, stat.st_gid));
    assert_eq!((entry.known, strength), (Known::All, Strength::PackageMd5));
    assert!(entry.md5.is_some() && entry.xattrs.is_empty());
    assert_eq!(host.watched(), [("/usr/bin/tool".to_owned(), Some(sha256), 0o4711)]);
}

#[test]
fn a_file_without_the_md5_of_its_package_keeps_it_alone_is_counted_and_is_not_watched() {
    let files = ["/usr/bin/dir", "/usr/bin/edited", "/usr/bin/gone", "/usr/bin/link", "/usr/bin/pipe"];
    let host = Host::new(&files);
    host.write("/usr/bin/other", CONTENT);
    host.write("/usr/bin/edited", "evil");
    for name in ["/usr/bin/dir", "/usr/bin/gone", "/usr/bin/link", "/usr/bin/pipe"] {
        fs::remove_file(host.at(name)).unwrap();
    }
    fs::create_dir(host.at("/usr/bin/dir")).unwrap();
    symlink("other", host.at("/usr/bin/link")).unwrap();
    // A reader that opened it would wait for a writer.
    mkfifo(&host.at("/usr/bin/pipe"), Mode::S_IRWXU).unwrap();
    let (_, unmatched) = host.index();
    let found = [
        ("/usr/bin/dir", UnmatchedReason::Type, false),
        ("/usr/bin/edited", UnmatchedReason::Content, false),
        ("/usr/bin/gone", UnmatchedReason::Missing, false),
        ("/usr/bin/link", UnmatchedReason::Type, false),
        ("/usr/bin/pipe", UnmatchedReason::Type, false),
    ];
    assert_eq!(listed(&unmatched), found);
    assert_eq!((unmatched.count, unmatched.unwatched()), (5, 5));
    assert_eq!(unmatched.first[0].package.text(), "a 1 (all)");
    for path in files {
        let (entry, strength) = host.entry(path);
        assert!(is_md5_alone(&entry) && strength == Strength::PackageMd5, "{path}: {entry:?}");
    }
    assert_eq!(host.watched(), []);
}

#[test]
fn a_configuration_file_is_neither_read_nor_counted() {
    let host = Host::new(&["/usr/bin/tool"]);
    for content in ["as shipped", "of the admin"] {
        host.write("/etc/a.conf", content);
        assert_eq!(host.index().1.count, 0);
        let (entry, _) = host.entry("/etc/a.conf");
        assert!(entry.config && is_md5_alone(&entry), "{entry:?}");
    }
}

#[test]
fn a_missing_file_that_dpkg_does_not_unpack_is_not_counted() {
    let host = Host::new(&["/usr/share/doc/a/README", "/usr/share/doc/a/NEWS"]);
    host.write("/etc/dpkg/dpkg.cfg", "path-exclude=/usr/share/doc/*\n");
    fs::remove_file(host.at("/usr/share/doc/a/README")).unwrap();
    assert_eq!(host.index().1.count, 0);
    assert!(is_md5_alone(&host.entry("/usr/share/doc/a/README").0));
    let (kept, _) = host.entry("/usr/share/doc/a/NEWS");
    assert!(kept.may_be_missing && kept.sha256.is_some(), "{kept:?}");
}

#[test]
fn the_same_state_has_the_same_digest_and_another_mode_has_another_one() {
    let host = Host::new(&["/usr/bin/tool", "/usr/bin/edited"]);
    host.write("/usr/bin/edited", "evil");
    let digest = || host.index().0.meta.digest;
    let first = digest();
    assert_eq!(digest(), first);
    fs::set_permissions(host.at("/usr/bin/tool"), Permissions::from_mode(0o6755)).unwrap();
    assert_ne!(digest(), first);
    assert_eq!(host.entry("/usr/bin/tool").0.mode, 0o6755, "a new index takes the present mode");
}

#[test]
fn a_file_that_was_changed_since_the_last_index_stays_watched_by_it_until_its_package_has_another_md5() {
    let host = Host::new(&["/usr/bin/tool"]);
    let (indexed, _) = host.index();
    let entry = host.entry("/usr/bin/tool").0;
    host.write("/usr/bin/tool", "evil");
    fs::set_permissions(host.at("/usr/bin/tool"), Permissions::from_mode(0o4755)).unwrap();
    for _ in 0..2 {
        let (again, unmatched) = host.index();
        assert_eq!(listed(&unmatched), [("/usr/bin/tool", UnmatchedReason::Content, true)]);
        assert_eq!((unmatched.kept, unmatched.unwatched()), (1, 0));
        assert_eq!(
            (host.entry("/usr/bin/tool").0, &again.meta.digest),
            (entry.clone(), &indexed.meta.digest)
        );
    }
    assert_eq!(host.watched(), [("/usr/bin/tool".to_owned(), entry.sha256, entry.mode)]);
    let other = format!("{}  usr/bin/tool\n", hex::encode(Md5::digest("a newer program")));
    host.write("/var/lib/dpkg/info/a.md5sums", &other);
    assert_eq!(listed(&host.index().1), [("/usr/bin/tool", UnmatchedReason::Content, false)]);
    assert!(is_md5_alone(&host.entry("/usr/bin/tool").0));
}

#[test]
fn capabilities_are_those_that_the_file_had() {
    let host = Host::new(&["/usr/bin/ping"]);
    let value = hex::decode("0100000200200000000000000000000000000000").unwrap();
    setxattr(host.at("/usr/bin/ping"), xattr::CAPABILITY, &value, XattrFlags::empty()).unwrap();
    setxattr(host.at("/usr/bin/ping"), "user.note", b"x", XattrFlags::empty()).unwrap();
    host.index();
    let expected = [(xattr::CAPABILITY.to_owned(), "cap_net_raw+ep".to_owned())];
    assert_eq!(host.entry("/usr/bin/ping").0.xattrs, expected);
}

#[test]
fn a_file_larger_than_any_of_a_package_is_not_read() {
    let host = Host::new(&["/usr/bin/tool"]);
    let file = fs::OpenOptions::new().write(true).open(host.at("/usr/bin/tool")).unwrap();
    file.set_len(LARGEST + 1).unwrap();
    assert_eq!(listed(&host.index().1), [("/usr/bin/tool", UnmatchedReason::Large, false)]);
}

/// Sets its flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How often a file is read that another thread changes all the time.
const TRIES: usize = 20;

#[test]
fn a_file_that_changes_each_time_that_it_is_read_gives_no_entry() {
    let host = Host::new(&["/usr/bin/tool"]);
    host.write("/usr/bin/tool", &"x".repeat(16 << 20));
    let observer = host.observer();
    let tool = Path::new("/usr/bin/tool");
    assert!(read(&observer, tool).is_ok());
    let is_done = AtomicBool::new(false);
    let found = thread::scope(|scope| {
        // Also if a reading panics: the scope waits for its thread.
        let end = Ends(&is_done);
        scope.spawn(|| {
            let file = fs::OpenOptions::new().write(true).open(host.at("/usr/bin/tool")).unwrap();
            while !is_done.load(Ordering::Relaxed) {
                // The same content: nothing shows the change but the time.
                file.write_all_at(b"x", 0).unwrap();
            }
        });
        // On a busy machine the writer may have no time during one of the readings.
        let found = (0..TRIES).map(|_| read(&observer, tool)).find(Result::is_err);
        drop(end);
        found
    });
    assert_eq!(found, Some(Err(UnmatchedReason::Changing)));
}

#[test]
fn the_progress_counts_the_files_that_are_read() {
    let host = Host::new(&["/usr/bin/a", "/usr/bin/b"]);
    let mut shown = Vec::new();
    let images = Images::of(&host.state());
    index_packages(&host.observer(), &images, &mut |done, files| shown.push((done, files))).unwrap();
    assert_eq!(shown, [(0, 2), (1, 2)], "without the configuration file");
}
