//! Targets for the parsers of [`crate::host`].
//!
//! In: any bytes. Out: nothing; a target panics if a property does not hold.

use crate::{
    expectations,
    host::{
        accounts::Accounts,
        btf::{Btf, Field},
        fanotify as events,
        install::Install,
        mountinfo,
        stat::Stat,
    },
    os::hierarchy::{self, HIERARCHIES},
    rpm::{header, sqlite, sqlite_log::SqliteLog},
};
use std::{collections::BTreeSet, os::unix::ffi::OsStrExt as _, path::Path};

/// A mount table: a mount point that is escaped again is read as the same path.
pub fn mountinfo(data: &[u8]) {
    let found: Vec<_> = mountinfo::mounts(data).collect();
    assert!(found.len() <= data.split(|byte| *byte == b'\n').count());
    for mount in &found {
        assert!(mount.point.is_absolute(), "{}", mount.point.display());
        let mut line = b"1 0 0:1 / ".to_vec();
        for byte in mount.point.as_os_str().as_bytes() {
            match byte {
                b' ' | b'\t' | b'\n' | b'\\' => line.extend(format!("\\{byte:03o}").into_bytes()),
                other => line.push(*other),
            }
        }
        line.extend(b" rw - tmpfs tmpfs rw");
        let again: Vec<_> = mountinfo::mounts(&line).map(|mount| mount.point).collect();
        assert_eq!(again.as_slice(), std::slice::from_ref(&mount.point));
    }
    // A valid line is read, whatever comes before it in the table.
    let mut table = data.to_vec();
    table.extend(b"\n9 1 0:9 / /etc/last rw - tmpfs tmpfs rw\n");
    assert!(mountinfo::mounts(&table).last().is_some_and(|mount| mount.point.ends_with("last")));
    for path in HIERARCHIES.map(Path::new) {
        for cover in hierarchy::covers(data, path) {
            assert!(!cover.summary().is_empty() && cover.text(path).contains(&*path.to_string_lossy()));
        }
    }
}

/// A `/proc/PID/stat`: no name shifts the fields.
pub fn process_stat(data: &[u8]) {
    if let Some(stat) = Stat::parse(data) {
        assert!(!stat.shows_executions() || !stat.addresses.contains(&0));
    }
    let name = String::from_utf8_lossy(data);
    let text = format!("42 ({name}) S 7 42 42 34816 42 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987 0 0");
    let whole = Stat::parse(text.as_bytes());
    assert_eq!(whole.as_ref().map(|stat| (stat.parent, stat.start, stat.terminal)), Some((7, 987, 34816)));
    assert_eq!(whole.map(|stat| stat.comm).as_deref(), Some(&*name));
}

/// Bytes of a fanotify read: no event exceeds them, names are valid, and one more event after them is read.
pub fn fanotify(data: &[u8]) {
    const BYTES: usize = 24;
    let Ok(found) = events::parse(data) else { return };
    assert!(found.len() * BYTES <= data.len());
    for (_, name) in found.iter().filter_map(|event| event.entry.as_ref()) {
        let name = name.as_ref().map(|name| name.as_bytes());
        assert!(name.is_none_or(|name| !name.is_empty() && name != b"." && !name.contains(&0)));
    }
    let mut one = [0; BYTES];
    (one[0], one[4], one[6], one[8], one[20]) = (24, 3, 24, 2, 42);
    let more = events::parse(&[data, &one].concat());
    let last = more.as_ref().ok().and_then(|more| more.last());
    assert_eq!(last.map(|last| (last.mask, last.pid)), Some((2, 42)));
}

