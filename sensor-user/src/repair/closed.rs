//! Undeclared names in a directory that a drift policy closes, and objects at paths where it expects nothing: they are moved to the quarantine.
//!
//! In: the expectation of the directory or the path, and who may have made the names. Out: one item for each name that was moved, and why the
//! others were not. A limited number in one call, because the loop of the daemon waits for it.

use super::{
    context::RepairContext,
    error::{RepairError, RepairRefusal},
};
use crate::{
    disk::{DiskError, Place},
    observation::is_unexpected,
    quarantine::{Cause, Manifest, OwnFiles, Quarantine, QuarantineError},
    sys::{self, CallError, temporary},
};
use nix::{errno::Errno, libc};
use sensor_model::expectation::ClosedDirectoryExpectation;
use std::{
    ffi::OsString,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    ops::ControlFlow,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

/// Most names that one call moves.
const MOST: usize = 32;

/// Most names that one call tries. Who can write to the directory can fill it with objects that are too large to be moved.
const TRIED: usize = 256;

/// After this time a call of the daemon tries no more names than it may move.
pub(super) const TIME: Duration = Duration::from_millis(500);

/// How names are moved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move<'a> {
    pub(super) quarantine: &'a Quarantine,
    pub(super) own: &'a OwnFiles,
    pub(super) cause: Cause<'a>,
    /// The processes of Holdfast that write now. Their temporary names stay.
    pub(super) writers: &'a [u32],
    /// After this time no more names are tried than one call moves.
    pub(super) time: Duration,
}

/// What one call moved.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub(super) items: Vec<Manifest>,
    pub(super) errors: Vec<QuarantineError>,
    /// Undeclared names are left that it did not try.
    pub(super) is_more: bool,
}

impl RepairContext<'_> {
    /// Moves the object at a path where nothing may be to the quarantine. A directory stays, because a forgotten `/` at the end of a closed
    /// directory's path makes such a rule. So does an object to which a link leads: what declares it may name it by another path.
    pub(super) fn move_unexpected(&self, path: &Path, how: Move<'_>) -> Result<Moved, RepairError> {
        let mut moved = Moved::default();
        let Some(place) = Place::find(self.observer.root(), path)? else { return Ok(moved) };
        let real = self.observer.root().place(path);
        if real != path {
            return Err(RepairError::refused(path, RepairRefusal::LinkedPath(real)));
        }
        let Some(stat) = place.stat()? else { return Ok(moved) };
        if stat.st_mode & libc::S_IFMT == libc::S_IFDIR {
            return Err(RepairError::refused(path, RepairRefusal::UnexpectedDirectory));
        }
        let taken = how
            .quarantine
            .begin_moves(self.observer)
            .and_then(|session| session.without_directories().take(&place, how.own, how.cause));
        match taken {
            Ok(item) => moved.items.extend(item),
            Err(error) => moved.errors.push(error),
        }
        Ok(moved)
    }

    /// Moves the undeclared names of a closed directory to the quarantine.
    pub(super) fn move_undeclared(
        &self,
        path: &Path,
        expected: &ClosedDirectoryExpectation,
        how: Move<'_>,
    ) -> Result<Moved, RepairError> {
        let mut moved = Moved::default();
        let directory = match self.observer.root().open_at(path, sys::DIRECTORY) {
            Ok(directory) => directory,
            Err(Errno::ENOENT) => return Ok(moved),
            Err(Errno::ENOTDIR) => return Err(RepairError::refused(path, RepairRefusal::NotADirectory)),
            Err(errno) => return Err(DiskError::opening(path, "open the directory", errno).into()),
        };
        // What is declared was compared with the path on the disk. A link that came since leads to another directory.
        let real = self.observer.root().place(path);
        if real != path {
            return Err(RepairError::refused(path, RepairRefusal::LinkedDirectory(real)));
        }
        let failed = |operation| move |errno: Errno| DiskError::from(CallError::new(path, operation, errno));
        let copy = |directory: &OwnedFd| {
            directory
                .try_clone()
                .map_err(|error| DiskError::from(CallError::new(path, "open the directory", error)))
        };
        let mut names: Vec<OsString> = Vec::new();
        sys::each_name(copy(&directory)?, |name| {
            let is_of_writer = temporary::maker(name).is_some_and(|pid| how.writers.contains(&pid));
            if is_unexpected(directory.as_fd(), expected, name) && !is_of_writer {
                names.push(name.to_owned());
            }
            if names.len() <= TRIED { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .map_err(failed("read the directory"))?;
        moved.is_more = names.len() > TRIED;
        names.truncate(TRIED);
        names.sort_unstable();
        if names.len() > MOST {
            // Each call begins with another name, so that names that cost the time of one call do not cost that of all.
            let begin = usize::try_from(RandomState::new().build_hasher().finish()).unwrap_or_default();
            let length = names.len();
            names.rotate_left(begin % length);
        }
        if names.is_empty() {
            return Ok(moved);
        }
        let mut session = match how.quarantine.begin_moves(self.observer) {
            Ok(session) => session,
            Err(error) => {
                moved.errors.push(error);
                return Ok(moved);
            }
        };
        let start = Instant::now();
        for (tried, name) in names.into_iter().enumerate() {
            if moved.items.len() >= MOST || tried >= MOST && start.elapsed() > how.time {
                moved.is_more = true;
                break;
            }
            let place = Place { directory: copy(&directory)?, path: path.join(&name), name };
            match session.take(&place, how.own, how.cause) {
                Ok(item) => moved.items.extend(item),
                Err(error) => moved.errors.push(error),
            }
        }
        // With the same names left the next attempt gives the same text.
        moved.errors.sort_by_cached_key(ToString::to_string);
        Ok(moved)
    }
}
