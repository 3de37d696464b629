//! Closed directories that are links to other closed directories, such as `/etc/init.d` on hosts of RHEL.
//!
//! In: the closed directories. Out: those that are such links, each with the directory at its end. A link to a directory that is not closed is
//! left out: it then differs from a directory, because files that nothing closes would take the place of the closed ones.

use crate::observation::{Observer, resolve::HANDLE};
use nix::{
    fcntl::OFlag,
    libc,
    sys::stat::{FileStat, fstat},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// The links among closed directories.
pub(super) fn directories(observer: &Observer, closed: &BTreeSet<PathBuf>) -> BTreeMap<PathBuf, PathBuf> {
    let end = |path: &Path| {
        // A link below a directory that others than root can write is not followed.
        let (_, real) = is_link(observer, path).then(|| observer.root().walk(path).end.ok())??;
        (real != path && closed.contains(&real)).then_some(real)
    };
    closed.iter().filter_map(|path| Some((path.clone(), end(path)?))).collect()
}

fn is_link(observer: &Observer, path: &Path) -> bool {
    let is_link = |stat: &FileStat| stat.st_mode & libc::S_IFMT == libc::S_IFLNK;
    let found = observer.root().open_at(path, HANDLE | OFlag::O_NOFOLLOW).and_then(fstat);
    found.as_ref().is_ok_and(is_link)
}
