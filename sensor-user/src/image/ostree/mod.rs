//! An index of an ostree commit: the booted one, or another one of the host's repository.
//!
//! In: the repository of an ostree host. Out: the index file: what the commit has in `/usr`, the links of the root directory, and the
//! commit's `/usr/etc` once more as `/etc`, which is its first state on the host. Each object is verified: the commit by the name of its
//! deployment or by the given checksum, and every other one by the object that leads to it. A file whose object is damaged has an entry with
//! the object's checksum alone. If the commit was made from an image, the index has the image's
//! layers, and then the commit itself, for what no layer explains.

mod layers;
mod named_commit;
pub(super) mod repository;

use super::{
    chosen::of_booted_image,
    deployment::booted_commit,
    error::{ImageError, OstreeFault},
    images::{Images, OSTREE},
    write::{self, Indexed},
};
use crate::{
    clock::rfc3339,
    observation::{Observer, checksum_of},
    sys::CallError,
};
use jiff::Timestamp;
use layers::ImageLayers;
pub use named_commit::BOOTED;
use named_commit::NamedCommit;
use nix::errno::Errno;
pub(super) use repository::described;
use repository::{FileObject, MOST_DEEP, Repository};
use sensor_model::{
    image::{
        DamagedFiles, ImageEntry, ImageLimits, ImageMeta, ImageSource, Known, LayerMeta, is_of_each_host,
        ostree_digest,
    },
    observation::FileType,
    os::PristineEtc,
    ostree::{Checksum, Commit, CommitImage, LayerPaths, Placed, SubDirectory},
};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

/// Characters of the commit's subject that the index keeps. Each record of a drift has them.
const SUBJECT: usize = 120;

/// Indexes the `wanted` commit: [`BOOTED`], `staged`, a checksum, the beginning of a deployment's, or the name of a deployment's image or
/// branch. `progress` gets the bytes of files that were read so far.
///
/// # Errors
/// A host that booted no ostree deployment, no such commit, a commit or a directory that is missing or damaged, and an index that cannot be
/// written.
pub fn index_ostree(
    observer: &Observer,
    images: &Images,
    wanted: &str,
    progress: &mut dyn FnMut(u64),
) -> Result<Indexed, ImageError> {
    let booted = booted_commit(observer).ok_or(OstreeFault::NotBooted)?;
    let NamedCommit { checksum, names } = NamedCommit::of(observer, wanted, &booted)?;
    let file = if checksum == booted { OSTREE.to_owned() } else { Images::name_of_commit(&checksum) };
    let name = checksum_of(&checksum).ok_or_else(|| OstreeFault::Name(checksum.clone()))?;
    let repository = Repository::of(observer, progress)?;
    let commit = repository.commit(name)?;
    let ImageLayers { image, paths } = ImageLayers::of(&repository, &commit);
    let layers = image.as_ref().map_or(0, |image| image.layers.len());
    let mut walk = Walk {
        repository,
        paths,
        commit: u16::try_from(layers).unwrap_or(u16::MAX),
        uncompared: None,
        damaged: DamagedFiles::default(),
        found: Vec::new(),
        metadata: 0,
    };
    walk.root(&commit)?;
    let Walk { repository, uncompared, damaged, found: mut entries, .. } = walk;
    if let Some(reason) = uncompared {
        tracing::warn!(
            reason,
            "An object of a layer cannot be read, so the index names the commit in the place of the layer."
        );
    }
    // A directory comes before what is in it.
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    let damaged = (damaged.count > 0).then_some(damaged);
    let meta = ImageMeta { names, damaged, ..meta(checksum, &commit, image, repository.read()) };
    write::write_file(images, &Images::name_of(&file), meta, &entries)
}

/// The same, unless that commit or the image that it was made from has an index already. Gives the new index.
///
/// # Errors
/// As [`index_ostree`].
pub fn renew_ostree(observer: &Observer, images: &Images) -> Result<Option<Indexed>, ImageError> {
    let Some(commit) = booted_commit(observer) else { return Ok(None) };
    if let Ok(Some(_)) = of_booted_image(images, observer) {
        return Ok(None);
    }
    match images.of_commit(&commit) {
        Ok(Some(_)) => return Ok(None),
        Ok(_) => {}
        Err(error) => {
            tracing::warn!(%error, "The index of the booted ostree commit cannot be used, so it is made anew.");
        }
    }
    index_ostree(observer, images, BOOTED, &mut |_| {}).map(Some)
}

/// Deletes the indexes of commits that the host's repository does not have any more. Gives their names. A host that booted no ostree
/// deployment keeps all.
///
/// # Errors
/// The directory of indexes cannot be read, or an index cannot be deleted.
pub fn delete_old_commits(observer: &Observer, images: &Images) -> Result<Vec<String>, ImageError> {
    if booted_commit(observer).is_none() {
        return Ok(Vec::new());
    }
    images.delete_commits(|checksum| observer.has_commit(checksum))
}