/// rpm's database, and a header in it: the paths are not much larger than the header, and the rows not larger than the file.
pub fn rpm(data: &[u8]) {
    struct Bytes<'a>(&'a [u8]);
    impl sqlite::Pages for Bytes<'_> {
        fn start(&mut self, buffer: &mut [u8]) -> bool {
            self.0.get(..buffer.len()).is_some_and(|start| {
                buffer.copy_from_slice(start);
                true
            })
        }
        fn page(&mut self, number: u32, buffer: &mut [u8]) -> bool {
            let start = usize::try_from(number - 1).unwrap_or(usize::MAX).saturating_mul(buffer.len());
            self.0.get(start..start.saturating_add(buffer.len())).is_some_and(|page| {
                buffer.copy_from_slice(page);
                true
            })
        }
    }
    let check = |blob: &[u8]| {
        if let Ok(paths) = header::paths(blob) {
            assert!(paths.len() <= blob.len(), "each name has a byte");
        }
        if let Ok(package) = crate::rpm::package(blob) {
            assert!(package.files.len() <= blob.len(), "each name has a byte");
            for file in &package.files {
                let entry = file.entry(1, |_| Some(0), |_| None);
                assert!(entry.sha256.is_none() || entry.md5.is_none(), "a digest is of one kind");
            }
        }
    };
    check(data);
    let mut total = 0;
    let read = sqlite::each_blob(&mut Bytes(data), "Packages", |blob| {
        total += blob.len();
        check(blob);
    });
    assert!(total <= data.len(), "a byte of the file is in one row: {read:?}");
    let log = SqliteLog::read(|offset, buffer| {
        let bytes = usize::try_from(offset).ok().and_then(|offset| data.get(offset..)?.get(..buffer.len()));
        bytes.is_some_and(|bytes| {
            buffer.copy_from_slice(bytes);
            true
        })
    });
    if let Ok(log) = log {
        let end = data.len() - log.page_size().min(data.len());
        assert!((0..64).filter_map(|page| log.place(page)).all(|place| place <= end as u64));
    }
}

/// The texts of dpkg's database: a path is absolute, and a file of a package is at one place.
pub fn dpkg(data: &[u8]) {
    for package in crate::dpkg::packages(data) {
        assert!(!package.package.name.is_empty());
        assert!(package.conffiles.iter().all(|(path, _)| path.starts_with(b"/")));
    }
    assert!(crate::dpkg::sums(data).all(|(path, _)| path.len() > 1 && path.starts_with(b"/")));
    let mut filters = crate::dpkg::PathFilters::default();
    filters.add(data);
    filters.exclude(data);
    let diversions = crate::dpkg::Diversions::of(data);
    for line in data.split(|byte| *byte == b'\n').take(64).filter(|line| line.starts_with(b"/")) {
        assert!(diversions.place(line, "no package has this name\n").starts_with(b"/"));
    }
}

/// A kernel's BTF: every lookup ends in bounded time, and a member has one type.
pub fn btf(data: &[u8]) {
    let Ok(types) = Btf::parse(data) else { return };
    let kinds = [Field::Pointer, Field::Word(4), Field::Word(8), Field::Nested];
    for structure in ["task", "inode"] {
        for member in ["pid", "flags", "next"] {
            let found = kinds.iter().filter(|kind| types.member(structure, member, **kind).is_ok());
            assert!(found.count() <= 1, "a member is of one kind");
        }
    }
    for value in ["pids_cgrp_id", "memory_cgrp_id"] {
        let found = types.value("cgroup_subsys_id", value);
        let is_named = data.windows(value.len()).any(|part| part == value.as_bytes());
        assert!(found.is_err() || is_named, "a value that is not there has no number");
    }
    for parameter in ["file", "cmd"] {
        let index = types.parameter("open", parameter);
        assert!(index.is_err() || types.has_function("open"));
    }
    let names = BTreeSet::from(["open".to_owned()]);
    let Ok(fewer) = types.with_names_only(&names) else { return };
    let read = Btf::parse(&fewer);
    assert!(read.is_ok_and(|read| read.has_function("open") == types.has_function("open")));
}

/// A passwd or group file: names and ids refer to each other, and a later file changes no earlier entry.
pub fn accounts(data: &[u8]) {
    let mut found = Accounts::default();
    found.add(data);
    for (id, name) in &found.names {
        assert!(!name.is_empty() && !name.contains([':', '\n']));
        assert!(found.ids.contains_key(name), "{id}");
    }
    for (name, id) in &found.ids {
        assert!(found.names.contains_key(id), "{name}");
    }
    let before = found.clone();
    found.add(b"\nlast:x:4294967294:\n");
    assert!(before.names.iter().all(|(id, name)| found.names.get(id) == Some(name)));
    assert!(before.ids.iter().all(|(name, id)| found.ids.get(name) == Some(id)));
}

/// An `[Install]` section: the directories are plain names, and text outside the section is ignored.
pub fn install(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut found = Install::default();
    found.add(&text);
    for word in found.directories.iter().chain(&found.aliases).chain(&found.also) {
        assert!(!word.is_empty() && !word.contains(char::is_whitespace));
    }
    let mut without = Install::default();
    without.add(&text.replace("[Install]", "[Unit]"));
    assert_eq!(without, Install::default(), "nothing outside of the section counts");
    for directory in expectations::install_directories(&text) {
        assert!(!directory.contains('/') && directory != ".." && !directory.is_empty(), "{directory}");
    }
}
