//! The quarantine's directory, and the items in it.
//!
//! In: the state directory. Out: its items with their manifests; a lock, so that one process at a time moves something. Each item is a
//! directory: `manifest.json`, and `object`. A name that ends in `.new` is a move that is not complete, and one in `.gone` a removal.

use super::{
    copy::remove_all,
    error::{QuarantineError, QuarantineRefusal, failed},
    manifest::Manifest,
};
use crate::{bounded, sys};
use nix::{
    errno::Errno,
    fcntl::{AtFlags, Flock, FlockArg, OFlag, openat},
    sys::stat::{Mode, fstat, fstatat},
};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

/// The object of an item.
pub(super) const OBJECT: &str = "object";
const MANIFEST: &str = "manifest.json";
/// The manifest while it is written.
const MANIFEST_NEW: &str = "manifest.json.new";
pub(crate) const LOCK: &str = "lock";
/// How the name of an item ends while it is not complete.
pub(super) const NEW: &str = ".new";
/// How the name of an item ends while it is removed.
pub(super) const GONE: &str = ".gone";
/// Most bytes of a manifest that is read. Earlier versions wrote actors with texts of any length.
const MANIFEST_BYTES: u64 = 16 << 20;
/// The quarantine of one state directory.
#[derive(Debug)]
pub struct Quarantine {
    pub(super) path: PathBuf,
    pub(super) directory: OwnedFd,
    /// Whether an object on the same file system is moved by a rename. A test copies it.
    pub(super) renames: bool,
}

/// The quarantine while this process alone uses it.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    pub(super) of: &'a Quarantine,
    _lock: Flock<File>,
}

/// An item, or a move that is not complete.
#[derive(Debug)]
pub(super) struct OpenItem {
    /// The name of its directory.
    pub(super) name: OsString,
    pub(super) path: PathBuf,
    pub(super) directory: OwnedFd,
    pub(super) manifest: Manifest,
}

impl Quarantine {
    /// Opens the quarantine below a state directory, and makes it. Only root can open it.
    ///
    /// # Errors
    /// It cannot be made or opened.
    pub fn open(state: &Path) -> Result<Self, QuarantineError> {
        let path = state.join("quarantine");
        let above = sys::directory(state).map_err(failed(state, "open the state directory"))?;
        let name = OsStr::new("quarantine");
        match sys::mkdir(&above, name) {
            Ok(()) => sys::sync_content(&above).map_err(failed(&path, "sync the directory"))?,
            Err(Errno::EEXIST) => {}
            Err(errno) => return Err(failed(&path, "make the directory")(errno)),
        }
        let opened = openat(&above, name, sys::DIRECTORY, Mode::empty())
            .map_err(failed(&path, "open the directory"))?;
        let stat = fstat(&opened).map_err(failed(&path, "stat"))?;
        if stat.st_mode & 0o077 != 0 {
            // Another process widened it. Files in it may be setuid.
            sys::mode(&opened, 0o700).map_err(failed(&path, "change the mode"))?;
        }
        Ok(Self { path, directory: opened, renames: true })
    }

    /// Opens the quarantine without making it; `None` if nothing was ever moved.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open_existing(state: &Path) -> Result<Option<Self>, QuarantineError> {
        let path = state.join("quarantine");
        match nix::fcntl::open(&path, sys::DIRECTORY, Mode::empty()) {
            Ok(directory) => Ok(Some(Self { path, directory, renames: true })),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(failed(&path, "open the directory")(errno)),
        }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The manifests of all complete items, the oldest first, and the paths of those that cannot be read.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn items(&self) -> Result<(Vec<Manifest>, Vec<QuarantineError>), QuarantineError> {
        let (mut items, mut broken) = (Vec::new(), Vec::new());
        for name in self.names()?.iter().filter(|name| is_id(name)) {
            match self.item(name) {
                Ok(Some(item)) if item.has_object()? => items.push(item.manifest),
                // It was restored or removed meanwhile.
                Ok(_) => {}
                Err(error) => broken.push(error),
            }
        }
        items.sort_by(|one, other| (&one.time, &one.id).cmp(&(&other.time, &other.id)));
        Ok((items, broken))
    }

    /// All names in it but that of its lock, also those of items that are not complete.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn entries(&self) -> Result<Vec<OsString>, QuarantineError> {
        let mut names = self.names()?;
        names.retain(|name| name != LOCK);
        Ok(names)
    }

    pub(super) fn names(&self) -> Result<Vec<OsString>, QuarantineError> {
        let failed = failed(&self.path, "read the directory");
        let list = openat(&self.directory, ".", sys::DIRECTORY, Mode::empty()).map_err(&failed)?;
        sys::names(list).map_err(&failed)
    }

    /// Opens the item of a name; `None` if there is none.
    pub(super) fn item(&self, name: &OsStr) -> Result<Option<OpenItem>, QuarantineError> {
        let path = self.path.join(name);
        let directory = match openat(&self.directory, name, sys::DIRECTORY, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(errno) => return Err(failed(&path, "open the item")(errno)),
        };
        let manifest = read_manifest(&directory)
            .map_err(|error| QuarantineError::refused(&path, QuarantineRefusal::Manifest(error)))?;
        Ok(Some(OpenItem { name: name.to_owned(), path, directory, manifest }))
    }

    /// Takes the lock.
    pub(super) fn lock(&self) -> Result<Locked<'_>, QuarantineError> {
        let path = self.path.join(LOCK);
        let file = sys::lock_file(&self.directory, OsStr::new(LOCK)).map_err(failed(&path, "open"))?;
        match Flock::lock(File::from(file), FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Locked { of: self, _lock: lock }),
            Err((_, Errno::EWOULDBLOCK)) => {
                Err(QuarantineError::refused(&self.path, QuarantineRefusal::Locked))
            }
            Err((_, errno)) => Err(failed(&path, "lock")(errno)),
        }
    }
}

