//! The objects of a host's repository, verified.
//!
//! In: the root of a host, and the checksum of an object. Out: the object, if it has this checksum. The refs of the repository have no
//! checksum.

use crate::{
    bounded,
    image::error::{ImageError, OstreeFault},
    observation::{Observer, REPOSITORY, checksum_of, object_place},
    sys::{self, CallError},
};
use nix::{
    errno::Errno,
    fcntl::{OFlag, readlinkat},
    sys::stat::{FileStat, SFlag, fstat},
};
use sensor_model::{
    image::{ImageEntry, ObjectDamage},
    observation::FileType,
    ostree::{
        Checksum, Commit, DirectoryMeta, DirectoryTree, FileHeader, OBJECT_LIMIT, ObjectError, Xattr,
        sorted_xattrs,
    },
    selinux, xattr,
};
use sha2::{Digest as _, Sha256};
use std::{
    collections::HashMap,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::Path,
};

/// Most bytes of its configuration file, or of a ref.
const TEXT_LIMIT: u64 = 64 << 10;

/// Most directories above each other.
pub(super) const MOST_DEEP: usize = 256;

/// The object of a file or a link.
#[derive(Debug, Clone)]
pub(super) enum FileObject {
    /// It has its checksum.
    Whole(ImageEntry),
    /// It does not, so only its checksum is known.
    Damaged(ObjectDamage),
}

