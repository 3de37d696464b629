//! Targets below a path that turns from a directory into something else, or back; and that directory when it is not empty.
//!
//! In: a target. Out: its place, where it has one now; whether a directory has to stay for what somebody else put in it.

use super::Run;
use crate::apply::{ApplyError, image::Place};
use crate::sys;
use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat},
    sys::stat::{Mode, fstatat},
};
use sensor_model::journal::{Begin, Target};
use std::{collections::BTreeSet, ffi::OsStr, path::PathBuf};

/// Paths that are a directory on one side only.
pub(in crate::apply) fn turning(begin: &Begin) -> BTreeSet<PathBuf> {
    begin.targets.iter().filter(|target| target.turns()).map(|target| target.path.clone()).collect()
}

impl Run<'_> {
    /// The place of a target; `None` where its directory is not there. A link that is there in the directory's place may
    /// lead to a directory with the same names in it, and none of those is ours.
    pub(in crate::apply) fn place(&self, target: &Target) -> Result<Option<Place>, ApplyError> {
        let root = self.observer.root();
        for path in target.path.ancestors().skip(1).filter(|path| self.turning.contains(*path)) {
            let place = Place::find(root, path)?;
            let found = place.map_or(Ok(None), |place| kind(&place, &place.name))?;
            if found != Some(true) {
                return Ok(None);
            }
        }
        Place::find(root, &target.path)
    }
}

/// Whether the directory at a path has to stay, since somebody else put something in it; what was made to take its
/// place is removed then.
pub(super) fn must_stay(target: &Target, place: &Place, name: &OsStr) -> Result<bool, ApplyError> {
    let failed = |operation| move |errno| ApplyError::failed(&place.path, operation, errno);
    if kind(place, &place.name)? != Some(true) || kind(place, name)? == Some(true) {
        return Ok(false);
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = openat(&place.directory, &*place.name, flags, Mode::empty()).map_err(failed("open"))?;
    if sys::names(directory).map_err(failed("read the directory"))?.is_empty() {
        return Ok(false);
    }
    keep(target, place, name).map(|()| true)
}

/// Gives a directory its name back that turned out not to be empty when it was to be removed.
pub(super) fn stays_after_all(target: &Target, place: &Place, name: &OsStr) -> Result<(), ApplyError> {
    sys::exchange(&place.directory, name, &place.name)
        .map_err(|errno| ApplyError::failed(&place.path, "swap", errno))?;
    keep(target, place, name)
}

/// Whether a directory could not be removed because something is in it.
pub(super) fn is_not_empty(errno: Errno) -> bool {
    matches!(errno, Errno::ENOTEMPTY | Errno::EEXIST)
}

/// Whether a name is that of a directory; `None` when nothing has it.
pub(super) fn kind(place: &Place, name: &OsStr) -> Result<Option<bool>, ApplyError> {
    match fstatat(&place.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat.st_mode & nix::libc::S_IFMT == nix::libc::S_IFDIR)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(ApplyError::failed(&place.path, "stat", errno)),
    }
}

/// Removes the object that was to take a directory's place.
fn keep(target: &Target, place: &Place, name: &OsStr) -> Result<(), ApplyError> {
    let failed = |operation| move |errno| ApplyError::failed(&place.path, operation, errno);
    let seen = place.see_name(name, &mut |_| Ok(()))?.image;
    if !seen.is_some_and(|seen| [&target.before, &target.after].into_iter().any(|image| image.is(&seen))) {
        let reason = "somebody else changed it, and what is in it; move one of the two away first";
        return Err(ApplyError::refused(&place.path, reason));
    }
    match sys::remove(&place.directory, name, false) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(failed("discard")(errno)),
    }
    sys::sync_directory(&place.directory).map_err(failed("sync the directory"))
}