/// Whether a name is the id of a complete item.
fn is_id(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_digit)
        && bytes.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-')
}

fn read_manifest(directory: &OwnedFd) -> io::Result<Manifest> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = openat(directory, MANIFEST, flags, Mode::empty())?;
    let bytes = bounded::read_open(file, MANIFEST_BYTES).map_err(io::Error::from)?;
    Ok(serde_json::from_slice(&bytes)?)
}

impl OpenItem {
    fn failed(&self, operation: &'static str) -> impl Fn(Errno) -> QuarantineError {
        failed(&self.path, operation)
    }

    pub(super) fn has_object(&self) -> Result<bool, QuarantineError> {
        match fstatat(&self.directory, OBJECT, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(self.failed("look for the object")(errno)),
        }
    }

    /// Writes the manifest durably: the old one or the new one.
    pub(super) fn write_manifest(&self) -> Result<(), QuarantineError> {
        let mut bytes = serde_json::to_vec_pretty(&self.manifest).map_err(|error| {
            QuarantineError::refused(&self.path, QuarantineRefusal::Manifest(io::Error::from(error)))
        })?;
        bytes.push(b'\n');
        let (name, new) = (OsStr::new(MANIFEST), OsStr::new(MANIFEST_NEW));
        match sys::remove(&self.directory, new, false) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(self.failed("remove the temporary manifest")(errno)),
        }
        let file = sys::create(&self.directory, new).map_err(self.failed("make the manifest"))?;
        sys::write(&file, &bytes).map_err(self.failed("write the manifest"))?;
        sys::sync_content(&file).map_err(self.failed("sync the manifest"))?;
        sys::rename_over(&self.directory, new, name).map_err(self.failed("rename the manifest"))?;
        sys::sync_content(&self.directory).map_err(self.failed("sync the item"))
    }
}

impl Locked<'_> {
    pub(super) fn path(&self) -> &Path {
        &self.of.path
    }

    /// Begins an item. Its name says that it is not complete.
    pub(super) fn begin(
        &self,
        day: &str,
        manifest: impl Fn(String) -> Manifest,
    ) -> Result<OpenItem, QuarantineError> {
        let present = self.of.names()?;
        for number in 1..=present.len() + 1 {
            let id = format!("{day}-{number}");
            let is_taken = |end: &str| present.iter().any(|name| *name == *format!("{id}{end}"));
            if ["", NEW, GONE].into_iter().any(is_taken) {
                continue;
            }
            let name = OsString::from(format!("{id}{NEW}"));
            let path = self.path().join(&name);
            sys::mkdir(&self.of.directory, &name).map_err(failed(&path, "make the item"))?;
            let directory = openat(&self.of.directory, &*name, sys::DIRECTORY, Mode::empty())
                .map_err(failed(&path, "open"))?;
            let item = OpenItem { name, path, directory, manifest: manifest(id) };
            let written = item.write_manifest().and_then(|()| self.sync());
            if let Err(error) = written {
                self.drop_item(&item);
                return Err(error);
            }
            return Ok(item);
        }
        Err(failed(self.path(), "find a free id")(Errno::EEXIST))
    }

    /// Gives an item its name.
    pub(super) fn complete(&self, item: &mut OpenItem) -> Result<(), QuarantineError> {
        item.write_manifest()?;
        let id = OsString::from(&item.manifest.id);
        sys::rename_free(&self.of.directory, &item.name, &id).map_err(item.failed("rename the item"))?;
        item.path = self.path().join(&id);
        item.name = id;
        self.sync()
    }

    /// Removes an item with its object.
    pub(super) fn remove(&self, name: &OsStr) -> Result<(), QuarantineError> {
        let path = self.path().join(name);
        let mut gone = name.to_owned();
        gone.push(GONE);
        sys::rename_free(&self.of.directory, name, &gone).map_err(failed(&path, "remove"))?;
        self.sync()?;
        remove_all(&self.of.directory, &gone, &path)?;
        self.sync()
    }

    /// Removes an item that was not completed and has no object. The next move removes what stays.
    pub(super) fn drop_item(&self, item: &OpenItem) {
        if let Err(error) = remove_all(&self.of.directory, &item.name, &item.path) {
            tracing::warn!(%error, "Cannot remove an incomplete item of the quarantine now.");
        }
    }

    pub(super) fn sync(&self) -> Result<(), QuarantineError> {
        sys::sync_content(&self.of.directory).map_err(failed(self.path(), "sync the directory"))
    }
}
