//! What is at a path, in full; and making it at a temporary name.
//!
//! In: the host's root and a path. Out: its image, read through handles without following the last name; or an
//! object like an image, complete and durable before it has a name that counts. It opens no device and no FIFO.

use super::{ApplyError, labels};
use crate::sys;
use crate::{
    bounded,
    observation::resolve::{Root, is_just_made},
};
use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat, readlinkat},
    sys::stat::{FileStat, Mode, fstat, fstatat},
};
use rustix::fs::{fgetxattr, flistxattr, getxattr};
use sensor_model::{
    journal::{FileImage, Image, LinkImage, Metadata},
    selinux::ATTRIBUTE,
};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::File,
    io::Read as _,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Somebody else was at work at the same time.
const TAKEN: &str =
    "another process put something in its place a moment ago; find it with `holdfast who`, and apply again";

/// A name in an open directory.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) directory: OwnedFd,
    pub(super) name: OsString,
    pub(super) path: PathBuf,
}

/// Which inode.
pub(super) type Identity = (u64, u64);

/// What was seen.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// `None` for a device, a FIFO, a socket, and a file that is too large.
    pub(super) image: Option<Image>,
    pub(super) identity: Option<Identity>,
    /// Bytes of a file that is larger than any that an apply keeps, and was not read; it has no image.
    pub(super) too_large: Option<u64>,
}

impl Seen {
    /// The image, where it is one that an apply can keep.
    pub(super) fn kept(self, path: &Path) -> Result<Image, ApplyError> {
        let reason = match self {
            Self { image: Some(image), .. } => return Ok(image),
            Self { too_large: Some(size), .. } => {
                let limit = bounded::CONTENT;
                format!("it has {size} bytes, and {limit} bytes are the limit; move it away first")
            }
            _ => "a device, FIFO or socket is in its place; move it away first".to_owned(),
        };
        Err(ApplyError::refused(path, reason))
    }
}

/// What was read of a file.
enum Content {
    Read { sha256: String, size: u64 },
    TooLarge(u64),
}

