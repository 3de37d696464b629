//! The indexes that apply to a host.
//!
//! In: the directory of indexes, and an observer of the host. Out: the indexes that say what the host should have, the strongest first.

use super::{
    deployment::{booted_commit, commit, deployment},
    error::ImageError,
    images::{BASELINE, EXTENSIONS, Images, OSTREE, PACKAGES},
    index::ImageIndex,
};
use crate::observation::Observer;
use sensor_model::{
    image::{ImageSource, Strength},
    ostree::Commit,
};

/// The indexes that apply to a host.
#[derive(Debug)]
pub(super) struct Chosen {
    /// The indexes, the strongest first: of the merged extensions, of the booted image, of the booted ostree commit, of the packages and of the
    /// baseline, as far as they exist. Those of packages of dpkg are the weakest.
    pub(super) indexes: Vec<ImageIndex>,
    /// An index is left out, because it is of other extensions or packages, or of another commit, than the host has now, and no other one replaces it.
    pub(super) is_one_old: bool,
}

/// The indexes that explain a path, the strongest first: that of `wanted` alone, or else all that apply to the host.
///
/// # Errors
/// No index is that of `wanted`, or an index cannot be read. That of `wanted` is old.
pub fn choose_indexes(
    images: &Images,
    wanted: Option<&str>,
    observer: &Observer,
) -> Result<Vec<ImageIndex>, ImageError> {
    match wanted {
        Some(wanted) => images.open(wanted)?.refuse_old(observer).map(|index| vec![index]),
        None => applying(images, observer).map(|chosen| chosen.indexes),
    }
}

/// The indexes that apply to a host.
///
/// # Errors
/// An index cannot be read.
pub(super) fn applying(images: &Images, observer: &Observer) -> Result<Chosen, ImageError> {
    let mut chosen = booted(images, observer)?;
    for name in [PACKAGES, BASELINE] {
        chosen.add(images, name, observer)?;
    }
    // An MD5 in a file of the host, with the mode that a file had when apt last made the index, must not overrule a baseline that an admin took.
    // The sort keeps the order of the others.
    chosen.indexes.sort_by_key(|index| index.meta().strength_of_contents() == Strength::PackageMd5);
    Ok(chosen)
}

/// The indexes of the merged extensions, of the booted image and of the booted ostree commit, if they exist.
///
/// # Errors
/// An index cannot be read.
pub(super) fn booted(images: &Images, observer: &Observer) -> Result<Chosen, ImageError> {
    let mut chosen = Chosen { indexes: Vec::new(), is_one_old: false };
    chosen.add(images, EXTENSIONS, observer)?;
    let image = of_booted_image(images, observer)?;
    let has_image = image.is_some();
    chosen.indexes.extend(image);
    match of_booted_commit(images, observer)? {
        Some(index) => chosen.indexes.push(index),
        // The image's index is complete, so that of an earlier commit is not missed.
        None if has_image => {}
        None => chosen.add(images, OSTREE, observer)?,
    }
    Ok(chosen)
}

/// The index of the booted image; `None` without one, and if the host booted an ostree commit that is not of this image alone. rpm-ostree makes such a commit
/// of an image and of packages, and the origin keeps the image's digest.
///
/// # Errors
/// The index cannot be read.
pub fn of_booted_image(images: &Images, observer: &Observer) -> Result<Option<ImageIndex>, ImageError> {
    let Some(booted) = deployment(observer) else { return Ok(None) };
    let Some(digest) = &booted.digest else { return Ok(None) };
    let commit = commit(observer, &booted);
    let manifest = commit.as_ref().and_then(Commit::image_digest);
    // The origin may have the digest of an image index, which leads to one image for each platform. The commit says which one was booted.
    if let Some(manifest) = manifest
        && let Some(index) = images.open_exact(manifest)?
        && index.meta().is(digest)
    {
        return Ok(Some(index.on(observer)));
    }
    let index = match images.open(digest) {
        Err(ImageError::Unknown { .. } | ImageError::SeveralPlatforms { .. }) => return Ok(None),
        opened => opened?.on(observer),
    };
    let is_of_commit = commit.is_none() || manifest.is_some_and(|manifest| index.meta().is(manifest));
    Ok(is_of_commit.then_some(index))
}

/// Why the booted image, which shows this digest, has no index that applies.
pub fn why_no_booted_image(images: &Images, observer: &Observer, digest: String) -> ImageError {
    let commit = deployment(observer).and_then(|booted| commit(observer, &booted));
    match (images.open(&digest), commit.as_ref().and_then(Commit::image_digest)) {
        (Err(error), _) => error,
        (Ok(_), Some(manifest)) => {
            ImageError::OtherManifest { wanted: digest, manifest: manifest.to_owned() }
        }
        (Ok(_), None) => ImageError::BaseAlone(digest),
    }
}

/// The index of the booted ostree commit; `None` without one. It may be from before the boot.
///
/// # Errors
/// An index cannot be read.
pub fn of_booted_commit(images: &Images, observer: &Observer) -> Result<Option<ImageIndex>, ImageError> {
    booted_commit(observer).map_or(Ok(None), |commit| images.of_commit(&commit))
}

/// The index of the extensions that are merged now; `None` without one, and for an old one.
///
/// # Errors
/// The index cannot be read.
pub fn merged_extensions(images: &Images, observer: &Observer) -> Result<Option<ImageIndex>, ImageError> {
    let mut chosen = Chosen { indexes: Vec::new(), is_one_old: false };
    chosen.add(images, EXTENSIONS, observer)?;
    Ok(chosen.indexes.pop())
}

/// The indexes of what a host has beside its merged extensions: of its image, its commit, its packages and its baseline.
///
/// # Errors
/// An index cannot be read. [`ImageError::OnlyExtensions`] without an index that describes the host now.
pub fn beside_extensions(images: &Images, observer: &Observer) -> Result<Vec<ImageIndex>, ImageError> {
    let chosen = applying(images, observer)?;
    if !chosen.is_whole(observer) {
        return Err(ImageError::OnlyExtensions);
    }
    let is_other = |index: &ImageIndex| index.meta().source != ImageSource::Extensions;
    Ok(chosen.indexes.into_iter().filter(is_other).collect())
}

impl Chosen {
    /// Whether the indexes describe the host now: that of the booted image or commit on a host that boots images, any on another host; and
    /// none is left out as old. An index of extensions has only a few paths.
    pub(super) fn is_whole(&self, observer: &Observer) -> bool {
        let boots_images = observer.boots_images();
        let describes = |source| match source {
            ImageSource::Layers | ImageSource::Ostree => true,
            ImageSource::Packages | ImageSource::Baseline => !boots_images,
            ImageSource::Extensions => false,
        };
        !self.is_one_old && self.indexes.iter().any(|index| describes(index.meta().source))
    }

    /// Adds the index with a name, unless it is old.
    fn add(&mut self, images: &Images, name: &str, observer: &Observer) -> Result<(), ImageError> {
        match images.named(name)?.map(|index| index.refuse_old(observer)).transpose() {
            Err(
                error @ (ImageError::Old(_) | ImageError::OtherCommit(_) | ImageError::OtherExtensions(_)),
            ) => {
                tracing::warn!(index = name, %error, "An index is not used.");
                // On a host that boots images the packages are a part of the image, whose index is complete.
                self.is_one_old |= name != PACKAGES || !observer.boots_images();
            }
            opened => self.indexes.extend(opened?),
        }
        Ok(())
    }
}
