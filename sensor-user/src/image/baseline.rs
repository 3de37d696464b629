//! A baseline of a host, taken and indexed.
//!
//! In: paths of a host, or a baseline's file. Out: the baseline, or its index file. The walk follows no link and stays on the file
//! systems of the named paths.

use super::{
    error::ImageError,
    images::Images,
    write::{self, Entries, Indexed},
};
use crate::{
    clock::{Clock as _, SystemClock, rfc3339},
    observation::{Observer, resolve::HANDLE},
    sys::{self, CallError},
};
use nix::{
    errno::Errno,
    fcntl::OFlag,
    libc::dev_t,
    sys::stat::{FileStat, SFlag, fstat, major, minor},
};
use sensor_model::{
    escape::escaped,
    expectation::{ExpectationSource, ImageLayer},
    image::{Baseline, BaselinePath, ImageEntry, ImageMeta, ImageSource, LayerMeta},
    observation::{FileType, Observation},
};
use sha2::{Digest as _, Sha256};
use std::{
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// Most directories above each other.
const MOST_DEEP: usize = 256;

/// Takes a baseline of paths, with everything below them. Sockets are left out, because programs make them.
///
/// # Errors
/// [`ImageError::NoPath`] for a path that does not exist; one that cannot be read.
pub fn take_baseline(
    observer: &Observer,
    paths: &[PathBuf],
    progress: &mut dyn FnMut(usize),
) -> Result<Baseline, ImageError> {
    let mut roots: Vec<&PathBuf> = paths.iter().collect();
    roots.sort();
    roots.dedup();
    for path in &roots {
        let opened = observer.root().open_at(path, HANDLE | OFlag::O_NOFOLLOW);
        if matches!(opened, Err(Errno::ENOENT | Errno::ENOTDIR)) {
            let (path, root) = ((*path).clone(), observer.root_path().to_owned());
            return Err(ImageError::NoPath { path, root });
        }
    }
    let mut found: Vec<BaselinePath> = Vec::new();
    let mut done: Vec<PathBuf> = Vec::new();
    let mut not_entered: Vec<PathBuf> = Vec::new();
    for root in roots {
        let nearest = |all: &[PathBuf]| {
            all.iter().filter(|above| root.starts_with(above)).map(|above| above.components().count()).max()
        };
        // A walk of a directory above has read the path, unless it ended at another file system on the way.
        if nearest(&done).is_some_and(|walked| nearest(&not_entered).is_none_or(|ended| ended <= walked)) {
            continue;
        }
        if not_entered.contains(root) {
            let point = escaped(root);
            found.retain(|one| one.path != point);
        }
        let mut take = |path: &Path, entry: ImageEntry| {
            found.push(BaselinePath::of(path, &entry));
            progress(found.len());
        };
        let mut walk = Walk::new(observer, &mut take);
        walk.all(root)?;
        not_entered.append(&mut walk.not_entered);
        done.push(root.clone());
    }
    Ok(Baseline::new(rfc3339(SystemClock.now()), found))
}

/// Reads everything below a path: follows no link, and stays on one file system.
pub(super) struct Walk<'a> {
    observer: &'a Observer,
    take: &'a mut dyn FnMut(&Path, ImageEntry),
    /// The directories on other file systems, at which it ended.
    not_entered: Vec<PathBuf>,
}

impl<'a> Walk<'a> {
    /// A walk that gives each path, with what is there.
    pub(super) fn new(observer: &'a Observer, take: &'a mut dyn FnMut(&Path, ImageEntry)) -> Self {
        Self { observer, take, not_entered: Vec::new() }
    }

    /// Reads a path, and everything below it. Leaves sockets out.
    ///
    /// # Errors
    /// A path that does not exist or cannot be read.
    pub(super) fn all(&mut self, path: &Path) -> Result<(), ImageError> {
        let stat = self.stat(path)?;
        self.add(path, &stat, stat.st_dev, 0)
    }

