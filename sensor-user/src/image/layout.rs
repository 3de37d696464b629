//! An OCI image layout, and the image that is taken of it.
//!
//! In: a directory, and what to choose. Out: the manifest and config of one image, both verified. `index.json` has no digest: who
//! names the layout trusts it to name the image, unless `--digest` does.

use super::{
    blob,
    error::{BlobError, LayoutError},
};
use crate::bounded;
use sensor_model::image::{
    Choice, Descriptor, ImageConfig, Manifest, ManifestDocument, Platform, is_digest, parse_config,
    parse_document,
};
use std::path::{Path, PathBuf};

/// How deep image indexes may be nested.
const DEPTH: usize = 4;
/// Most images of a layout, in all indexes together.
const MOST: usize = 4096;
/// Most descriptors in all indexes together. An index that several indexes name counts each time, because it is read each time.
const DESCRIPTORS: usize = 64 << 10;
/// Most indexes that are read.
const DOCUMENTS: usize = 256;
/// Most bytes of `index.json`.
const INDEX: u64 = 4 << 20;

/// An OCI image layout.
#[derive(Debug)]
pub struct Layout {
    pub(super) path: PathBuf,
    images: Vec<Image>,
    /// Descriptors and indexes that were read.
    descriptors: usize,
    documents: usize,
}

/// An image of a layout: the manifest of one platform.
#[derive(Debug, Clone)]
struct Image {
    descriptor: Descriptor,
    /// Digests of the indexes that lead to it.
    indexes: Vec<String>,
    names: Vec<String>,
}

/// The chosen image.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) digest: String,
    pub(super) indexes: Vec<String>,
    pub(super) names: Vec<String>,
    pub(super) manifest: Manifest,
    pub(super) config: ImageConfig,
}

impl Layout {
    /// Reads the indexes of a layout.
    ///
    /// # Errors
    /// A directory of another form, and an index that cannot be used.
    pub fn open(path: &Path) -> Result<Self, LayoutError> {
        let not_a_layout = |reason: String| LayoutError::NotALayout { path: path.to_owned(), reason };
        let read = |name: &str| {
            bounded::read(&path.join(name), INDEX).map_err(|error| not_a_layout(format!("{name}: {error}")))
        };
        let version: serde_json::Value = serde_json::from_slice(&read("oci-layout")?)
            .map_err(|error| not_a_layout(format!("oci-layout: {error}")))?;
        match version["imageLayoutVersion"].as_str() {
            Some(version) if version.starts_with("1.") => {}
            other => return Err(not_a_layout(format!("oci-layout: the version {other:?} is not supported"))),
        }
        let index = parse_document(&read("index.json")?)
            .map_err(|error| not_a_layout(format!("index.json: {error}")))?;
        let ManifestDocument::Index(descriptors) = index else {
            return Err(not_a_layout("index.json: it is a manifest, not an index".to_owned()));
        };
        let mut layout = Self { path: path.to_owned(), images: Vec::new(), descriptors: 0, documents: 0 };
        for descriptor in descriptors {
            let names = descriptor.name().map(str::to_owned).into_iter().collect();
            layout.collect(descriptor, &[], names)?;
        }
        Ok(layout)
    }

    /// Collects the images below a descriptor.
    fn collect(
        &mut self,
        descriptor: Descriptor,
        above: &[String],
        names: Vec<String>,
    ) -> Result<(), LayoutError> {
        self.descriptors += 1;
        if self.descriptors > DESCRIPTORS {
            return Err(LayoutError::TooMany { what: "descriptors", most: DESCRIPTORS });
        }
        if !descriptor.may_be_image() {
            return Ok(());
        }
        if descriptor.is_index() {
            if above.len() >= DEPTH {
                return Err(LayoutError::Nested(DEPTH));
            }
            self.documents += 1;
            if self.documents > DOCUMENTS {
                return Err(LayoutError::TooMany { what: "image indexes", most: DOCUMENTS });
            }
            let ManifestDocument::Index(below) = self.document(&descriptor)? else { return Ok(()) };
            let mut indexes = above.to_vec();
            indexes.push(descriptor.digest);
            for descriptor in below {
                self.collect(descriptor, &indexes, names.clone())?;
            }
            return Ok(());
        }
        if let Some(known) = self.images.iter_mut().find(|image| image.descriptor.digest == descriptor.digest)
        {
            known
                .names
                .extend(names.into_iter().filter(|name| !known.names.contains(name)).collect::<Vec<_>>());
            let more: Vec<_> = above.iter().filter(|index| !known.indexes.contains(index)).cloned().collect();
            known.indexes.extend(more);
        } else if self.images.len() >= MOST {
            return Err(LayoutError::TooMany { what: "images", most: MOST });
        } else {
            self.images.push(Image { descriptor, indexes: above.to_vec(), names });
        }
        Ok(())
    }

