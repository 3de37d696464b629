//! What Holdfast keeps on a host is deleted: the state directory and the forensic log.
//!
//! In: the directories of a daemon that does not run. Out: what was deleted, and what stays because Holdfast did not make it; or why
//! nothing is deleted. Only names that Holdfast gives are deleted. No symbolic link is followed, and no other mount is entered. What
//! the quarantine has is never deleted here: an admin decides about each object.

#[cfg(test)]
mod tests;

use crate::quarantine::{Quarantine, QuarantineError};
use crate::report::forensic;
use crate::store::{Store, StoreError};
use crate::sys::{self, CallError};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, SFlag, fstatat};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Names in the state directory that are deleted with all that is below them.
const DIRECTORIES: [&str; 6] = ["apply", "images", "last-config", "last-config.new", "order", "scan"];
/// Files in the state directory, beside the note of the log's end.
const FILES: [&str; 6] = [
    "agent.lock",
    "canary",
    "cluster-policies.json",
    ".cluster-policies.json.new",
    "cluster-policies.json.new",
    "cluster-policies.detached.json",
];
/// The directory of the quarantine in the state directory.
const QUARANTINE: &str = "quarantine";
/// Directories of Holdfast are nested less deeply.
const MOST_DEEP: usize = 64;
/// Most items of the quarantine that an error names.
const NAMED: usize = 10;

/// What is to be deleted.
#[derive(Debug, Clone, Copy)]
pub struct PurgeScope<'a> {
    /// The state directory.
    pub state: &'a Path,
    /// Whether the state is deleted.
    pub purges_state: bool,
    /// The directory of the forensic log if the log is deleted, with the note of its end in the state directory.
    pub log: Option<&'a Path>,
}

/// What was deleted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Names that were deleted, with all that was below them.
    pub removed: Vec<PathBuf>,
    /// Names that stay, because Holdfast did not make them or does not enter them.
    pub kept: Vec<PathBuf>,
    /// The note of the log's end, which stays with the log: without it the next daemon would report that the log was cut.
    pub kept_note: Option<PathBuf>,
}

