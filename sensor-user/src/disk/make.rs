//! New objects under a name that no program reads.
//!
//! In: the state of an object. Out: the object, complete and durable, before an edit renames it to the path. A user who owns the
//! directory may put another object under the name, to get its owner changed. So owner, mode and attributes are set by handles
//! only.

use super::{
    error::{DiskError, DiskRefusal},
    metadata::{NewMetadata, label_value, read, set},
    place::{DIRECTORY, Place},
};
use crate::{
    observation::resolve::{is_just_made, just_made_link},
    sys,
};
use nix::{
    errno::Errno,
    fcntl::{OFlag, openat},
    sys::stat::{Mode, fstat},
};
use sensor_model::{
    journal::{LinkState, Metadata, PathState},
    selinux::ATTRIBUTE,
};
use std::{
    ffi::{OsStr, OsString},
    os::fd::OwnedFd,
};

/// A new link. Without an owner or a label it gets those of the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewLink<'a> {
    pub(super) target: &'a OsStr,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) label: Option<&'a str>,
}

/// The name under which an object is made, before it gets its temporary name.
pub(crate) fn part(name: &OsStr) -> OsString {
    let mut part = name.to_owned();
    part.push(".part");
    part
}

impl Place {
    /// Makes the object of a state under a free name, complete and durable. Until then it has the name of [`part`].
    pub(crate) fn make(
        &self,
        name: &OsStr,
        state: &PathState,
        content: Option<&[u8]>,
        hard: Option<&Self>,
    ) -> Result<(), DiskError> {
        let part = part(name);
        let made = match state {
            PathState::Absent => return Ok(()),
            PathState::Link(LinkState { target, uid, gid, label }) => {
                let target = target.as_os_str();
                sys::symlink(target, &self.directory, &part).map_err(self.failed("make the link"))?;
                let link = NewLink { target, uid: Some(*uid), gid: Some(*gid), label: label.as_deref() };
                Some(self.finish_link(&part, link)?)
            }
            PathState::Directory(wanted) => {
                let file = self.make_directory(&part, &NewMetadata::exactly(wanted))?;
                sys::sync_directory(&file).map_err(self.failed("sync"))?;
                Some(file)
            }
            PathState::File(wanted) => match (hard, content) {
                (Some(from), _) => {
                    self.link_from(from, &part).map_err(self.failed("make the hard link"))?;
                    None
                }
                (None, Some(bytes)) => {
                    let file = self.create(&part).map_err(self.failed("make a temporary file"))?;
                    let metadata = NewMetadata::exactly(&wanted.metadata);
                    self.finish_file(&file, bytes, &metadata, wanted.modified_ns)?;
                    Some(file)
                }
                (None, None) => {
                    return Err(DiskError::refused(&self.path, DiskRefusal::NoContent));
                }
            },
        };
        let seen = self.see_name(&part, &mut |_| {})?;
        if let Some(made) = made {
            let stat = fstat(&made).map_err(self.failed("stat"))?;
            if seen.identity != Some((stat.st_dev, stat.st_ino)) {
                return Err(self.replaced());
            }
        }
        // A file system may not keep all attributes. The next observation would show an object of another process.
        if !seen.state.as_ref().is_some_and(|seen| state.is(seen)) {
            return Err(DiskError::refused(&self.path, DiskRefusal::NotKept));
        }
        sys::rename_free(&self.directory, &part, name).map_err(self.failed("rename"))?;
        self.sync_names()
    }

    /// Makes the directory of this name and sets its metadata. Until then only its owner can read it.
    pub(crate) fn make_own_directory(&self, metadata: &NewMetadata<'_>) -> Result<OwnedFd, DiskError> {
        self.make_directory(&self.name, metadata)
    }

    fn make_directory(&self, name: &OsStr, metadata: &NewMetadata<'_>) -> Result<OwnedFd, DiskError> {
        match sys::mkdir(&self.directory, name) {
            Ok(()) => {}
            // Another process made it, so its owner is not changed.
            Err(Errno::EEXIST) => return Err(self.replaced()),
            Err(errno) => return Err(self.failed("make the directory")(errno)),
        }
        let opened = openat(&self.directory, name, DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty())
            .map_err(self.failed("open the directory"))?;
        if !is_just_made(&opened).map_err(self.failed("stat the directory"))? {
            return Err(self.replaced());
        }
        set(&opened, &self.path, metadata)?;
        Ok(opened)
    }

    /// Mode, owner and attributes of an open directory.
    pub(crate) fn read_metadata(&self, file: &OwnedFd) -> Result<Metadata, DiskError> {
        read(file).map(|(metadata, _)| metadata).map_err(self.failed("read attributes"))
    }

    /// Sets mode, owner and attributes of an open directory, and makes them durable as names are.
    pub(crate) fn set_metadata(&self, file: &OwnedFd, metadata: &Metadata) -> Result<(), DiskError> {
        set(file, &self.path, &NewMetadata::exactly(metadata))?;
        sys::sync_directory(file).map_err(self.failed("sync"))
    }

    /// Creates an empty file that only its owner can read.
    pub(super) fn create(&self, name: &OsStr) -> Result<OwnedFd, Errno> {
        sys::create(&self.directory, name)
    }

    /// Makes another name for the object of a place.
    pub(super) fn link_from(&self, from: &Self, name: &OsStr) -> Result<(), Errno> {
        sys::link(&from.directory, &from.name, &self.directory, name)
    }

    /// Writes content and metadata of a new file and makes them durable.
    pub(super) fn finish_file(
        &self,
        file: &OwnedFd,
        bytes: &[u8],
        metadata: &NewMetadata<'_>,
        modified_ns: Option<i64>,
    ) -> Result<(), DiskError> {
        sys::write(file, bytes).map_err(self.failed("write"))?;
        set(file, &self.path, metadata)?;
        if let Some(ns) = modified_ns {
            sys::set_modified(file, ns).map_err(self.failed("set the time"))?;
        }
        sys::sync_content(file).map_err(self.failed("sync"))
    }

    /// Sets owner and label of a new link, and returns a handle of it.
    pub(super) fn finish_link(&self, name: &OsStr, link: NewLink<'_>) -> Result<OwnedFd, DiskError> {
        let handle = just_made_link(&self.directory, name, link.target)
            .map_err(self.failed("stat the link"))?
            .ok_or_else(|| self.replaced())?;
        sys::own_link(&handle, link.uid, link.gid).map_err(self.failed("change the owner"))?;
        if let Some(label) = link.label {
            sys::set_link_attribute(&handle, ATTRIBUTE, &label_value(label))
                .map_err(self.failed("set the label"))?;
        }
        Ok(handle)
    }
}
