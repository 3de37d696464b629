//! An index of the ostree commit that a host booted.
//!
//! In: the repository of an ostree host. Out: the index file: what the commit has in `/usr`, the links of the root directory, and the
//! commit's `/usr/etc` once more as `/etc`, which is its first state on the host. Each object is verified: the commit by the name of the
//! booted deployment, and every other one by the object that leads to it.

use super::{
    error::{ImageError, OstreeFault},
    images::Images,
    write::{self, Indexed},
};
use crate::{
    bounded,
    clock::rfc3339,
    observation::Observer,
    sys::{self, CallError},
};
use jiff::Timestamp;
use nix::{
    errno::Errno,
    fcntl::{OFlag, readlinkat},
    sys::stat::{FileStat, SFlag, fstat},
};
use sensor_model::{
    image::{ImageEntry, ImageLimits, ImageMeta, ImageSource, Known, LayerMeta, is_of_each_host},
    observation::FileType,
    os::PRISTINE,
    ostree::{
        Checksum, Commit, DirectoryMeta, DirectoryTree, FileHeader, OBJECT_LIMIT, ObjectError, SubDirectory,
        Xattr,
    },
    selinux, xattr,
};
use sha2::{Digest as _, Sha256};
use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

/// The repository of a booted host.
const REPOSITORY: &str = "/ostree/repo";
/// Most bytes of its configuration file.
const CONFIG_LIMIT: u64 = 64 << 10;
/// Most directories above each other.
const MOST_DEEP: usize = 256;
/// Characters of the commit's subject that the index keeps. Each record of a drift has them.
const SUBJECT: usize = 120;

