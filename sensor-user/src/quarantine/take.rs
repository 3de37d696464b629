//! The move of an object from its path to the quarantine.
//!
//! In: a name in an open directory, and why it is moved. Out: an item. Others may exchange the object at each moment: an
//! object that takes the name before the rename is undeclared too, and the manifest describes it.

use super::{
    copy::{Copy, clear_flags, erase, remove_all},
    error::{QuarantineError, QuarantineRefusal, failed},
    items::{Locked, OBJECT, OpenItem, Quarantine},
    limits::{COPIES, MOST_ITEMS, WHOLE_BYTES},
    manifest::{Cause, Manifest, TemporaryDirectory},
    survey::{Contents, Entry, Survey},
};
use crate::{
    disk::Place,
    observation::{Observer, resolve::is_just_made},
    sys::{self, temporary},
};
use nix::{
    errno::Errno,
    fcntl::openat,
    sys::stat::{Mode, lstat, stat},
};
use std::{collections::BTreeSet, ffi::OsStr, os::fd::OwnedFd, path::Path};

/// How often a temporary directory is made, if its name is taken.
const NAMES: usize = 16;

/// The objects that hold files of Holdfast itself. They are not moved.
#[derive(Debug, Default)]
pub struct OwnFiles(BTreeSet<(u64, u64)>);

impl OwnFiles {
    /// The objects at these paths of the host, and the directories above them.
    pub fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let above = paths.into_iter().flat_map(Path::ancestors);
        // A link to such an object is one, too.
        let objects = above.flat_map(|path| [stat(path), lstat(path)]).flatten();
        Self(objects.map(|stat| (stat.st_dev, stat.st_ino)).collect())
    }

    fn hold(&self, survey: &Survey) -> bool {
        survey.entries.values().any(|entry| self.0.contains(&entry.identity()))
    }
}

/// A directory beside a path that only root can open, with the original.
pub(super) struct Private {
    pub(super) name: String,
    pub(super) directory: OwnedFd,
}

/// The moves of one process, which alone uses the quarantine until they are over.
#[derive(Debug)]
pub struct Moves<'a> {
    locked: Locked<'a>,
    /// Items, and bytes of their objects.
    items: usize,
    bytes: u64,
    /// Directories stay.
    only_others: bool,
}

impl Quarantine {
    /// Begins moves. It completes or undoes those that were interrupted.
    ///
    /// # Errors
    /// Another process uses the quarantine, or it cannot be read.
    pub fn begin_moves(&self, observer: &Observer) -> Result<Moves<'_>, QuarantineError> {
        let locked = self.lock()?;
        locked.recover(observer);
        let (items, broken) = self.items()?;
        let bytes = items.iter().fold(0, |sum: u64, item| sum.saturating_add(item.size));
        Ok(Moves { locked, items: items.len() + broken.len(), bytes, only_others: false })
    }
}

