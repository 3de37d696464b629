//! The image that a commit was made from.
//!
//! In: the texts of a commit's metadata, as ostree's importer of container images writes them. Out: the layers of the image, and the refs
//! of the commits that the importer made of them. The commit's checksum covers the texts; nothing here proves that they are true.

use super::Commit;
use crate::image::{
    ConfigError, ImageConfig, LayerMeta, Manifest, ManifestDocument, ManifestError, is_digest, parse_config,
    parse_document,
};

/// The key of the manifest's digest.
const DIGEST: &str = "ostree.manifest-digest";
/// The key of the manifest, in JSON.
const MANIFEST: &str = "ostree.manifest";
/// The key of the image's config, in JSON.
const CONFIG: &str = "ostree.container.image-config";
/// Where the refs of layers are, with the colon of a digest as the importer writes it.
const REFS: &str = "refs/heads/ostree/container/blob/sha256_3A_";

/// Why it is not known which image a commit was made from, although its metadata has a part of that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitImageError {
    /// The metadata cannot be read.
    #[error("the commit's metadata does not have its form")]
    Metadata,
    /// A key is missing.
    #[error("the commit's metadata has no text {0}")]
    Missing(&'static str),
    /// The digest has another form.
    #[error("{DIGEST} in the commit's metadata is not a digest of the form sha256:<64 hexadecimal digits>")]
    Digest,
    /// The manifest cannot be used.
    #[error("{MANIFEST} in the commit's metadata: {0}")]
    Manifest(#[from] ManifestError),
    /// It is an image index.
    #[error("{MANIFEST} in the commit's metadata is an image index")]
    Index,
    /// The config cannot be used.
    #[error("{CONFIG} in the commit's metadata: {0}")]
    Config(#[from] ConfigError),
    /// The label that says where the base ends names no layer.
    #[error("the image's config says that the ostree commit ends with a layer that it does not have")]
    End,
}

/// What a layer's commit has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerContent {
    /// The tree of an ostree commit that the image encapsulates. Some of its files may be those of [`LayerContent::Files`].
    Tree,
    /// Files of that tree, by their checksums and without paths.
    Files,
    /// What a layer changes in the tree, with whiteouts.
    Changes,
}

/// A layer of the image that a commit was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitLayer {
    /// What an index says about it.
    pub meta: LayerMeta,
    /// What its commit has.
    pub content: LayerContent,
    /// The path of its commit's ref in the repository.
    pub reference: String,
}

/// The image that a commit was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitImage {
    /// Digest of its manifest.
    pub digest: String,
    /// Digest of its config.
    pub config: String,
    /// Its platform, such as `linux/amd64`.
    pub platform: String,
    /// When it was made, by its own word.
    pub created: Option<String>,
    /// The rendered MachineConfig from which a cluster built it, by a label.
    pub machine_config: Option<String>,
    /// Its layers, the lowest first.
    pub layers: Vec<CommitLayer>,
}

impl Commit {
    /// The image that the commit was made from; `None` if it was made in another way.
    ///
    /// # Errors
    /// The commit was made from an image, or its metadata cannot be read; and what it says about the image cannot be used.
    pub fn image(&self) -> Result<Option<CommitImage>, CommitImageError> {
        let texts = self.texts.as_ref().ok_or(CommitImageError::Metadata)?;
        if ![DIGEST, MANIFEST].iter().any(|key| texts.contains_key(*key)) {
            return Ok(None);
        }
        let text = |key| texts.get(key).ok_or(CommitImageError::Missing(key));
        let digest = text(DIGEST)?;
        if !is_digest(digest) {
            return Err(CommitImageError::Digest);
        }
        let ManifestDocument::Manifest(manifest) = parse_document(text(MANIFEST)?.as_bytes())? else {
            return Err(CommitImageError::Index);
        };
        let config = parse_config(text(CONFIG)?.as_bytes(), manifest.layers.len())?;
        CommitImage::of(digest, manifest, config).map(Some)
    }

    /// The digest of the manifest of the image that the commit was made from, if the metadata has one.
    pub fn image_digest(&self) -> Option<&str> {
        self.texts.as_ref()?.get(DIGEST).map(String::as_str).filter(|digest| is_digest(digest))
    }
}

impl CommitImage {
    fn of(digest: &str, manifest: Manifest, config: ImageConfig) -> Result<Self, CommitImageError> {
        let last = match &config.last_of_commit {
            None => None,
            Some(last) => {
                let place = config.layers.iter().position(|(diff_id, _)| diff_id == last);
                Some(place.ok_or(CommitImageError::End)?)
            }
        };
        let content = |number: usize| match last {
            Some(_) if number == 0 => LayerContent::Tree,
            Some(last) if number <= last => LayerContent::Files,
            _ => LayerContent::Changes,
        };
        let layers = manifest.layers.into_iter().zip(config.layers).enumerate();
        let layers = layers.map(|(number, ((blob, _), (diff_id, history)))| CommitLayer {
            reference: format!("{REFS}{}", blob.digest.trim_start_matches("sha256:")),
            content: content(number),
            meta: LayerMeta {
                components: blob.components(),
                digest: blob.digest,
                diff_id,
                size: Some(blob.size),
                package: None,
                history,
            },
        });
        Ok(Self {
            digest: digest.to_owned(),
            config: manifest.config.digest,
            platform: config.platform.to_string(),
            created: config.created,
            machine_config: config.machine_config,
            layers: layers.collect(),
        })
    }
}