/// Indexes the commit that a host booted. `progress` gets the bytes of files that were read so far.
///
/// # Errors
/// A host that booted no ostree deployment, an object that is missing or damaged, and an index that cannot be written.
pub fn index_ostree(
    observer: &Observer,
    images: &Images,
    progress: &mut dyn FnMut(u64),
) -> Result<Indexed, ImageError> {
    let checksum = super::deployment::booted_commit(observer).ok_or(OstreeFault::NotBooted)?;
    let name = hex::decode(&checksum).ok().and_then(|bytes| Checksum::try_from(bytes).ok());
    let name = name.ok_or_else(|| OstreeFault::Name(checksum.clone()))?;
    let mut repository =
        Repository { observer, files: HashMap::new(), found: Vec::new(), read: 0, metadata: 0, progress };
    repository.refuse_other_modes()?;
    let commit = repository.object("commit", name, Commit::parse)?;
    repository.root(&commit)?;
    let mut entries = repository.found;
    // A directory comes before what is in it.
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    let layer = LayerMeta {
        digest: String::new(),
        diff_id: String::new(),
        size: None,
        package: None,
        history: Some(in_words(&checksum, &commit.subject)),
    };
    let created = i64::try_from(commit.seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    let meta = ImageMeta {
        source: ImageSource::Ostree,
        digest: format!("sha256:{checksum}"),
        indexes: Vec::new(),
        config: String::new(),
        platform: String::new(),
        names: Vec::new(),
        created: created.map(rfc3339),
        layers: vec![layer],
        entries: 0,
        bytes: repository.read,
        ostree: false,
        state: Some(checksum),
    };
    write::write(images, meta, &entries)
}

struct Repository<'a> {
    observer: &'a Observer,
    /// The files that were read. Many names lead to one object.
    files: HashMap<Checksum, ImageEntry>,
    found: Vec<(Vec<u8>, ImageEntry)>,
    /// Bytes of files.
    read: u64,
    /// Bytes of names and targets.
    metadata: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Repository<'_> {
    /// In another mode than `bare`, files are stored with other metadata.
    fn refuse_other_modes(&self) -> Result<(), ImageError> {
        let path = Path::new(REPOSITORY).join("config");
        let file = self.open(&path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
        let read = bounded::read_open(file, CONFIG_LIMIT);
        let text = read.map_err(|error| CallError::new(&path, "read", error.errno()))?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let values = text.lines().filter_map(|line| line.split_once('='));
        let mode = values.filter(|(key, _)| key.trim() == "mode").map(|(_, mode)| mode.trim()).next_back();
        match mode {
            Some("bare") => Ok(()),
            other => Err(OstreeFault::Mode(other.unwrap_or("unknown").to_owned()).into()),
        }
    }

    fn open(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, CallError> {
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = self.observer.root().open_at(path, flags);
        opened.map_err(|errno| CallError::new(path, "open the ostree object", errno))
    }

    /// An object that is not a file, verified.
    fn object<T>(
        &self,
        kind: &'static str,
        checksum: Checksum,
        parse: impl Fn(&[u8]) -> Result<T, ObjectError>,
    ) -> Result<T, ImageError> {
        let path = place(kind, checksum);
        let file = self.open(&path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
        let bytes = bounded::read_open(file, OBJECT_LIMIT)
            .map_err(|error| CallError::new(&path, "read", error.errno()))?;
        if Checksum::from(Sha256::digest(&bytes)) != checksum {
            return Err(OstreeFault::Damaged { object: path, of: None }.into());
        }
        parse(&bytes).map_err(|reason| OstreeFault::Object { object: path, reason }.into())
    }

    /// The links of the root directory, and everything in `/usr`. The other directories there are mount points.
    fn root(&mut self, commit: &Commit) -> Result<(), ImageError> {
        let tree = self.object("dirtree", commit.tree, DirectoryTree::parse)?;
        for file in &tree.files {
            self.file(format!("/{}", file.name).as_bytes(), file.file)?;
        }
        for directory in tree.directories.iter().filter(|directory| directory.name == "usr") {
            self.directory(b"/usr", directory, 1)?;
        }
        Ok(())
    }

    fn directory(&mut self, path: &[u8], directory: &SubDirectory, depth: usize) -> Result<(), ImageError> {
        if depth > MOST_DEEP {
            return Err(CallError::new(Path::new(&directory.name), "read the directory", Errno::ELOOP).into());
        }
        if depth > 1 {
            let DirectoryMeta { uid, gid, mode, xattrs } =
                self.object("dirmeta", directory.meta, DirectoryMeta::parse)?;
            let entry =
                ImageEntry { uid, gid, xattrs: described(&xattrs), ..entry(FileType::Directory, mode) };
            self.add(path, &entry)?;
        } else {
            // `/usr` itself is a mount on a booted host, so only its existence is compared. Links of the root directory lead to it.
            let known = Known::Existence;
            self.push(path.to_vec(), ImageEntry { known, ..entry(FileType::Directory, 0) })?;
        }
        let tree = self.object("dirtree", directory.tree, DirectoryTree::parse)?;
        for file in &tree.files {
            self.file(&join(path, &file.name), file.file)?;
        }
        for below in &tree.directories {
            self.directory(&join(path, &below.name), below, depth + 1)?;
        }
        Ok(())
    }

    fn file(&mut self, path: &[u8], checksum: Checksum) -> Result<(), ImageError> {
        let entry = if let Some(entry) = self.files.get(&checksum) {
            entry.clone()
        } else {
            let read = self.read_file(path, checksum)?;
            self.files.insert(checksum, read.clone());
            read
        };
        self.add(path, &entry)
    }

    /// Adds an entry, and what it makes of `/etc` on the host.
    fn add(&mut self, path: &[u8], entry: &ImageEntry) -> Result<(), ImageError> {
        self.push(path.to_vec(), entry.clone())?;
        let Some(rest) =
            path.strip_prefix(PRISTINE.as_bytes()).filter(|rest| matches!(rest.first(), None | Some(b'/')))
        else {
            return Ok(());
        };
        let path = [b"/etc", rest].concat();
        let of_each_host = is_of_each_host(Path::new(OsStr::from_bytes(&path)));
        let known = if of_each_host { Known::Existence } else { Known::All };
        self.push(path, ImageEntry { known, config: true, ..entry.clone() })
    }

    /// Adds an entry within the limits of an image.
    fn push(&mut self, path: Vec<u8>, entry: ImageEntry) -> Result<(), ImageError> {
        let limits = ImageLimits::default();
        self.metadata += path.len() as u64 + entry.target.as_ref().map_or(0, Vec::len) as u64;
        let is_long = path.len() > limits.path
            || path.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.len() > limits.name);
        let is_full = self.found.len() >= limits.entries as usize || self.metadata > limits.metadata;
        if is_long || is_full {
            let path = String::from_utf8_lossy(&path).chars().take(200).collect();
            return Err(OstreeFault::Limits(path).into());
        }
        self.found.push((path, entry));
        Ok(())
    }

    /// A file or a link of the repository, verified: ostree's checksum covers owner, mode, attributes and content.
    fn read_file(&mut self, path: &[u8], checksum: Checksum) -> Result<ImageEntry, ImageError> {
        let object = place("file", checksum);
        let failed = |operation| {
            let object = object.clone();
            move |errno: Errno| CallError::new(&object, operation, errno)
        };
        let handle = self.open(&object, OFlag::O_PATH)?;
        let stat = fstat(&handle).map_err(failed("look up"))?;
        let kind = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
        let (entry, found) = if kind == SFlag::S_IFLNK {
            let target = readlinkat(&handle, "").map_err(failed("read the link"))?;
            let xattrs = sorted(sys::attributes_by_handle(&handle).map_err(failed("read the attributes"))?);
            let found = header(&stat, target.as_bytes(), &xattrs).of_link();
            let target = Some(target.as_bytes().to_vec());
            (ImageEntry { target, xattrs: described(&xattrs), ..owned(FileType::Symlink, &stat) }, found)
        } else if kind == SFlag::S_IFREG {
            let file = self.open(&object, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
            let xattrs = sorted(sys::attributes(&file).map_err(failed("read the attributes"))?);
            let (mut whole, mut content) = (header(&stat, b"", &xattrs).begin(), Sha256::new());
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            let is_whole = sys::each_chunk(&file, size, |chunk| {
                whole.update(chunk);
                content.update(chunk);
                Ok(())
            });
            if !is_whole.map_err(failed("read"))? {
                return Err(ImageError::Changing { path: object });
            }
            self.read += size;
            (self.progress)(self.read);
            let sha256 = Some(content.finalize().into());
            let entry =
                ImageEntry { size, sha256, xattrs: described(&xattrs), ..owned(FileType::Regular, &stat) };
            (entry, whole.finalize().into())
        } else {
            return Err(OstreeFault::Object { object, reason: ObjectError::Form }.into());
        };
        if found != checksum {
            let of = Some(String::from_utf8_lossy(path).into_owned());
            return Err(OstreeFault::Damaged { object, of }.into());
        }
        Ok(entry)
    }
}

/// The commit in words: `ostree commit 7d73f9221ed2… (version 1)`.
fn in_words(checksum: &str, subject: &str) -> String {
    let short: String = checksum.chars().take(12).collect();
    let subject: String = subject.lines().next().unwrap_or_default().trim().chars().take(SUBJECT).collect();
    let subject = if subject.is_empty() { String::new() } else { format!(" ({subject})") };
    format!("ostree commit {short}…{subject}")
}

/// Where an object is.
fn place(kind: &str, checksum: Checksum) -> PathBuf {
    let name = hex::encode(checksum);
    Path::new(REPOSITORY).join("objects").join(&name[..2]).join(format!("{}.{kind}", &name[2..]))
}

fn join(path: &[u8], name: &str) -> Vec<u8> {
    [path, b"/", name.as_bytes()].concat()
}

fn header<'a>(stat: &FileStat, target: &'a [u8], xattrs: &'a [Xattr]) -> FileHeader<'a> {
    FileHeader { uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode, target, xattrs }
}

fn entry(file_type: FileType, mode: u32) -> ImageEntry {
    ImageEntry {
        file_type,
        mode: mode & 0o7777,
        uid: 0,
        gid: 0,
        size: 0,
        sha256: None,
        md5: None,
        xattrs: Vec::new(),
        target: None,
        device: None,
        layer: 0,
        known: Known::All,
        config: false,
        links: 0,
    }
}

fn owned(file_type: FileType, stat: &FileStat) -> ImageEntry {
    ImageEntry { uid: stat.st_uid, gid: stat.st_gid, ..entry(file_type, stat.st_mode) }
}

/// ostree hashes the attributes in the order of their names.
fn sorted(attributes: Vec<(OsString, Vec<u8>)>) -> Vec<Xattr> {
    let mut xattrs: Vec<Xattr> =
        attributes.into_iter().map(|(name, value)| Xattr { name: name.as_bytes().to_vec(), value }).collect();
    xattrs.sort();
    xattrs
}

/// The attributes in the form of an index. The label is the host's policy's matter.
fn described(xattrs: &[Xattr]) -> Vec<(String, String)> {
    let named = xattrs.iter().map(|xattr| (String::from_utf8_lossy(&xattr.name).into_owned(), &xattr.value));
    let kept = named.filter(|(name, _)| name != selinux::ATTRIBUTE);
    kept.map(|(name, value)| (name.clone(), xattr::describe(&name, value))).collect()
}
