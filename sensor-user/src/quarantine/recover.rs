//! Moves that were interrupted: each is completed, or undone.
//!
//! In: the quarantine, while this process alone uses it. Out: only complete items, as far as the paths of their objects can be written.

use super::{
    copy::remove_all,
    error::{QuarantineError, QuarantineRefusal, failed},
    items::{GONE, Locked, NEW, OBJECT, OpenItem, Quarantine},
    survey::{Contents, Survey, handle},
    take::{Private, erase_original, give_back, remove_private},
};
use crate::{disk::Place, observation::Observer, sys};
use nix::{
    errno::Errno,
    fcntl::openat,
    sys::stat::{Mode, fstat},
    unistd::geteuid,
};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

impl Quarantine {
    /// Completes or undoes moves that were interrupted. The log has what cannot be.
    ///
    /// # Errors
    /// Another process uses the quarantine.
    pub fn recover(&self, observer: &Observer) -> Result<(), QuarantineError> {
        self.lock()?.recover(observer);
        Ok(())
    }
}

impl Locked<'_> {
    pub(super) fn recover(&self, observer: &Observer) {
        let names = match self.of.names() {
            Ok(names) => names,
            Err(error) => {
                tracing::warn!(%error, "Cannot look for interrupted moves.");
                return;
            }
        };
        for name in names {
            let recovered = if name.as_bytes().ends_with(GONE.as_bytes()) {
                remove_all(&self.of.directory, &name, &self.path().join(&name))
            } else if name.as_bytes().ends_with(NEW.as_bytes()) {
                self.recover_new(observer, &name)
            } else {
                self.recover_item(observer, &name)
            };
            if let Err(error) = recovered {
                tracing::warn!(%error, "Cannot complete an interrupted move of the quarantine.");
            }
        }
    }

    /// An item that is not complete.
    fn recover_new(&self, observer: &Observer, name: &OsStr) -> Result<(), QuarantineError> {
        let mut item = match self.of.item(name) {
            Ok(Some(item)) => item,
            Ok(None) => return Ok(()),
            // The object is moved only after the manifest is there.
            Err(QuarantineError::Refused { .. }) if !self.holds_object(name) => {
                return remove_all(&self.of.directory, name, &self.path().join(name));
            }
            Err(error) => return Err(error),
        };
        if item.manifest.temporary.is_none() {
            return if item.has_object()? {
                tracing::info!(
                    item = item.manifest.id,
                    path = item.manifest.path,
                    "Completed an interrupted move."
                );
                self.finish_renamed(&mut item)
            } else {
                remove_all(&self.of.directory, name, &item.path)
            };
        }
        let mut is_at_path = false;
        if let Some(path) = item.manifest.original() {
            let Some(place) = Place::find(observer.root(), &path)? else {
                // The original is in a temporary directory beside its path, on a file system that is not mounted now.
                let reason = QuarantineRefusal::Interrupted { item: item.path };
                return Err(QuarantineError::refused(&path, reason));
            };
            is_at_path = place.stat()?.is_some();
        }
        match private(observer, &item)? {
            Some((place, private)) if has_object(&private) => {
                tracing::info!(
                    item = item.manifest.id,
                    path = item.manifest.path,
                    "Continues an interrupted move."
                );
                self.copy_and_erase(&place, &private, &mut item)
            }
            found => {
                if let Some((place, private)) = found {
                    remove_private(&place, &private)?;
                } else if item.has_object()? && !is_at_path {
                    // Another process took the original away while it was copied. What was copied is all that is left.
                    item.manifest.temporary = None;
                    item.manifest
                        .not_kept
                        .push("what was not copied when the move was interrupted".to_owned());
                    return self.finish_renamed(&mut item);
                }
                remove_all(&self.of.directory, name, &item.path)
            }
        }
    }

    /// Whether a directory of the quarantine has an object, also if it has no manifest.
    fn holds_object(&self, name: &OsStr) -> bool {
        let object = handle(&self.of.directory, name).and_then(|item| handle(&item, OBJECT.as_ref()));
        object.err() != Some(Errno::ENOENT)
    }

    /// A complete item. It was restored, or a temporary directory is left.
    fn recover_item(&self, observer: &Observer, name: &OsStr) -> Result<(), QuarantineError> {
        let Ok(Some(mut item)) = self.of.item(name) else { return Ok(()) };
        if !item.has_object()? {
            return self.remove(name);
        }
        let Some(temporary) = item.manifest.temporary.clone() else { return Ok(()) };
        if let Some((place, private)) = private(observer, &item)? {
            if temporary.is_restore {
                remove_all(&private.directory, OBJECT.as_ref(), &place.path)?;
            } else if has_object(&private) {
                let object = OsStr::new(OBJECT);
                let left = Survey::of(&private.directory, object, Contents::Read, &place.path)?;
                let kept = Survey::of(&item.directory, object, Contents::Read, &item.path)?;
                if kept.covers(&left) {
                    return erase_original(&place, &private, &left, &mut item);
                }
                if !give_back(&place, &private)? {
                    return Err(QuarantineError::refused(&place.path, QuarantineRefusal::Occupied));
                }
            }
            remove_private(&place, &private)?;
        }
        item.manifest.temporary = None;
        item.write_manifest()
    }
}

/// The temporary directory of an item. `None` if it does not exist, or is not one that this user made and alone can open.
fn private(observer: &Observer, item: &OpenItem) -> Result<Option<(Place, Private)>, QuarantineError> {
    let (Some(temporary), Some(path)) = (&item.manifest.temporary, item.manifest.original()) else {
        return Ok(None);
    };
    let name = &temporary.name;
    if crate::sys::temporary::maker(name.as_ref()).is_none() {
        return Ok(None);
    }
    let Some(place) = Place::find(observer.root(), &path)? else { return Ok(None) };
    let opened = match openat(&place.directory, name.as_str(), sys::DIRECTORY, Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(None),
        Err(errno) => return Err(failed(&path, "open a temporary directory beside it")(errno)),
    };
    let stat = fstat(&opened).map_err(failed(&path, "stat"))?;
    let is_ours = stat.st_uid == geteuid().as_raw() && stat.st_mode & 0o7777 == 0o700;
    Ok(is_ours.then(|| (place, Private { name: name.clone(), directory: opened })))
}

fn has_object(private: &Private) -> bool {
    handle(&private.directory, OBJECT.as_ref()).is_ok()
}
