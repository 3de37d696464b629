//! Targets for files of the host that others write: mount table, process status, accounts, unit files.

use crate::{
    expectations,
    host::{accounts::Accounts, install::Install, mountinfo, stat::Stat},
};
use std::os::unix::ffi::OsStrExt as _;

/// A mount table: every point is a path that, written again with its escapes, is read the same.
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
    // Whatever stands before it in the table, a sound line is read.
    let mut table = data.to_vec();
    table.extend(b"\n9 1 0:9 / /etc/last rw - tmpfs tmpfs rw\n");
    assert!(mountinfo::mounts(&table).last().is_some_and(|mount| mount.point.ends_with("last")));
}

/// A `/proc/PID/stat`: a name can say what it wants and does not move the fields.
pub fn process_stat(data: &[u8]) {
    if let Some(stat) = Stat::parse(data) {
        assert!(!stat.tells_executions() || !stat.places.contains(&0));
    }
    let name = String::from_utf8_lossy(data);
    let text = format!("42 ({name}) S 7 42 42 34816 42 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987 0 0");
    let whole = Stat::parse(text.as_bytes());
    assert_eq!(whole.as_ref().map(|stat| (stat.parent, stat.start, stat.terminal)), Some((7, 987, 34816)));
    assert_eq!(whole.map(|stat| stat.comm).as_deref(), Some(&*name));
}

/// A passwd or group file: names and numbers lead to each other, and a file behind it changes nothing that it says.
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

/// An `[Install]` section: read twice it is the same, and the directories are names below one directory.
pub fn install(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut found = Install::default();
    found.add(&text);
    for word in found.wanted_by.iter().chain(&found.aliases).chain(&found.also) {
        assert!(!word.is_empty() && !word.contains(char::is_whitespace));
    }
    let mut without = Install::default();
    without.add(&text.replace("[Install]", "[Unit]"));
    assert_eq!(without, Install::default(), "nothing outside of the section counts");
    for directory in expectations::install_directories(&text) {
        assert!(!directory.contains('/') && directory != ".." && !directory.is_empty(), "{directory}");
    }
}
