//! The directory of all indexes.
//!
//! In: the state directory. Out: the index of a digest, and a list of all. A digest may be that of the manifest or of an image index
//! that leads to it, or the beginning of the manifest's. The indexes of the merged extensions, of the booted ostree commit, of the
//! host's packages and of its baseline have the names `extensions`, `ostree`, `packages` and `baseline` in the place of a digest. The index of
//! another ostree commit has the name `ostree-` with the commit's checksum.

use super::{
    error::{FEWEST, ImageError},
    index::ImageIndex,
};
use crate::sys::{self, CallError};
use nix::errno::Errno;
use sensor_model::image::{ImageMeta, ImageSource, Platform, is_digest};
use std::{
    ffi::OsString,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// How the names of indexes end.
const ENDING: &str = ".index";
/// The name of the index of the booted ostree commit.
pub const OSTREE: &str = "ostree";
/// The name of the index of the extensions that are merged on the host.
pub const EXTENSIONS: &str = "extensions";
/// The name of the index of the host's packages.
pub const PACKAGES: &str = "packages";
/// The name of the index of the host's baseline.
pub const BASELINE: &str = "baseline";
/// How the names of the indexes of other ostree commits begin.
const COMMIT: &str = "ostree-";

/// The directory of all indexes.
#[derive(Debug, Clone)]
pub struct Images {
    path: PathBuf,
}

impl Images {
    /// The indexes in a state directory.
    pub fn of(state: &Path) -> Self {
        Self { path: state.join("images") }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of an index file.
    pub(super) fn file_name(meta: &ImageMeta) -> String {
        match meta.source {
            ImageSource::Layers => Self::name_of(&meta.digest),
            ImageSource::Ostree => Self::name_of(OSTREE),
            ImageSource::Extensions => Self::name_of(EXTENSIONS),
            ImageSource::Packages => Self::name_of(PACKAGES),
            ImageSource::Baseline => Self::name_of(BASELINE),
        }
    }

    /// The name of the index of an ostree commit that was not the booted one when the index was made.
    pub(super) fn name_of_commit(checksum: &str) -> String {
        format!("{COMMIT}{checksum}")
    }

    /// The file of the index with a name.
    pub(super) fn name_of(digest: &str) -> String {
        format!("{}{ENDING}", digest.strip_prefix("sha256:").unwrap_or(digest))
    }

    /// Whether there is an index with this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.path.join(Self::name_of(name)).exists()
    }

    /// Opens the index with a name: [`EXTENSIONS`], [`OSTREE`], [`PACKAGES`], [`BASELINE`], or one of [`Images::commits`] and [`Images::digests`];
    /// `None` if there is none. It may be of an earlier commit, or of earlier packages.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn named(&self, name: &str) -> Result<Option<ImageIndex>, ImageError> {
        let path = self.path.join(Self::name_of(name));
        match ImageIndex::open(&path) {
            Err(ImageError::Call(error)) if error.errno() == Some(Errno::ENOENT) => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Opens the directory, and makes it if it is missing.
    pub(super) fn make(&self) -> Result<OwnedFd, CallError> {
        sys::make_directory(&self.path)
            .map_err(|errno| CallError::new(&self.path, "make the directory", errno))?;
        sys::directory(&self.path).map_err(|errno| CallError::new(&self.path, "open the directory", errno))
    }

    /// Opens the index of an ostree commit, whether it was the booted one or not; `None` if there is none.
    ///
    /// # Errors
    /// The index cannot be read. One that cannot be read and has no commit in its name is an error only if no other is that of the commit.
    pub(super) fn of_commit(&self, checksum: &str) -> Result<Option<ImageIndex>, ImageError> {
        let booted = self.named(OSTREE);
        if let Ok(Some(index)) = &booted
            && index.meta().state.as_deref() == Some(checksum)
        {
            return booted;
        }
        match self.named(&Self::name_of_commit(checksum))? {
            Some(index) => Ok(Some(index)),
            None => booted.map(|_| None),
        }
    }

    /// The digests of all images that have an index, sorted.
    ///
    /// # Errors
    /// The directory cannot be read. A missing one is empty.
    pub fn digests(&self) -> Result<Vec<String>, ImageError> {
        let names = self.names()?.into_iter().map(|name| format!("sha256:{name}"));
        Ok(names.filter(|digest| is_digest(digest)).collect())
    }

    /// The names of the indexes of ostree commits that were not the booted one, sorted.
    ///
    /// # Errors
    /// The directory cannot be read. A missing one is empty.
    pub fn commits(&self) -> Result<Vec<String>, ImageError> {
        let is_checksum = |text: &str| is_digest(&format!("sha256:{text}"));
        let names = self.names()?;
        Ok(names.into_iter().filter(|name| name.strip_prefix(COMMIT).is_some_and(is_checksum)).collect())
    }

    /// Deletes the indexes of ostree commits that were not the booted one and that are not kept. Gives their names.
    ///
    /// # Errors
    /// The directory cannot be read, or an index cannot be deleted.
    pub(super) fn delete_commits(&self, is_kept: impl Fn(&str) -> bool) -> Result<Vec<String>, ImageError> {
        let mut gone = self.commits()?;
        gone.retain(|name| name.strip_prefix(COMMIT).is_some_and(|checksum| !is_kept(checksum)));
        for name in &gone {
            let path = self.path.join(Self::name_of(name));
            nix::unistd::unlink(&path).map_err(|errno| CallError::new(&path, "delete", errno))?;
        }
        Ok(gone)
    }

    /// The names of all indexes, sorted. A missing directory has none.
    fn names(&self) -> Result<Vec<String>, ImageError> {
        let directory = match sys::directory(&self.path) {
            Ok(directory) => directory,
            Err(Errno::ENOENT) => return Ok(Vec::new()),
            Err(errno) => return Err(CallError::new(&self.path, "open", errno).into()),
        };
        let names = sys::names(directory).map_err(|errno| CallError::new(&self.path, "read", errno))?;
        let ended = |name: &OsString| Some(name.to_str()?.strip_suffix(ENDING)?.to_owned());
        Ok(names.iter().filter_map(ended).collect())
    }

    /// Opens the index of the manifest with this digest; `None` if there is none.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn open_exact(&self, digest: &str) -> Result<Option<ImageIndex>, ImageError> {
        if !is_digest(digest) || !self.digests()?.iter().any(|known| known == digest) {
            return Ok(None);
        }
        ImageIndex::open(&self.path.join(Self::name_of(digest))).map(Some)
    }

    /// The indexes of the images that an image index leads to. One that cannot be read is skipped with a warning.
    fn of_image_index(&self, digest: &str, digests: &[String]) -> Vec<ImageIndex> {
        let opened = digests.iter().filter_map(|name| {
            let opened = ImageIndex::open(&self.path.join(Self::name_of(name)));
            opened.inspect_err(warn_of_skipped).ok()
        });
        opened.filter(|index| index.meta().is(digest)).collect()
    }

    /// Opens the index of an image: by `extensions`, `ostree`, `packages` or `baseline`, by the digest of its manifest, or of an image index that
    /// leads to it, or by the beginning of the manifest's digest; or that of an ostree commit, by `ostree-` and its checksum, or the beginning of
    /// that. Of several images of one image index it takes the one for this machine.
    ///
    /// # Errors
    /// No index or several, and an index that cannot be read. An index with another name than the wanted one is skipped with a warning if it
    /// cannot be read.
    pub fn open(&self, wanted: &str) -> Result<ImageIndex, ImageError> {
        if let Some(name) = [EXTENSIONS, OSTREE, PACKAGES, BASELINE].into_iter().find(|name| *name == wanted)
        {
            return self.named(name)?.ok_or(ImageError::NotIndexed(name));
        }
        if let Some(index) = self.open_exact(wanted)? {
            return Ok(index);
        }
        let (digests, commits) = (self.digests()?, self.commits()?);
        let (all, beginning) = match wanted.strip_prefix(COMMIT) {
            Some(digits) => (&commits, Some((digits, wanted.to_owned()))),
            None if is_digest(wanted) => (&digests, None),
            None => {
                let digits = wanted.strip_prefix("sha256:").unwrap_or(wanted);
                (&digests, Some((digits, format!("sha256:{digits}"))))
            }
        };
        if let Some((digits, beginning)) = beginning.filter(|(digits, _)| !digits.is_empty()) {
            let found: Vec<_> = all.iter().filter(|name| name.starts_with(&beginning)).collect();
            let images = || found.iter().map(|name| (*name).clone()).collect();
            match found.as_slice() {
                [] => {}
                _ if digits.len() < FEWEST => {
                    return Err(ImageError::Short { wanted: wanted.to_owned(), images: images() });
                }
                [name] => return ImageIndex::open(&self.path.join(Self::name_of(name))),
                _ => return Err(ImageError::Ambiguous { wanted: wanted.to_owned(), images: images() }),
            }
        }
        if is_digest(wanted) {
            let of_image_index = self.of_image_index(wanted, &digests);
            if let Some(index) = for_this_machine(wanted, of_image_index)? {
                return Ok(index);
            }
        }
        Err(ImageError::Unknown { wanted: wanted.to_owned(), images: [digests, commits].concat() })
    }
}

/// The one index; of several, that of the only image for this machine. `None` without one.
fn for_this_machine(wanted: &str, mut found: Vec<ImageIndex>) -> Result<Option<ImageIndex>, ImageError> {
    if found.len() <= 1 {
        return Ok(found.pop());
    }
    let machine = Platform::of_this_machine();
    let is_for_it =
        |index: &ImageIndex| index.meta().platform.parse().is_ok_and(|of: Platform| of.is(&machine));
    let all =
        found.iter().map(|index| format!("{} ({})", index.meta().digest, index.meta().platform)).collect();
    found.retain(is_for_it);
    match (found.pop(), found.is_empty()) {
        (Some(index), true) => Ok(Some(index)),
        _ => Err(ImageError::SeveralPlatforms {
            wanted: wanted.to_owned(),
            machine: machine.to_string(),
            images: all,
        }),
    }
}

/// Logs that an index of another image or commit is skipped in a search, because it cannot be read. The error names its file.
pub(super) fn warn_of_skipped(error: &ImageError) {
    tracing::warn!(%error, "Skipped an index that cannot be read while looking for another one.");
}