/// What the index says about a commit.
fn meta(checksum: String, commit: &Commit, image: Option<CommitImage>, bytes: u64) -> ImageMeta {
    let itself = LayerMeta {
        digest: String::new(),
        diff_id: String::new(),
        size: None,
        components: Vec::new(),
        package: None,
        history: Some(in_words(&checksum, &commit.subject)),
    };
    let created = i64::try_from(commit.seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    let mut meta = ImageMeta {
        source: ImageSource::Ostree,
        digest: ostree_digest(&checksum),
        manifest: None,
        indexes: Vec::new(),
        config: String::new(),
        platform: String::new(),
        names: Vec::new(),
        created: created.map(rfc3339),
        machine_config: None,
        layers: Vec::new(),
        entries: 0,
        bytes,
        ostree: false,
        object_xattrs: false,
        shipped_etc: false,
        state: Some(checksum),
        damaged: None,
    };
    if let Some(image) = image {
        meta.manifest = Some(image.digest);
        meta.config = image.config;
        meta.platform = image.platform;
        meta.machine_config = image.machine_config;
        meta.layers = image.layers.into_iter().map(|layer| layer.meta).collect();
    }
    meta.layers.push(itself);
    meta
}

struct Walk<'a> {
    repository: Repository<'a>,
    /// What the layers of the commit's image put at each path.
    paths: LayerPaths,
    /// The number of the commit itself in the list of layers.
    commit: u16,
    /// Why an object of a layer could not be compared.
    uncompared: Option<String>,
    /// Files whose objects are damaged.
    damaged: DamagedFiles,
    found: Vec<(Vec<u8>, ImageEntry)>,
    /// Bytes of names and targets.
    metadata: u64,
}

impl Walk<'_> {
    /// The links of the root directory, and everything in `/usr`. The other directories there are mount points.
    fn root(&mut self, commit: &Commit) -> Result<(), ImageError> {
        let tree = self.repository.tree(commit.tree)?;
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
            let entry = self.repository.directory(directory.meta)?;
            self.add(path, directory.meta, entry)?;
        } else {
            // `/usr` itself is a mount on a booted host, so only its existence is compared. Links of the root directory lead to it.
            let layer = self.paths.at(path).map_or(self.commit, |placed| placed.layer);
            let known = Known::Existence;
            self.push(
                path.to_vec(),
                ImageEntry { known, layer, ..ImageEntry::of_root(FileType::Directory, 0) },
            )?;
        }
        let tree = self.repository.tree(directory.tree)?;
        for file in &tree.files {
            self.file(&join(path, &file.name), file.file)?;
        }
        for below in &tree.directories {
            self.directory(&join(path, &below.name), below, depth + 1)?;
        }
        Ok(())
    }

    fn file(&mut self, path: &[u8], checksum: Checksum) -> Result<(), ImageError> {
        let entry = match self.repository.file(checksum)? {
            FileObject::Whole(entry) => entry,
            FileObject::Damaged(reason) => {
                self.damaged.add(path, &checksum, reason);
                let known = Known::Existence;
                ImageEntry { known, ostree: Some(checksum), ..ImageEntry::of_root(FileType::Regular, 0) }
            }
        };
        self.add(path, checksum, entry)
    }

    /// Adds an entry, and what it makes of `/etc` on the host.
    fn add(&mut self, path: &[u8], object: Checksum, mut entry: ImageEntry) -> Result<(), ImageError> {
        entry.layer = self.layer(path, object, &entry);
        self.push(path.to_vec(), entry.clone())?;
        let shipped = PristineEtc::Ostree.directory().as_os_str();
        let Some(rest) =
            path.strip_prefix(shipped.as_bytes()).filter(|rest| matches!(rest.first(), None | Some(b'/')))
        else {
            return Ok(());
        };
        let path = [b"/etc", rest].concat();
        let of_each_host = is_of_each_host(Path::new(OsStr::from_bytes(&path)));
        let (known, ostree) =
            if of_each_host { (Known::Existence, None) } else { (entry.known, entry.ostree) };
        self.push(path, ImageEntry { known, ostree, config: true, ..entry })
    }

    /// The layer that put an object at a path; the commit itself, if none did.
    fn layer(&mut self, path: &[u8], object: Checksum, entry: &ImageEntry) -> u16 {
        let is_directory = entry.file_type == FileType::Directory;
        match self.paths.at(path) {
            Some(placed) if placed.is_directory == is_directory => {
                let is_same = placed.object == object || self.is_same(placed, entry);
                if is_same { placed.layer } else { self.commit }
            }
            _ => self.commit,
        }
    }

    /// Whether the object of a layer differs in its label alone. The importer gives files the labels of the whole image's policy, and older
    /// ones leave the layers' own objects as they are.
    fn is_same(&mut self, placed: Placed, entry: &ImageEntry) -> bool {
        let read = if placed.is_directory {
            self.repository.directory(placed.object).map_err(|error| error.to_string())
        } else {
            match self.repository.file(placed.object) {
                Ok(FileObject::Whole(of_layer)) => Ok(of_layer),
                Ok(FileObject::Damaged(reason)) => {
                    Err(format!("object {}: {}", hex::encode(placed.object), reason.as_str()))
                }
                Err(error) => Err(error.to_string()),
            }
        };
        match read {
            Ok(of_layer) => of_layer == *entry,
            Err(reason) => {
                self.uncompared.get_or_insert(reason);
                false
            }
        }
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
}

/// The commit in words: `ostree commit 7d73f9221ed2… (version 1)`.
fn in_words(checksum: &str, subject: &str) -> String {
    let short: String = checksum.chars().take(12).collect();
    let subject: String = subject.lines().next().unwrap_or_default().trim().chars().take(SUBJECT).collect();
    let subject = if subject.is_empty() { String::new() } else { format!(" ({subject})") };
    format!("ostree commit {short}…{subject}")
}

fn join(path: &[u8], name: &str) -> Vec<u8> {
    [path, b"/", name.as_bytes()].concat()
}
