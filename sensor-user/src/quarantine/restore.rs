//! An item goes back to its path, or away.
//!
//! In: an id. Out: the object at the path where it was, if nothing is there; or no item any more.

use super::{
    copy::{Copy, remove_all},
    error::{QuarantineError, QuarantineRefusal, failed},
    items::{Locked, OBJECT, OpenItem, Quarantine},
    manifest::Manifest,
    survey::{Contents, Survey},
    take::{make_private, remove_private},
};
use crate::{disk::Place, observation::Observer, sys};
use nix::errno::Errno;
use std::{ffi::OsStr, io, path::Path};

impl Quarantine {
    /// Puts the object of an item back, and removes the item.
    ///
    /// # Errors
    /// Something is at the path, or it cannot be written; then the item stays.
    pub fn restore(&self, observer: &Observer, id: &str) -> Result<Manifest, QuarantineError> {
        let locked = self.lock()?;
        locked.recover(observer);
        let mut item = locked.item(id)?;
        let Some(path) = item.manifest.original() else {
            let reason = QuarantineRefusal::Manifest(io::Error::other("path: not an absolute path"));
            return Err(QuarantineError::refused(&item.path, reason));
        };
        let place = Place::find(observer.root(), &path)?
            .ok_or_else(|| QuarantineError::refused(&path, QuarantineRefusal::NoDirectory))?;
        let moved = if self.renames {
            sys::move_free(&item.directory, OBJECT.as_ref(), &place.directory, &place.name)
        } else {
            Err(Errno::EXDEV)
        };
        match moved {
            Ok(()) => place.sync()?,
            Err(Errno::EXDEV) => restore_by_copy(&place, &mut item)?,
            Err(errno) => return Err(not_put(&path, errno)),
        }
        locked.remove(&item.name)?;
        Ok(item.manifest)
    }

    /// Removes an item with its object.
    ///
    /// # Errors
    /// There is no such item, or it cannot be removed.
    pub fn remove(&self, observer: &Observer, id: &str) -> Result<Manifest, QuarantineError> {
        let locked = self.lock()?;
        locked.recover(observer);
        let item = locked.item(id)?;
        locked.remove(&item.name)?;
        Ok(item.manifest)
    }
}

fn not_put(path: &Path, errno: Errno) -> QuarantineError {
    match errno {
        Errno::EEXIST => QuarantineError::refused(path, QuarantineRefusal::Occupied),
        errno => failed(path, "put the object back")(errno),
    }
}

impl Locked<'_> {
    /// The complete item with an id.
    fn item(&self, id: &str) -> Result<OpenItem, QuarantineError> {
        let is_id = |letter: char| letter.is_ascii_digit() || letter == '-';
        let found = if !id.is_empty() && id.chars().all(is_id) { self.of.item(id.as_ref())? } else { None };
        found.ok_or_else(|| QuarantineError::refused(Path::new(id), QuarantineRefusal::NoItem))
    }
}

/// Copies the object to a temporary directory beside its path, and renames it from there.
fn restore_by_copy(place: &Place, item: &mut OpenItem) -> Result<(), QuarantineError> {
    if place.stat()?.is_some() {
        return Err(not_put(&place.path, Errno::EEXIST));
    }
    let private = make_private(place, item, true)?;
    let object = OsStr::new(OBJECT);
    let copied = (|| {
        let original = Survey::of(&item.directory, object, Contents::Read, &item.path)?;
        let mut copy = Copy::new(&place.path);
        copy.run((&item.directory, object), (&private.directory, object), 0)?;
        sys::sync_file_system(&private.directory).map_err(failed(&place.path, "sync the file system"))?;
        let made = Survey::of(&private.directory, object, Contents::Read, &place.path)?;
        if !original.is_like(&made) {
            return Err(QuarantineError::refused(&place.path, QuarantineRefusal::KeepsChanging));
        }
        for loss in copy.losses {
            tracing::warn!(path = %place.path.display(), loss, "The file system of the path does not keep all of the object.");
        }
        sys::move_free(&private.directory, object, &place.directory, &place.name)
            .map_err(|errno| not_put(&place.path, errno))
    })();
    if copied.is_err()
        && let Err(error) = remove_all(&private.directory, object, &place.path)
    {
        // The manifest names the temporary directory, so the next command removes it.
        tracing::warn!(%error, "Cannot remove the copy of an object that was not put back.");
        return copied;
    }
    remove_private(place, &private)?;
    place.sync()?;
    item.manifest.temporary = None;
    item.write_manifest()?;
    copied
}
