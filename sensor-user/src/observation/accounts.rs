//! Names of users and groups, by the databases of the host root.
//!
//! In: `/etc/passwd` and `/etc/group` below the root, and `/usr/lib/passwd` and `/usr/lib/group`
//! behind them, where image-based hosts keep their system users (nss-altfiles). Out: names for
//! numbers and numbers for names. It never asks NSS, which would answer for the wrong root.

use super::{resolve::Root, served::REFUSED};
use crate::bounded;
use nix::{fcntl::OFlag, sys::stat::fstat};
use sensor_model::host::accounts::Accounts;
use std::{
    os::fd::AsFd as _,
    path::Path,
    time::{Duration, Instant},
};

/// How long a cached name is good without a look at the file it came from.
const FRESH: Duration = Duration::from_secs(1);

const USERS: [&str; 2] = ["/etc/passwd", "/usr/lib/passwd"];
const GROUPS: [&str; 2] = ["/etc/group", "/usr/lib/group"];

/// What distinguishes one version of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: i64,
    changed: (i64, i64),
}

#[derive(Debug, Default)]
struct Database {
    stamps: [Option<Stamp>; 2],
    accounts: Accounts,
    looked: Option<Instant>,
}

impl Database {
    /// Reads the files again when one of them is another version than the one that was read.
    fn refresh(&mut self, root: &Root, paths: [&str; 2]) {
        self.looked = Some(Instant::now());
        if root.guard().is_some_and(|guard| paths.iter().any(|path| guard.served(Path::new(path)).is_some()))
        {
            // A file system that may never answer is mounted over it: the names stay as they were.
            return;
        }
        let files = paths.map(|path| root.open_at(Path::new(path), OFlag::O_RDONLY | OFlag::O_NONBLOCK));
        if files.iter().any(|file| matches!(file, Err(REFUSED))) {
            return;
        }
        let files = files.map(Result::ok);
        let stamps = files.each_ref().map(|file| file.as_ref().and_then(|file| stamp(file.as_fd())));
        if stamps == self.stamps && !self.accounts.names.is_empty() {
            return;
        }
        self.stamps = stamps;
        self.accounts = Accounts::default();
        for file in files.into_iter().flatten() {
            // One that is larger is of no node that we know; its names are left out.
            if let Ok(text) = bounded::read_open(file, bounded::ACCOUNTS) {
                self.accounts.add(&text);
            }
        }
    }

    fn refresh_when_stale(&mut self, root: &Root, paths: [&str; 2]) {
        if self.looked.is_none_or(|looked| looked.elapsed() >= FRESH) {
            self.refresh(root, paths);
        }
    }

    fn name(&mut self, root: &Root, paths: [&str; 2], id: u32) -> Option<String> {
        self.refresh_when_stale(root, paths);
        if !self.accounts.names.contains_key(&id) {
            // A user that was added a moment ago must not look nameless.
            self.refresh(root, paths);
        }
        self.accounts.names.get(&id).cloned()
    }

    fn id(&mut self, root: &Root, paths: [&str; 2], name: &str) -> Option<u32> {
        self.refresh_when_stale(root, paths);
        if !self.accounts.ids.contains_key(name) {
            self.refresh(root, paths);
        }
        self.accounts.ids.get(name).copied()
    }
}

/// Names and numbers of the host's users and groups, cached until the databases change.
#[derive(Debug, Default)]
pub(crate) struct Identities {
    users: Database,
    groups: Database,
}

impl Identities {
    /// Name of a user, where it has one.
    pub(crate) fn user(&mut self, root: &Root, uid: u32) -> Option<String> {
        self.users.name(root, USERS, uid)
    }

    /// Name of a group, where it has one.
    pub(crate) fn group(&mut self, root: &Root, gid: u32) -> Option<String> {
        self.groups.name(root, GROUPS, gid)
    }

    /// Number of a user.
    pub(crate) fn uid(&mut self, root: &Root, name: &str) -> Option<u32> {
        self.users.id(root, USERS, name)
    }

    /// Number of a group.
    pub(crate) fn gid(&mut self, root: &Root, name: &str) -> Option<u32> {
        self.groups.id(root, GROUPS, name)
    }

    /// Looks at the databases now, whatever the age of what is cached.
    pub(crate) fn refresh(&mut self, root: &Root) {
        self.users.refresh(root, USERS);
        self.groups.refresh(root, GROUPS);
    }
}

fn stamp(file: std::os::fd::BorrowedFd<'_>) -> Option<Stamp> {
    let stat = fstat(file).ok()?;
    // A FIFO or device in the place of the database is not read.
    (stat.st_mode & nix::libc::S_IFMT == nix::libc::S_IFREG).then_some(Stamp {
        device: stat.st_dev,
        inode: stat.st_ino,
        size: stat.st_size,
        changed: (stat.st_ctime, stat.st_ctime_nsec),
    })
}