/// The repository of a host.
pub(in crate::image) struct Repository<'a> {
    observer: &'a Observer,
    /// The files that were read. Many names lead to one object.
    files: HashMap<Checksum, FileObject>,
    /// Bytes of files that were read.
    read: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> Repository<'a> {
    /// The repository of the observer's host. `progress` gets the bytes of files that were read so far.
    ///
    /// # Errors
    /// A host without a repository, and a repository in another mode than `bare`.
    pub(in crate::image) fn of(
        observer: &'a Observer,
        progress: &'a mut dyn FnMut(u64),
    ) -> Result<Self, ImageError> {
        let repository = Self { observer, files: HashMap::new(), read: 0, progress };
        repository.refuse_other_modes()?;
        Ok(repository)
    }

    /// Bytes of files that were read so far.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// A commit.
    pub(in crate::image) fn commit(&self, checksum: Checksum) -> Result<Commit, ImageError> {
        self.object("commit", checksum, Commit::parse)
    }

    /// The checksum in a ref.
    pub(super) fn reference(&self, reference: &str) -> Result<Checksum, ImageError> {
        let path = Path::new(REPOSITORY).join(reference);
        let text = self.text(&path)?;
        checksum_of(text.trim()).ok_or_else(|| OstreeFault::Reference(path).into())
    }

    /// The names in a directory.
    pub(super) fn tree(&self, checksum: Checksum) -> Result<DirectoryTree, ImageError> {
        self.object("dirtree", checksum, DirectoryTree::parse)
    }

    /// A directory with its owner, mode and attributes.
    pub(super) fn directory(&self, checksum: Checksum) -> Result<ImageEntry, ImageError> {
        let DirectoryMeta { uid, gid, mode, xattrs } =
            self.object("dirmeta", checksum, DirectoryMeta::parse)?;
        Ok(ImageEntry {
            uid,
            gid,
            xattrs: described(&xattrs),
            ..ImageEntry::of_root(FileType::Directory, mode)
        })
    }

    /// A file or a link.
    ///
    /// # Errors
    /// This process may not read it.
    pub(super) fn file(&mut self, checksum: Checksum) -> Result<FileObject, ImageError> {
        if let Some(object) = self.files.get(&checksum) {
            return Ok(object.clone());
        }
        let read = self.read_file(checksum).or_else(|error| match damage(&error) {
            Some(damage) => Ok(FileObject::Damaged(damage)),
            None => Err(error),
        })?;
        self.files.insert(checksum, read.clone());
        Ok(read)
    }

    /// In another mode than `bare`, files are stored with other metadata.
    fn refuse_other_modes(&self) -> Result<(), ImageError> {
        let path = Path::new(REPOSITORY).join("config");
        let text = self.text(&path)?;
        let values = text.lines().filter_map(|line| line.split_once('='));
        let mode = values.filter(|(key, _)| key.trim() == "mode").map(|(_, mode)| mode.trim()).next_back();
        match mode {
            Some("bare") => Ok(()),
            other => Err(OstreeFault::Mode(other.unwrap_or("unknown").to_owned()).into()),
        }
    }

    /// A file of the repository that is no object.
    fn text(&self, path: &Path) -> Result<String, CallError> {
        let file = self.open(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
        let read = bounded::read_open(file, TEXT_LIMIT);
        let text = read.map_err(|error| CallError::new(path, "read", error.errno()))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn open(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, CallError> {
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = self.observer.root().open_at(path, flags);
        opened.map_err(|errno| CallError::new(path, "open in the ostree repository", errno))
    }

    /// An object that is not a file.
    fn object<T>(
        &self,
        kind: &'static str,
        checksum: Checksum,
        parse: impl Fn(&[u8]) -> Result<T, ObjectError>,
    ) -> Result<T, ImageError> {
        let path = object_place(kind, checksum);
        let file = self.open(&path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
        let bytes = bounded::read_open(file, OBJECT_LIMIT)
            .map_err(|error| CallError::new(&path, "read", error.errno()))?;
        if Checksum::from(Sha256::digest(&bytes)) != checksum {
            return Err(OstreeFault::Damaged { object: path }.into());
        }
        parse(&bytes).map_err(|reason| OstreeFault::Object { object: path, reason }.into())
    }

    /// A file or a link, from the disk: ostree's checksum covers owner, mode, attributes and content.
    fn read_file(&mut self, checksum: Checksum) -> Result<FileObject, ImageError> {
        let object = object_place("file", checksum);
        let failed = |operation| {
            let object = object.clone();
            move |errno: Errno| CallError::new(&object, operation, errno)
        };
        let handle = self.open(&object, OFlag::O_PATH)?;
        let stat = fstat(&handle).map_err(failed("look up"))?;
        let kind = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
        let (entry, found) = if kind == SFlag::S_IFLNK {
            let target = readlinkat(&handle, "").map_err(failed("read the link"))?;
            let xattrs =
                sorted_xattrs(sys::attributes_by_handle(&handle).map_err(failed("read the attributes"))?);
            let found = header(&stat, target.as_bytes(), &xattrs).of_link();
            let target = Some(target.as_bytes().to_vec());
            (ImageEntry { target, xattrs: described(&xattrs), ..owned(FileType::Symlink, &stat) }, found)
        } else if kind == SFlag::S_IFREG {
            let file = self.open(&object, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
            let xattrs = sorted_xattrs(sys::attributes(&file).map_err(failed("read the attributes"))?);
            let (mut whole, mut content) = (header(&stat, b"", &xattrs).begin(), Sha256::new());
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            let is_whole = sys::each_chunk(&file, size, |chunk| {
                whole.update(chunk);
                content.update(chunk);
                Ok(())
            });
            if !is_whole.map_err(failed("read"))? {
                return Ok(FileObject::Damaged(ObjectDamage::Changing));
            }
            self.read += size;
            (self.progress)(self.read);
            let sha256 = Some(content.finalize().into());
            let entry =
                ImageEntry { size, sha256, xattrs: described(&xattrs), ..owned(FileType::Regular, &stat) };
            (entry, whole.finalize().into())
        } else {
            return Ok(FileObject::Damaged(ObjectDamage::Type));
        };
        if found != checksum {
            return Ok(FileObject::Damaged(ObjectDamage::Checksum));
        }
        Ok(FileObject::Whole(entry))
    }
}

/// The damage of an object that explains why a file or a link cannot be read. Other errors are those of this process.
fn damage(error: &ImageError) -> Option<ObjectDamage> {
    let ImageError::Call(error) = error else { return None };
    match error.errno()? {
        Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP => Some(ObjectDamage::Missing),
        Errno::EIO | Errno::EUCLEAN | Errno::EBADMSG => Some(ObjectDamage::Unreadable),
        _ => None,
    }
}

fn header<'a>(stat: &FileStat, target: &'a [u8], xattrs: &'a [Xattr]) -> FileHeader<'a> {
    FileHeader { uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode, target, xattrs }
}

fn owned(file_type: FileType, stat: &FileStat) -> ImageEntry {
    ImageEntry { uid: stat.st_uid, gid: stat.st_gid, ..ImageEntry::of_root(file_type, stat.st_mode) }
}

/// The attributes in the form of an index. The label is the host's policy's matter.
pub(in crate::image) fn described(xattrs: &[Xattr]) -> Vec<(String, String)> {
    let named = xattrs.iter().map(|xattr| (String::from_utf8_lossy(&xattr.name).into_owned(), &xattr.value));
    let kept = named.filter(|(name, _)| name != selinux::ATTRIBUTE);
    kept.map(|(name, value)| (name.clone(), xattr::describe(&name, value))).collect()
}
