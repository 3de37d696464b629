//! The host of a repair, and the owners and parents that its config declares.
//!
//! In: a path of the root. Out: its place, with missing parents made as the config declares them; the numbers of declared owners.

use super::{
    error::{RepairError, RepairRefusal, UnknownOwner},
    pristine::PristineFile,
};
use crate::{
    disk::{DiskError, DiskRefusal, NewMetadata, Place, Xattrs},
    observation::Observer,
};
use nix::{errno::Errno, fcntl::OFlag};
use sensor_model::{
    compare::Ids,
    expectation::{LinkExpectation, Owner},
    merge::Rendered,
};
use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// Mode of a missing parent that no config declares.
const PARENT_MODE: u32 = 0o755;

/// Mode of a missing directory of ssh keys. sshd refuses keys in a directory that other users can write.
const SSH_MODE: u32 = 0o700;

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// The file of which a declared link is another name; `None` for a symbolic link.
pub fn linked_file(path: &Path, link: &LinkExpectation) -> Option<PathBuf> {
    link.hard.then(|| path.parent().unwrap_or(Path::new("/")).join(&link.target))
}

/// The host of a repair, and its config.
#[derive(Debug)]
pub(super) struct RepairContext<'a> {
    pub(super) observer: &'a Observer,
    pub(super) rendered: &'a Rendered,
    pub(super) ids: &'a Ids,
    /// The file that the image has, for a thing that no config declares.
    pub(super) pristine: Option<PristineFile>,
}

/// The owner of new directories of ssh keys.
pub(super) type KeyOwner = Option<(Option<u32>, Option<u32>)>;

impl RepairContext<'_> {
    /// The place of a path. Makes missing parents.
    pub(super) fn place(&self, path: &Path, keys: KeyOwner) -> Result<Place, RepairError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(DiskError::refused(path, DiskRefusal::Root).into());
        };
        let directory = self.directory(parent, keys)?;
        Ok(Place { directory, name: name.to_owned(), path: path.to_owned() })
    }

    /// The place of a path; `None` if its directory is missing.
    pub(super) fn existing_place(&self, path: &Path) -> Result<Option<Place>, RepairError> {
        Ok(Place::find(self.observer.root(), path)?)
    }

    /// Opens a directory. Makes it and its parents if they are missing.
    pub(super) fn directory(&self, path: &Path, keys: KeyOwner) -> Result<OwnedFd, RepairError> {
        match self.observer.root().open_at(path, DIRECTORY) {
            Ok(directory) => return Ok(directory),
            Err(Errno::ENOENT) => {}
            Err(Errno::ENOTDIR) => {
                return Err(RepairError::refused(path, RepairRefusal::NotADirectory));
            }
            Err(errno) => return Err(DiskError::opening(path, "open the directory", errno).into()),
        }
        let is_ssh = path.ancestors().any(|ancestor| ancestor.ends_with(".ssh"));
        if keys.is_some() && !is_ssh {
            return Err(RepairError::refused(path, RepairRefusal::NoHome));
        }
        let place = self.place(path, keys)?;
        if place.stat()?.is_some() {
            return Err(RepairError::refused(path, RepairRefusal::DanglingLink));
        }
        let (mode, user, group) = self.declared_parent(path, keys)?;
        let metadata =
            NewMetadata { mode: Some(mode), uid: user, gid: group, xattrs: Xattrs::Declared { label: None } };
        let opened = place.make_own_directory(&metadata)?;
        place.sync()?;
        Ok(opened)
    }

    fn declared_parent(
        &self,
        path: &Path,
        keys: KeyOwner,
    ) -> Result<(u32, Option<u32>, Option<u32>), RepairError> {
        if let Some(declared) = path.to_str().and_then(|path| self.rendered.directories.get(path)) {
            let directory = &declared.value;
            let mode = directory.mode.and_then(|mode| u32::try_from(mode).ok());
            let owner = |id: Option<i64>, name: Option<&String>| match (id, name) {
                (Some(id), _) => Owner::Id(u32::try_from(id).unwrap_or(0)),
                (None, Some(name)) if !name.is_empty() => Owner::Name(name.clone()),
                _ => Owner::Id(0),
            };
            let user =
                directory.user.as_ref().map_or(Owner::Id(0), |user| owner(user.id, user.name.as_ref()));
            let group =
                directory.group.as_ref().map_or(Owner::Id(0), |group| owner(group.id, group.name.as_ref()));
            let (user, group) = self.owners(path, &user, &group)?;
            return Ok((mode.unwrap_or(PARENT_MODE) & 0o7777, user, group));
        }
        Ok(match keys {
            Some((user, group)) => (SSH_MODE, user, group),
            None => (PARENT_MODE, Some(0), Some(0)),
        })
    }

    /// Numeric owner and group; `None` if not declared.
    pub(super) fn owners(
        &self,
        path: &Path,
        user: &Owner,
        group: &Owner,
    ) -> Result<(Option<u32>, Option<u32>), RepairError> {
        let unknown = |owner: UnknownOwner| RepairError::refused(path, owner);
        let user = match user {
            Owner::Id(id) => Some(*id),
            Owner::Name(name) => Some(
                self.ids
                    .users
                    .get(name)
                    .copied()
                    .or_else(|| self.observer.uid(name))
                    .ok_or_else(|| unknown(UnknownOwner::User(name.clone())))?,
            ),
            Owner::Undeclared => None,
        };
        let group = match group {
            Owner::Id(id) => Some(*id),
            Owner::Name(name) => Some(
                self.ids
                    .groups
                    .get(name)
                    .copied()
                    .or_else(|| self.observer.gid(name))
                    .ok_or_else(|| unknown(UnknownOwner::Group(name.clone())))?,
            ),
            Owner::Undeclared => None,
        };
        Ok((user, group))
    }
}