/// Why nothing, or not everything, is deleted.
#[derive(Debug, Error)]
pub enum PurgeError {
    /// The directory is another object.
    #[error(
        "`{}` is not a directory but a symbolic link or another object, and Holdfast follows no link when it deletes. Name the \
         directory itself, with --state or --log", path.display()
    )]
    NoDirectory {
        /// The path.
        path: PathBuf,
    },
    /// Another process applies a config.
    #[error("an apply, a rollback or a repair runs and holds `{}/lock`. Wait for its end, then try again", store.display())]
    Applies {
        /// The directory of applies.
        store: PathBuf,
    },
    /// An apply was interrupted, or waits for a reboot.
    #[error(
        "an apply has not ended: `{}/journal` exists. End it with `holdfast apply --resume`, which may need a reboot, then try \
         again", store.display()
    )]
    Unfinished {
        /// The directory of applies.
        store: PathBuf,
    },
    /// The quarantine has objects.
    #[error(
        "the quarantine `{}` has {}. Put each object back with `holdfast quarantine restore ID`, or delete it with `holdfast \
         quarantine remove ID`, then try again", path.display(), items.join(", ")
    )]
    Quarantined {
        /// The quarantine.
        path: PathBuf,
        /// Its items, as texts.
        items: Vec<String>,
    },
    /// The store of applies cannot be read.
    #[error("cannot see whether an apply has ended")]
    Store(#[from] StoreError),
    /// The quarantine cannot be read.
    #[error("cannot see whether the quarantine is empty")]
    Quarantine(#[from] QuarantineError),
    /// The kernel refused an operation.
    #[error(transparent)]
    Failed(#[from] CallError),
}

/// A directory whose names are deleted.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    directory: OwnedFd,
}

/// A purge that nothing forbids. It keeps the lock of applies.
#[derive(Debug)]
pub struct Purge {
    state: Option<Opened>,
    log: Option<Opened>,
    purges_state: bool,
    purges_log: bool,
    _applies: Option<Flock<File>>,
}

impl Purge {
    /// Checks that nothing is lost that is still needed. Nothing is deleted yet. The caller holds the locks of the daemon.
    ///
    /// # Errors
    /// An apply has not ended, the quarantine has objects, or a directory is another object or cannot be read.
    pub fn prepare(scope: PurgeScope<'_>) -> Result<Self, PurgeError> {
        let state = opened(scope.state)?;
        let log = scope.log.map(opened).transpose()?.flatten();
        let applies = if scope.purges_state && state.is_some() { ended(scope.state)? } else { None };
        if scope.purges_state {
            let quarantine = Quarantine::open_existing(scope.state)?;
            quarantine.as_ref().map_or(Ok(()), is_empty)?;
        }
        let (purges_state, purges_log) = (scope.purges_state, scope.log.is_some());
        Ok(Self { state, log, purges_state, purges_log, _applies: applies })
    }

    /// Deletes. A second time there is nothing left to delete.
    ///
    /// # Errors
    /// The kernel refused an operation. What was deleted before stays deleted.
    pub fn run(self) -> Result<Purged, PurgeError> {
        let mut done = Purged::default();
        if let Some(log) = self.log {
            for name in log.names()? {
                if forensic::is_log_file(&name) {
                    log.delete_file(&name, &mut done)?;
                } else {
                    done.kept.push(log.path.join(&name));
                }
            }
            log.end(&mut done)?;
        }
        let Some(state) = self.state else { return Ok(done) };
        let new_note = format!(".{}.new", forensic::NOTE);
        for name in state.names()? {
            let is = |known: &[&str]| known.iter().any(|known| OsStr::new(known) == name);
            if is(&[forensic::NOTE, &new_note]) {
                if self.purges_log {
                    state.delete_file(&name, &mut done)?;
                } else {
                    done.kept_note = Some(state.path.join(&name));
                }
                continue;
            }
            if !self.purges_state {
                continue;
            }
            if is(&DIRECTORIES) {
                state.delete_tree(&name, 0, &mut done)?;
            } else if is(&FILES) {
                state.delete_file(&name, &mut done)?;
            } else if is(&[QUARANTINE]) {
                state.delete_quarantine(&mut done)?;
            } else {
                done.kept.push(state.path.join(&name));
            }
        }
        if self.purges_state {
            state.end(&mut done)?;
        }
        Ok(done)
    }
}

/// Opens a directory that is no link; `None` if nothing is there.
fn opened(path: &Path) -> Result<Option<Opened>, PurgeError> {
    match nix::fcntl::open(path, sys::DIRECTORY, Mode::empty()) {
        Ok(directory) => Ok(Some(Opened { path: path.to_owned(), directory })),
        Err(Errno::ENOENT) => Ok(None),
        Err(Errno::ELOOP | Errno::ENOTDIR) => Err(PurgeError::NoDirectory { path: path.to_owned() }),
        Err(errno) => Err(CallError::new(path, "open the directory", errno).into()),
    }
}

/// The lock of applies, if each apply has ended; `None` if no config was ever applied.
fn ended(state: &Path) -> Result<Option<Flock<File>>, PurgeError> {
    let Some(store) = Store::open_existing(state)? else { return Ok(None) };
    let path = || store.path().to_owned();
    let Some(lock) = store.lock()? else { return Err(PurgeError::Applies { store: path() }) };
    match store.open_journal()? {
        Some(_) => Err(PurgeError::Unfinished { store: path() }),
        None => Ok(Some(lock)),
    }
}

/// Fails if the quarantine has anything but its own lock.
fn is_empty(quarantine: &Quarantine) -> Result<(), PurgeError> {
    let left = quarantine.entries()?;
    if left.is_empty() {
        return Ok(());
    }
    let manifests = quarantine.items()?.0;
    let mut items: Vec<String> = left
        .iter()
        .take(NAMED)
        .map(|name| match manifests.iter().find(|item| OsStr::new(&item.id) == name) {
            Some(item) => format!("{} ({})", item.id, item.path),
            None => format!("{} (without a readable manifest)", name.display()),
        })
        .collect();
    if left.len() > NAMED {
        items.push(format!("{} more", left.len() - NAMED));
    }
    Err(PurgeError::Quarantined { path: quarantine.path().to_owned(), items })
}

impl Opened {
    fn names(&self) -> Result<Vec<OsString>, PurgeError> {
        let failed = |errno| CallError::new(&self.path, "read the directory", errno);
        let list = openat(&self.directory, ".", sys::DIRECTORY, Mode::empty()).map_err(failed)?;
        Ok(sys::names(list).map_err(failed)?)
    }

    fn failed(&self, name: &OsStr, operation: &'static str) -> impl FnOnce(Errno) -> CallError {
        let path = self.path.join(name);
        move |errno| CallError::new(&path, operation, errno)
    }

    /// Whether a name is a directory itself, and no link to one.
    fn is_directory(&self, name: &OsStr) -> Result<bool, PurgeError> {
        let stat = fstatat(&self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(self.failed(name, "read the type"))?;
        Ok(SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR)
    }

    /// Deletes a name that is to be a file. A directory of this name stays.
    fn delete_file(&self, name: &OsStr, done: &mut Purged) -> Result<(), PurgeError> {
        if self.is_directory(name)? {
            done.kept.push(self.path.join(name));
            return Ok(());
        }
        self.delete(name, false, done)
    }

    /// Deletes a directory with all that is below it. A link or a file of this name stays.
    fn delete_tree(&self, name: &OsStr, depth: usize, done: &mut Purged) -> Result<(), PurgeError> {
        let is_entered = depth < MOST_DEEP && self.is_directory(name)?;
        let below = if is_entered { self.open(name)? } else { None };
        let Some(below) = below else {
            done.kept.push(self.path.join(name));
            return Ok(());
        };
        let kept = done.kept.len();
        for inner in below.names()? {
            // One line names the whole tree.
            let mut inside = Purged::default();
            if below.is_directory(&inner)? {
                below.delete_tree(&inner, depth + 1, &mut inside)?;
            } else {
                below.delete(&inner, false, &mut inside)?;
            }
            done.kept.append(&mut inside.kept);
        }
        if done.kept.len() == kept { self.delete(name, true, done) } else { Ok(()) }
    }

    /// Opens a directory below this one without following a link; `None` if it is another mount.
    fn open(&self, name: &OsStr) -> Result<Option<Self>, PurgeError> {
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(
                ResolveFlag::RESOLVE_NO_XDEV
                    | ResolveFlag::RESOLVE_NO_SYMLINKS
                    | ResolveFlag::RESOLVE_BENEATH,
            );
        match openat2(&self.directory, name, how) {
            Ok(directory) => Ok(Some(Self { path: self.path.join(name), directory })),
            Err(Errno::EXDEV) => Ok(None),
            Err(errno) => Err(self.failed(name, "open the directory")(errno).into()),
        }
    }

    /// Deletes the empty quarantine with its lock.
    fn delete_quarantine(&self, done: &mut Purged) -> Result<(), PurgeError> {
        let name = OsStr::new(QUARANTINE);
        let below = if self.is_directory(name)? { self.open(name)? } else { None };
        let Some(below) = below else {
            done.kept.push(self.path.join(name));
            return Ok(());
        };
        below.delete_or_miss(OsStr::new(crate::quarantine::LOCK))?;
        self.delete(name, true, done)
    }

    fn delete_or_miss(&self, name: &OsStr) -> Result<(), PurgeError> {
        match sys::remove(&self.directory, name, false) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.failed(name, "remove")(errno).into()),
        }
    }

    /// Deletes a name. One on which something is mounted, and a directory that got an entry meanwhile, stay.
    fn delete(&self, name: &OsStr, is_directory: bool, done: &mut Purged) -> Result<(), PurgeError> {
        match sys::remove(&self.directory, name, is_directory) {
            Ok(()) => done.removed.push(self.path.join(name)),
            Err(Errno::EBUSY | Errno::ENOTEMPTY) => done.kept.push(self.path.join(name)),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(self.failed(name, "remove")(errno).into()),
        }
        Ok(())
    }

    /// Deletes the directory itself if nothing is left in it.
    fn end(self, done: &mut Purged) -> Result<(), PurgeError> {
        if !self.names()?.is_empty() {
            return Ok(());
        }
        let failed = |errno| CallError::new(&self.path, "remove", errno);
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else { return Ok(()) };
        let above = sys::directory(parent).map_err(failed)?;
        match sys::remove(&above, name, true) {
            Ok(()) => done.removed.push(self.path),
            // It is the root of a mount.
            Err(Errno::EBUSY) => done.kept.push(self.path),
            Err(errno) => return Err(failed(errno).into()),
        }
        Ok(())
    }
}