    fn document(&self, descriptor: &Descriptor) -> Result<ManifestDocument, LayoutError> {
        let bytes = self.bytes(descriptor)?;
        let digest = descriptor.digest.clone();
        parse_document(&bytes).map_err(|error| LayoutError::Manifest { digest, error })
    }

    fn bytes(&self, descriptor: &Descriptor) -> Result<Vec<u8>, LayoutError> {
        let read = blob::document(&self.path, descriptor);
        read.map_err(|error| LayoutError::Blob { digest: descriptor.digest.clone(), error })
    }

    /// Takes one image. Without a choice it is the only one, or the only one of this machine's platform.
    pub(super) fn choose(&self, choice: &Choice) -> Result<Chosen, LayoutError> {
        let mut wanted = Vec::new();
        let mut images: Vec<&Image> = self.images.iter().collect();
        if let Some(digest) = &choice.digest {
            wanted.push(format!("has the digest {digest}"));
            images.retain(|image| image.descriptor.digest == *digest || image.indexes.contains(digest));
        }
        let exact = choice.digest.is_some() && images.len() == 1;
        if choice.platform.is_some() || (images.len() > 1 && !exact) {
            let platform = choice.platform.clone().unwrap_or_else(Platform::of_this_machine);
            wanted.push(format!("is for {platform}"));
            let mut kept = Vec::new();
            for image in images {
                if self.platform(image)?.is_none_or(|found| found.is(&platform)) {
                    kept.push(image);
                }
            }
            images = kept;
        }
        let wanted = || {
            if wanted.is_empty() { "can be taken".to_owned() } else { wanted.join(" and ") }
        };
        match images.as_slice() {
            [image] => self.take(image),
            [] => Err(LayoutError::None { wanted: wanted(), images: self.shown(self.images.iter()) }),
            several => {
                let images = self.shown(several.iter().copied());
                Err(LayoutError::Several { wanted: wanted(), images })
            }
        }
    }

    /// The platform of an image; `None` if it has no config of a container image, or its blobs are not here.
    fn platform(&self, image: &Image) -> Result<Option<Platform>, LayoutError> {
        if let Some(platform) = &image.descriptor.platform {
            return Ok(Some(platform.clone()));
        }
        match self.take(image) {
            Ok(chosen) => Ok(Some(chosen.config.platform)),
            Err(LayoutError::Blob { error: BlobError::Read(_), .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn take(&self, image: &Image) -> Result<Chosen, LayoutError> {
        let descriptor = &image.descriptor;
        let digest = descriptor.digest.clone();
        let ManifestDocument::Manifest(manifest) = self.document(descriptor)? else {
            let error =
                sensor_model::image::ManifestError::Json("it is an index, by its content alone".to_owned());
            return Err(LayoutError::Manifest { digest, error });
        };
        let config = parse_config(&self.bytes(&manifest.config)?, manifest.layers.len())
            .map_err(|error| LayoutError::Config { digest: manifest.config.digest.clone(), error })?;
        let (indexes, names) = (image.indexes.clone(), image.names.clone());
        Ok(Chosen { digest, indexes, names, manifest, config })
    }

    /// Images for a message.
    #[expect(clippy::unused_self, reason = "the images are those of the layout")]
    fn shown<'a>(&self, images: impl Iterator<Item = &'a Image>) -> Vec<String> {
        const SHOWN: usize = 16;
        let images: Vec<&Image> = images.collect();
        let mut shown: Vec<String> = images.iter().take(SHOWN).map(|image| image.shown()).collect();
        if images.len() > SHOWN {
            shown.push(format!("and {} more", images.len() - SHOWN));
        }
        shown
    }
}

impl Image {
    fn shown(&self) -> String {
        let mut notes: Vec<String> = self.descriptor.platform.iter().map(ToString::to_string).collect();
        notes.extend(self.names.iter().cloned());
        let digest = &self.descriptor.digest;
        debug_assert!(is_digest(digest));
        if notes.is_empty() { digest.clone() } else { format!("{digest} ({})", notes.join(", ")) }
    }
}