impl Moves<'_> {
    /// Moves no directory from now on.
    pub(crate) fn without_directories(mut self) -> Self {
        self.only_others = true;
        self
    }

    /// Moves the object of a name to the quarantine. `None` if the name is gone.
    ///
    /// # Errors
    /// The object is still at its path, or [`QuarantineRefusal::Kept`].
    pub(crate) fn take(
        &mut self,
        place: &Place,
        own: &OwnFiles,
        cause: Cause<'_>,
    ) -> Result<Option<Manifest>, QuarantineError> {
        let moved = self.take_object(place, own, cause)?;
        if let Some(item) = &moved {
            self.items += 1;
            self.bytes = self.bytes.saturating_add(item.size);
        }
        Ok(moved)
    }

    fn take_object(
        &self,
        place: &Place,
        own: &OwnFiles,
        cause: Cause<'_>,
    ) -> Result<Option<Manifest>, QuarantineError> {
        let locked = &self.locked;
        let survey = match Survey::of(&place.directory, &place.name, Contents::Skip, &place.path) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(None),
            survey => survey?,
        };
        if self.only_others && survey.entries.get(Path::new("")).is_some_and(Entry::is_directory) {
            return Err(QuarantineError::refused(&place.path, QuarantineRefusal::Replaced));
        }
        if own.hold(&survey) {
            return Err(QuarantineError::refused(&place.path, QuarantineRefusal::OwnFiles));
        }
        if self.items >= MOST_ITEMS || self.bytes.saturating_add(survey.bytes) > WHOLE_BYTES {
            return Err(QuarantineError::refused(&place.path, QuarantineRefusal::Full));
        }
        let day: String =
            cause.time.chars().take(19).filter(|letter| *letter != '-' && *letter != ':').collect();
        let mut item =
            locked.begin(&day.replace('T', "-"), |id| Manifest::new(id, &place.path, &survey, cause))?;
        let moved = if locked.of.renames {
            renamed((&place.directory, place.name.as_os_str()), (&item.directory, OBJECT.as_ref()))
        } else {
            Err(Errno::EXDEV)
        };
        match moved {
            Ok(was_immutable) => {
                if was_immutable {
                    item.manifest.not_kept.push("the immutable or append-only flag".to_owned());
                }
                place.sync()?;
                locked.finish_renamed(&mut item)?;
                Ok(Some(item.manifest))
            }
            Err(Errno::EXDEV) => locked.take_by_copy(place, item),
            Err(Errno::ENOENT) => {
                locked.drop_item(&item);
                Ok(None)
            }
            Err(errno) => {
                locked.drop_item(&item);
                Err(match errno {
                    Errno::EBUSY => QuarantineError::refused(&place.path, QuarantineRefusal::Mount),
                    errno => failed(&place.path, "move to the quarantine")(errno),
                })
            }
        }
    }
}

/// Renames an object, and clears the flags that refuse it. Returns whether it had such a flag.
fn renamed(from: (&OwnedFd, &OsStr), to: (&OwnedFd, &OsStr)) -> Result<bool, Errno> {
    let rename = || sys::move_free(from.0, from.1, to.0, to.1);
    match rename() {
        Err(Errno::EPERM) if clear_flags(from.0, from.1).unwrap_or(false) => rename().map(|()| true),
        renamed => renamed.map(|()| false),
    }
}

impl Locked<'_> {
    /// Completes an item whose object was renamed into it.
    pub(super) fn finish_renamed(&self, item: &mut OpenItem) -> Result<(), QuarantineError> {
        sys::sync_content(&item.directory).map_err(failed(&item.path, "sync the item"))?;
        // A process that had the object open may have made it larger than a move may be. It is moved all the same.
        let contents = Survey::of(&item.directory, OBJECT.as_ref(), Contents::Read, &item.path);
        match contents {
            Ok(survey) => item.manifest.describe(&survey),
            Err(error) => item.manifest.not_kept.push(format!("no description: {error}")),
        }
        self.complete(item)
    }

    fn take_by_copy(&self, place: &Place, mut item: OpenItem) -> Result<Option<Manifest>, QuarantineError> {
        item.manifest.copied = true;
        // If this fails, the next move removes what was made.
        let private = make_private(place, &mut item, false)?;
        match renamed((&place.directory, place.name.as_os_str()), (&private.directory, OBJECT.as_ref())) {
            Ok(was_immutable) => {
                if was_immutable {
                    item.manifest.not_kept.push("the immutable or append-only flag".to_owned());
                }
                place.sync()?;
                self.copy_and_erase(place, &private, &mut item)?;
                Ok(Some(item.manifest))
            }
            Err(errno) => {
                remove_private(place, &private)?;
                self.drop_item(&item);
                match errno {
                    Errno::ENOENT => Ok(None),
                    Errno::EXDEV => Err(QuarantineError::refused(&place.path, QuarantineRefusal::NotRenamed)),
                    Errno::EBUSY => Err(QuarantineError::refused(&place.path, QuarantineRefusal::Mount)),
                    errno => Err(failed(&place.path, "move to a temporary directory")(errno)),
                }
            }
        }
    }

    /// Copies the object of a temporary directory to the item, completes the item, and removes the original. If the copy fails, the
    /// original gets its name back.
    pub(super) fn copy_and_erase(
        &self,
        place: &Place,
        private: &Private,
        item: &mut OpenItem,
    ) -> Result<(), QuarantineError> {
        let original = match copy(place, private, item) {
            Ok(original) => original,
            Err(error) => {
                return if give_back(place, private)? {
                    self.drop_item(item);
                    Err(error)
                } else {
                    // Another object has the name by now. The next move tries the copy again.
                    let private = place.path.with_file_name(&private.name);
                    let reason = QuarantineRefusal::Kept { private, source: Box::new(error) };
                    Err(QuarantineError::refused(&place.path, reason))
                };
            }
        };
        self.complete(item)?;
        erase_original(place, private, &original, item)
    }
}