    fn stat(&self, path: &Path) -> Result<FileStat, CallError> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = self.observer.root().open_at(path, flags).and_then(|handle| fstat(&handle));
        opened.map_err(|errno| CallError::new(path, "look up", errno))
    }

    fn add(&mut self, path: &Path, stat: &FileStat, device: dev_t, depth: usize) -> Result<(), ImageError> {
        let Some(file_type) = file_type(stat) else { return Ok(()) };
        let entry = self.observe(path, stat, file_type)?;
        (self.take)(path, entry);
        if file_type != FileType::Directory {
            return Ok(());
        }
        if stat.st_dev != device {
            self.not_entered.push(path.to_owned());
            return Ok(());
        }
        let failed = |errno| CallError::new(path, "read the directory", errno);
        if depth > MOST_DEEP {
            return Err(failed(Errno::ELOOP).into());
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let names = self.observer.root().open_at(path, flags).and_then(sys::names).map_err(failed)?;
        for name in names {
            let path = path.join(name);
            match self.stat(&path) {
                Ok(stat) => self.add(&path, &stat, device, depth + 1)?,
                // It was removed meanwhile.
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// What is at a path, read as a verification reads it.
    fn observe(&self, path: &Path, stat: &FileStat, file_type: FileType) -> Result<ImageEntry, ImageError> {
        let is_file = file_type == FileType::Regular;
        let mut entry = ImageEntry {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            // A declared content has the whole file hashed.
            sha256: is_file.then_some([0; 32]),
            target: (file_type == FileType::Symlink).then(Vec::new),
            ..ImageEntry::of_root(file_type, 0)
        };
        let source =
            ExpectationSource::from(ImageLayer { layer: "".into(), image: "".into(), strength: None });
        let changing = || ImageError::Changing { path: path.to_owned() };
        let object = match self.observer.observe(&entry.expectation(path, source)).observation {
            Observation::Object(object) if object.file_type == file_type => object,
            Observation::Unreadable { error } => return Err(ImageError::Unreadable { error }),
            _ => return Err(changing()),
        };
        if is_file && object.sha256.is_none() {
            return Err(changing());
        }
        let is_device = matches!(file_type, FileType::BlockDevice | FileType::CharacterDevice);
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        entry.mode = object.mode;
        (entry.uid, entry.gid) = (object.uid, object.gid);
        (entry.size, entry.sha256) =
            (if is_file { object.size } else { 0 }, object.sha256.filter(|_| is_file));
        entry.xattrs = object.xattrs;
        entry.target = object.target.map(|target| target.as_os_str().as_bytes().to_vec());
        entry.device = is_device.then(|| (number(major(stat.st_rdev)), number(minor(stat.st_rdev))));
        Ok(entry)
    }
}

fn file_type(stat: &FileStat) -> Option<FileType> {
    match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
        SFlag::S_IFREG => Some(FileType::Regular),
        SFlag::S_IFDIR => Some(FileType::Directory),
        SFlag::S_IFLNK => Some(FileType::Symlink),
        SFlag::S_IFCHR => Some(FileType::CharacterDevice),
        SFlag::S_IFBLK => Some(FileType::BlockDevice),
        SFlag::S_IFIFO => Some(FileType::Fifo),
        _ => None,
    }
}

/// Indexes the baseline in a file's text.
///
/// # Errors
/// The text is no baseline, or the index cannot be written.
pub fn index_baseline(file: &Path, text: &[u8], images: &Images) -> Result<Indexed, ImageError> {
    let failed = |reason| ImageError::Baseline { path: file.to_owned(), reason };
    let baseline = Baseline::parse(text).map_err(failed)?;
    let entries = baseline.entries().map_err(failed)?;
    let layer = LayerMeta {
        digest: String::new(),
        diff_id: String::new(),
        size: None,
        components: Vec::new(),
        package: None,
        history: Some(format!("baseline of {}", baseline.taken)),
    };
    let meta = ImageMeta {
        source: ImageSource::Baseline,
        digest: super::blob::digest_text(&Sha256::digest(text)),
        manifest: None,
        indexes: Vec::new(),
        config: String::new(),
        platform: String::new(),
        names: Vec::new(),
        created: Some(baseline.taken),
        machine_config: None,
        layers: vec![layer],
        entries: 0,
        bytes: 0,
        ostree: false,
        object_xattrs: false,
        shipped_etc: false,
        state: None,
        damaged: None,
    };
    write::write(images, meta, &entries)
}

impl Entries for Vec<(Vec<u8>, ImageEntry)> {
    fn each<E>(&self, mut take: impl FnMut(&[u8], &ImageEntry) -> Result<(), E>) -> Result<u64, E> {
        self.iter().try_for_each(|(path, entry)| take(path, entry))?;
        Ok(self.len() as u64)
    }
}
