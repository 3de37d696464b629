//! The state of the object at a managed path.
//!
//! In: a place. Out: the type, content, metadata or target of the object, read through handles and without following a link. No
//! device and no FIFO is opened.

use super::{
    error::{DiskError, DiskRefusal},
    metadata::{self, label_text},
    place::Place,
};
use crate::{
    bounded,
    sys::{self, CallError},
};
use nix::{
    errno::Errno,
    fcntl::{OFlag, openat, readlinkat},
    sys::stat::Mode,
};
use rustix::fs::getxattr;
use sensor_model::{
    journal::{FileState, LinkState, PathState},
    selinux::ATTRIBUTE,
};
use sha2::{Digest as _, Sha256};
use std::{ffi::OsStr, fs::File, io::Read as _, os::fd::OwnedFd, path::Path};

/// The device and the number of an inode.
pub(crate) type ObjectIdentity = (u64, u64);

/// The object that a name had.
#[derive(Debug, Clone)]
pub(crate) struct FoundObject {
    /// Its state; `None` for a device, a FIFO, a socket, and a file that is too large.
    pub(crate) state: Option<PathState>,
    pub(crate) identity: Option<ObjectIdentity>,
    /// The size of a file that is larger than [`bounded::CONTENT`], and was not read.
    pub(crate) too_large: Option<u64>,
}

impl FoundObject {
    /// The state, for an apply that keeps the object.
    ///
    /// # Errors
    /// An apply cannot keep the object: it is too large, or not a file, directory or link.
    pub(crate) fn kept(self, path: &Path) -> Result<PathState, DiskError> {
        let reason = match self {
            Self { state: Some(state), .. } => return Ok(state),
            Self { too_large: Some(size), .. } => DiskRefusal::TooLarge { size },
            _ => DiskRefusal::SpecialObject,
        };
        Err(DiskError::refused(path, reason))
    }
}

/// The content of a file, without its bytes.
enum FoundContent {
    Read { sha256: String, size: u64 },
    TooLarge(u64),
}

impl Place {
    /// The object with the name.
    pub(crate) fn see(&self) -> Result<FoundObject, DiskError> {
        self.see_name(&self.name, &mut |_| {})
    }

    /// The object with another name in the directory. The bytes of a regular file go to `sink` as they are read.
    pub(crate) fn see_name(
        &self,
        name: &OsStr,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<FoundObject, DiskError> {
        let Some(stat) = self.stat_name(name)? else {
            return Ok(FoundObject { state: Some(PathState::Absent), identity: None, too_large: None });
        };
        let identity = Some((stat.st_dev, stat.st_ino));
        let state = match stat.st_mode & nix::libc::S_IFMT {
            nix::libc::S_IFLNK => {
                let target = readlinkat(&self.directory, name).map_err(self.failed("read the link"))?;
                let label = self.link_label(name).map_err(self.failed("read attributes"))?;
                Some(PathState::Link(LinkState {
                    target: target.into(),
                    uid: stat.st_uid,
                    gid: stat.st_gid,
                    label,
                }))
            }
            nix::libc::S_IFDIR => {
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let file =
                    openat(&self.directory, name, flags, Mode::empty()).map_err(self.failed("open"))?;
                Some(PathState::Directory(metadata::read(&file).map_err(self.failed("read attributes"))?.0))
            }
            nix::libc::S_IFREG => {
                let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let file =
                    openat(&self.directory, name, flags, Mode::empty()).map_err(self.failed("open"))?;
                let (metadata, stat) = metadata::read(&file).map_err(self.failed("read attributes"))?;
                let (sha256, size) = match self.digest(file, stat.st_size, sink)? {
                    FoundContent::Read { sha256, size } => (sha256, size),
                    FoundContent::TooLarge(size) => {
                        return Ok(FoundObject { state: None, identity, too_large: Some(size) });
                    }
                };
                let modified_ns = stat.st_mtime.checked_mul(1_000_000_000);
                Some(PathState::File(FileState {
                    metadata,
                    sha256,
                    size,
                    modified_ns: modified_ns.and_then(|ns| ns.checked_add(stat.st_mtime_nsec)),
                    hard: None,
                    names: 0,
                }))
            }
            _ => None,
        };
        Ok(FoundObject { state, identity, too_large: None })
    }

    /// Reads a file up to the limit. Its owner may make it as large as the disk, also while it is read.
    fn digest(
        &self,
        file: OwnedFd,
        size: i64,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<FoundContent, DiskError> {
        let too_large = |size: u64| (size > bounded::CONTENT).then_some(FoundContent::TooLarge(size));
        if let Some(content) = too_large(u64::try_from(size).unwrap_or_default()) {
            return Ok(content);
        }
        let mut file = File::from(file);
        let (mut digest, mut size) = (Sha256::new(), 0);
        let mut chunk = vec![0; 64 << 10];
        loop {
            let length = file.read(&mut chunk).map_err(|error| CallError::new(&self.path, "read", error))?;
            if length == 0 {
                return Ok(FoundContent::Read { sha256: hex::encode(digest.finalize()), size });
            }
            digest.update(&chunk[..length]);
            size += length as u64;
            if let Some(content) = too_large(size) {
                return Ok(content);
            }
            sink(&chunk[..length]);
        }
    }

    fn link_label(&self, name: &OsStr) -> Result<Option<String>, Errno> {
        let mut value = vec![0; 4096];
        match getxattr(sys::by_handle(&self.handle_of(name)?), ATTRIBUTE, value.as_mut_slice()) {
            Ok(length) => Ok(Some(label_text(&value[..length]))),
            // Without /proc the label cannot be read. Every running host has /proc.
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOENT) => {
                Ok(None)
            }
            Err(errno) => Err(sys::raw(errno)),
        }
    }
}
