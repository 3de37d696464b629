//! Names of users and groups, by the databases of the host root.
//!
//! In: `/etc/passwd` and `/etc/group` below the root, then `/usr/lib/passwd` and `/usr/lib/group`, in which image-based hosts keep
//! system users (nss-altfiles). Out: names for numbers and numbers for names. It never asks NSS, which would answer for another root.

use super::{resolve::Root, served::NEEDS_WORKER};
use crate::bounded;
use nix::{fcntl::OFlag, sys::stat::fstat};
use sensor_model::host::accounts::Accounts;
use std::{
    os::fd::AsFd as _,
    path::Path,
    time::{Duration, Instant},
};

/// How long a cached name is valid before the file's version is checked again.
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
    read_at: Option<Instant>,
}

impl Database {
    /// Reads the files again if the version of one of them differs from the cached one.
    fn refresh(&mut self, root: &Root, paths: [&str; 2]) {
        self.read_at = Some(Instant::now());
        if root.guard().is_some_and(|guard| paths.iter().any(|path| guard.served(Path::new(path)).is_some()))
        {
            // A file system that may never answer is mounted over a file, so the cached names stay.
            return;
        }
        let files = paths.map(|path| root.open_at(Path::new(path), OFlag::O_RDONLY | OFlag::O_NONBLOCK));
        if files.iter().any(|file| matches!(file, Err(NEEDS_WORKER))) {
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
            // A database above the limit contributes no names. No real node has one.
            if let Ok(text) = bounded::read_open(file, bounded::ACCOUNTS) {
                self.accounts.add(&text);
            }
        }
    }

    fn refresh_when_stale(&mut self, root: &Root, paths: [&str; 2]) {
        if self.read_at.is_none_or(|read_at| read_at.elapsed() >= FRESH) {
            self.refresh(root, paths);
        }
    }

    fn name(&mut self, root: &Root, paths: [&str; 2], id: u32) -> Option<String> {
        self.refresh_when_stale(root, paths);
        if !self.accounts.names.contains_key(&id) {
            // The user may be newer than the last read.
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
pub(crate) struct AccountNames {
    users: Database,
    groups: Database,
}

impl AccountNames {
    /// The name of a user; `None` if the databases have none.
    pub(crate) fn user(&mut self, root: &Root, uid: u32) -> Option<String> {
        self.users.name(root, USERS, uid)
    }

    /// The name of a group; `None` if the databases have none.
    pub(crate) fn group(&mut self, root: &Root, gid: u32) -> Option<String> {
        self.groups.name(root, GROUPS, gid)
    }

    /// The number of a user.
    pub(crate) fn uid(&mut self, root: &Root, name: &str) -> Option<u32> {
        self.users.id(root, USERS, name)
    }

    /// The number of a group.
    pub(crate) fn gid(&mut self, root: &Root, name: &str) -> Option<u32> {
        self.groups.id(root, GROUPS, name)
    }

    /// Checks the databases now, whatever the age of the cached names.
    pub(crate) fn refresh(&mut self, root: &Root) {
        self.users.refresh(root, USERS);
        self.groups.refresh(root, GROUPS);
    }
}

fn stamp(file: std::os::fd::BorrowedFd<'_>) -> Option<Stamp> {
    let stat = fstat(file).ok()?;
    // It does not read a FIFO or device at the path of a database.
    (stat.st_mode & nix::libc::S_IFMT == nix::libc::S_IFREG).then_some(Stamp {
        device: stat.st_dev,
        inode: stat.st_ino,
        size: stat.st_size,
        changed: (stat.st_ctime, stat.st_ctime_nsec),
    })
}