/// Makes a directory beside a path that only root can open. The manifest has its name before it exists.
pub(super) fn make_private(
    place: &Place,
    item: &mut OpenItem,
    is_restore: bool,
) -> Result<Private, QuarantineError> {
    let making = failed(&place.path, "make a temporary directory beside it");
    for _ in 0..NAMES {
        let name = temporary::next_name().to_string_lossy().into_owned();
        item.manifest.temporary = Some(TemporaryDirectory { name: name.clone(), is_restore });
        item.write_manifest()?;
        match sys::mkdir(&place.directory, name.as_ref()) {
            Ok(()) => {}
            Err(Errno::EEXIST) => continue,
            Err(errno) => return Err(making(errno)),
        }
        let directory = openat(&place.directory, &*name, sys::DIRECTORY, Mode::empty()).map_err(&making)?;
        if !is_just_made(&directory).map_err(&making)? {
            return Err(QuarantineError::refused(&place.path, QuarantineRefusal::Replaced));
        }
        return Ok(Private { name, directory });
    }
    Err(making(Errno::EEXIST))
}

/// Removes an original whose copy is complete. What is not in the copy gets the name back, and is moved as another item.
pub(super) fn erase_original(
    place: &Place,
    private: &Private,
    original: &Survey,
    item: &mut OpenItem,
) -> Result<(), QuarantineError> {
    if !erase(&private.directory, OBJECT.as_ref(), original, &place.path)? && !give_back(place, private)? {
        return Err(QuarantineError::refused(&place.path, QuarantineRefusal::KeepsChanging));
    }
    remove_private(place, private)?;
    place.sync()?;
    item.manifest.temporary = None;
    item.write_manifest()
}

/// Copies until nothing changed meanwhile. Gives what the original is.
fn copy(place: &Place, private: &Private, item: &mut OpenItem) -> Result<Survey, QuarantineError> {
    let object = OsStr::new(OBJECT);
    let flags = item.manifest.not_kept.clone();
    for _ in 0..COPIES {
        remove_all(&item.directory, object, &item.path)?;
        let before = Survey::of(&private.directory, object, Contents::Read, &place.path)?;
        let mut copy = Copy::new(&place.path);
        copy.run((&private.directory, object), (&item.directory, object), 0)?;
        sys::sync_file_system(&item.directory).map_err(failed(&item.path, "sync the file system"))?;
        let copied = Survey::of(&item.directory, object, Contents::Read, &item.path)?;
        let after = Survey::of(&private.directory, object, Contents::Read, &place.path)?;
        if before.is_unchanged(&after) && after.is_like(&copied) {
            item.manifest.describe(&after);
            item.manifest.not_kept = [flags, copy.losses].concat();
            return Ok(after);
        }
    }
    Err(QuarantineError::refused(&place.path, QuarantineRefusal::KeepsChanging))
}

/// Gives the object of a temporary directory its name back, unless another object has it. Returns whether nothing is left in the
/// temporary directory.
pub(super) fn give_back(place: &Place, private: &Private) -> Result<bool, QuarantineError> {
    match sys::move_free(&private.directory, OBJECT.as_ref(), &place.directory, &place.name) {
        Ok(()) | Err(Errno::ENOENT) => {
            remove_private(place, private)?;
            place.sync()?;
            Ok(true)
        }
        Err(Errno::EEXIST) => Ok(false),
        Err(errno) => Err(failed(&place.path, "move back")(errno)),
    }
}

/// Removes an empty temporary directory. While it cannot be removed, the manifest keeps its name.
pub(super) fn remove_private(place: &Place, private: &Private) -> Result<(), QuarantineError> {
    match sys::remove(&place.directory, private.name.as_ref(), true) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => {
            let path = place.path.with_file_name(&private.name);
            Err(failed(&path, "remove the temporary directory")(errno))
        }
    }
}