impl Place {
    /// The place of a path; `None` when its directory is not there.
    pub(super) fn find(root: &Root, path: &Path) -> Result<Option<Self>, ApplyError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(ApplyError::refused(path, "the root itself cannot be replaced"));
        };
        match root.open_at(parent, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            Ok(directory) => Ok(Some(Self { directory, name: name.to_owned(), path: path.to_owned() })),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(errno) => Err(ApplyError::opening(parent, "open the directory", errno)),
        }
    }

    /// What has the name.
    pub(super) fn see(&self) -> Result<Seen, ApplyError> {
        self.see_name(&self.name, &mut |_| Ok(()))
    }

    /// What has a name in the directory; a regular file's bytes go to `sink` as they are read.
    pub(super) fn see_name(
        &self,
        name: &OsStr,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), ApplyError>,
    ) -> Result<Seen, ApplyError> {
        let failed = |operation| move |errno| ApplyError::failed(&self.path, operation, errno);
        let stat = match fstatat(&self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::ENOENT) => {
                return Ok(Seen { image: Some(Image::Absent), identity: None, too_large: None });
            }
            Err(errno) => return Err(failed("stat")(errno)),
        };
        let identity = Some((stat.st_dev, stat.st_ino));
        let image = match stat.st_mode & nix::libc::S_IFMT {
            nix::libc::S_IFLNK => {
                let target = readlinkat(&self.directory, name).map_err(failed("read the link"))?;
                let label = self.link_label(name).map_err(failed("read attributes"))?;
                Some(Image::Link(LinkImage {
                    target: target.into(),
                    uid: stat.st_uid,
                    gid: stat.st_gid,
                    label,
                }))
            }
            nix::libc::S_IFDIR => {
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let file = openat(&self.directory, name, flags, Mode::empty()).map_err(failed("open"))?;
                Some(Image::Directory(metadata(&file).map_err(failed("read attributes"))?.0))
            }
            nix::libc::S_IFREG => {
                let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let file = openat(&self.directory, name, flags, Mode::empty()).map_err(failed("open"))?;
                let (metadata, stat) = metadata(&file).map_err(failed("read attributes"))?;
                let (sha256, size) = match self.digest(file, stat.st_size, sink)? {
                    Content::Read { sha256, size } => (sha256, size),
                    Content::TooLarge(size) => {
                        return Ok(Seen { image: None, identity, too_large: Some(size) });
                    }
                };
                let modified_ns = stat.st_mtime.checked_mul(1_000_000_000);
                Some(Image::File(FileImage {
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
        Ok(Seen { image, identity, too_large: None })
    }

    /// A file that its owner made as large as a disk is not read; one that grows meanwhile is read no further.
    fn digest(
        &self,
        file: OwnedFd,
        size: i64,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), ApplyError>,
    ) -> Result<Content, ApplyError> {
        let too_large = |size: u64| (size > bounded::CONTENT).then_some(Content::TooLarge(size));
        if let Some(content) = too_large(u64::try_from(size).unwrap_or_default()) {
            return Ok(content);
        }
        let mut file = File::from(file);
        let (mut digest, mut size) = (Sha256::new(), 0);
        let mut chunk = vec![0; 64 << 10];
        loop {
            let length = file.read(&mut chunk).map_err(|error| {
                let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
                ApplyError::failed(&self.path, "read", errno)
            })?;
            if length == 0 {
                return Ok(Content::Read { sha256: hex::encode(digest.finalize()), size });
            }
            digest.update(&chunk[..length]);
            size += length as u64;
            if let Some(content) = too_large(size) {
                return Ok(content);
            }
            sink(&chunk[..length])?;
        }
    }

    /// Makes an image at a free name, in full and durable: first under a name that never counts.
    pub(super) fn make(
        &self,
        name: &OsStr,
        image: &Image,
        content: Option<&[u8]>,
        hard: Option<&Place>,
    ) -> Result<(), ApplyError> {
        let failed = |operation| move |errno| ApplyError::failed(&self.path, operation, errno);
        let part = part(name);
        // Whoever owns the directory may put another object in the place of what is made, to be given it. So owner, mode and
        // attributes are set by a handle alone.
        let made = match image {
            Image::Absent => return Ok(()),
            Image::Link(link) => {
                let target = link.target.as_os_str();
                sys::symlink(target, &self.directory, &part).map_err(failed("make the link"))?;
                let handle = sys::just_made_link(&self.directory, &part, target)
                    .map_err(failed("look at the link"))?
                    .ok_or_else(|| ApplyError::refused(&self.path, TAKEN))?;
                sys::own_link(&handle, link.uid, link.gid).map_err(failed("change the owner"))?;
                if let Some(label) = &link.label {
                    sys::set_link_attribute(&handle, ATTRIBUTE, &labels::value(label))
                        .map_err(failed("set the label"))?;
                }
                Some(handle)
            }
            Image::Directory(wanted) => {
                sys::mkdir(&self.directory, &part).map_err(failed("make the directory"))?;
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let file = openat(&self.directory, &*part, flags, Mode::empty()).map_err(failed("open"))?;
                if !is_just_made(&file).map_err(failed("look at the directory"))? {
                    return Err(ApplyError::refused(&self.path, TAKEN));
                }
                self.set(&file, wanted)?;
                sys::sync_directory(&file).map_err(failed("sync"))?;
                Some(file)
            }
            Image::File(wanted) => match (hard, content) {
                (Some(from), _) => {
                    sys::link(&from.directory, &from.name, &self.directory, &part)
                        .map_err(failed("make the hard link"))?;
                    None
                }
                (None, Some(bytes)) => {
                    let file =
                        sys::create(&self.directory, &part).map_err(failed("make a temporary file"))?;
                    sys::write(&file, bytes).map_err(failed("write"))?;
                    self.set(&file, &wanted.metadata)?;
                    if let Some(ns) = wanted.modified_ns {
                        sys::set_modified(&file, ns).map_err(failed("set the time"))?;
                    }
                    sys::sync_content(&file).map_err(failed("sync"))?;
                    Some(file)
                }
                (None, None) => {
                    return Err(ApplyError::refused(&self.path, "its content is not in the store"));
                }
            },
        };
        let seen = self.see_name(&part, &mut |_| Ok(()))?;
        if let Some(made) = made {
            let stat = fstat(&made).map_err(failed("stat"))?;
            if seen.identity != Some((stat.st_dev, stat.st_ino)) {
                return Err(ApplyError::refused(&self.path, TAKEN));
            }
        }
        // A file system that keeps less than it was given must not pass for somebody else's work.
        if !seen.image.as_ref().is_some_and(|seen| image.is(seen)) {
            return Err(ApplyError::refused(
                &self.path,
                "the file system does not keep mode, owner, attributes or content as written",
            ));
        }
        sys::rename_free(&self.directory, &part, name).map_err(failed("rename"))?;
        sys::sync_directory(&self.directory).map_err(failed("sync the directory"))
    }

    /// A handle of what has a name, also of a link.
    fn handle(&self, name: &OsStr) -> Result<OwnedFd, Errno> {
        openat(&self.directory, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
    }

    fn link_label(&self, name: &OsStr) -> Result<Option<String>, Errno> {
        let mut value = vec![0; 4096];
        match getxattr(sys::by_handle(&self.handle(name)?), ATTRIBUTE, value.as_mut_slice()) {
            Ok(length) => {
                let label = String::from_utf8_lossy(&value[..length]);
                Ok(Some(label.trim_end_matches('\0').to_owned()))
            }
            // Without /proc it cannot be asked for; a host has it.
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOENT) => {
                Ok(None)
            }
            Err(errno) => Err(sys::raw(errno)),
        }
    }

    /// Sets owner, attributes and mode of an open object.
    pub(super) fn set(&self, file: &OwnedFd, wanted: &Metadata) -> Result<(), ApplyError> {
        let failed = |operation| move |errno| ApplyError::failed(&self.path, operation, errno);
        sys::own(file, wanted.uid, wanted.gid).map_err(failed("change the owner"))?;
        let (present, _) = metadata(file).map_err(failed("read attributes"))?;
        for name in present.xattrs.keys() {
            let kernels = sensor_model::xattr::is_ignored(name, "");
            if !wanted.xattrs.contains_key(name) && !kernels {
                sys::remove_attribute(file, name).map_err(failed("remove an extended attribute"))?;
            }
        }
        for (name, value) in &wanted.xattrs {
            if present.xattrs.get(name) != Some(value) {
                let bytes = hex::decode(value).map_err(|_| {
                    ApplyError::refused(&self.path, "an attribute of the journal is not hexadecimal")
                })?;
                sys::set_attribute(file, name, &bytes).map_err(failed("set an extended attribute"))?;
            }
        }
        // A change of owner takes setuid bits away, and an access control list is part of the mode: mode last.
        sys::mode(file, wanted.mode).map_err(failed("change the mode"))
    }
}

/// The name under which something is made.
pub(super) fn part(name: &OsStr) -> OsString {
    let mut part = name.to_owned();
    part.push(".part");
    part
}

/// Mode, owner and attributes of an open object, and its `stat`.
pub(super) fn metadata(file: impl AsFd) -> Result<(Metadata, FileStat), Errno> {
    let stat = fstat(file.as_fd())?;
    let mut list = vec![0; 64 << 10];
    let length = match flistxattr(file.as_fd(), list.as_mut_slice()) {
        Ok(length) => length,
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => 0,
        Err(errno) => return Err(sys::raw(errno)),
    };
    let mut xattrs = BTreeMap::new();
    let mut value = vec![0; 64 << 10];
    for name in list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match fgetxattr(file.as_fd(), name, value.as_mut_slice()) {
            Ok(length) => {
                xattrs.insert(String::from_utf8_lossy(name).into_owned(), hex::encode(&value[..length]));
            }
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(sys::raw(errno)),
        }
    }
    let metadata = Metadata { mode: stat.st_mode & 0o7777, uid: stat.st_uid, gid: stat.st_gid, xattrs };
    Ok((metadata, stat))
}
