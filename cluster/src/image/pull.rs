//! A pull from its first document to `index.json`.

use super::authfile;
use super::error::PullError;
use super::layout::{BlobDescriptor, Layout};
use super::platform::Platform;
use super::registry::{Repository, Transport};
use oci_client::Reference;
use oci_client::manifest::{OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE, OciImageManifest, OciManifest};
use oci_client::secrets::RegistryAuth;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::fs;
use std::path::PathBuf;

/// Indexes that may lie within each other.
const DEPTH: usize = 3;
/// Most layers of an image. Docker and containerd take at most 127.
const LAYERS: usize = 512;
/// Longest manifest or index: the limit of the distribution specification.
const DOCUMENT_LIMIT: usize = 4 << 20;

/// What to pull, and how.
#[derive(Debug)]
pub struct PullOptions {
    /// The reference.
    pub reference: String,
    /// The directory of the layout.
    pub directory: PathBuf,
    /// The platform of an image that exists for several.
    pub platform: Platform,
    /// A file with credentials.
    pub authfile: Option<PathBuf>,
    /// A file with a certificate in PEM that is trusted besides those of the system.
    pub authority: Option<PathBuf>,
    /// Without TLS.
    pub is_plain: bool,
}

/// How far a pull is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The number of the blob, from 1 on.
    pub number: usize,
    /// All blobs.
    pub of: usize,
    /// The bytes of this blob that are here.
    pub bytes: u64,
    /// All its bytes.
    pub size: u64,
}

/// A pulled image.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pulled {
    /// The reference with its registry.
    pub reference: String,
    /// The digest that the reference has in the registry: of the index, or of the manifest if there is no index.
    pub digest: String,
    /// The digest of the platform's manifest.
    pub manifest: String,
    /// The number of layers.
    pub layers: usize,
    /// The bytes of all blobs.
    pub bytes: u64,
    /// The bytes that were transferred; the directory had the rest.
    pub transferred: u64,
}

/// Pulls an image.
///
/// # Errors
/// Why the image is not in the directory. What is complete stays there for the next attempt.
pub async fn pull(options: PullOptions, mut progress: impl FnMut(Progress)) -> Result<Pulled, PullError> {
    let reference: Reference = options
        .reference
        .parse()
        .map_err(|error| PullError::Reference { text: options.reference.clone(), error })?;
    let auth = match &options.authfile {
        Some(path) => authfile::credentials(path, &reference)?,
        None => RegistryAuth::Anonymous,
    };
    let authority = options.authority.as_ref();
    let authority =
        authority.map(|path| fs::read(path).map_err(PullError::file("read", path))).transpose()?;
    let layout = Layout::open(&options.directory)?;
    let repository = Repository::new(reference, auth, Transport { is_plain: options.is_plain, authority })?;

    let found = find(&repository, &layout, &options.platform).await?;
    let config = BlobDescriptor::new(&found.manifest.config.digest, found.manifest.config.size)?;
    let mut blobs = vec![config];
    for layer in &found.manifest.layers {
        blobs.push(BlobDescriptor::new(&layer.digest, layer.size)?);
    }
    let mut transferred = 0;
    for (place, blob) in blobs.iter().enumerate() {
        let told = |bytes| Progress { number: place + 1, of: blobs.len(), bytes, size: blob.size };
        if layout.has(blob)? {
            progress(told(blob.size));
            continue;
        }
        repository.blob(blob, &layout, |bytes| progress(told(bytes))).await?;
        transferred += blob.size;
    }
    layout.name(&found.media_type, &found.first, &repository.name())?;
    Ok(Pulled {
        reference: repository.name(),
        digest: found.first.digest,
        manifest: found.own,
        layers: blobs.len() - 1,
        bytes: blobs.iter().fold(0, |sum, blob| sum.saturating_add(blob.size)),
        transferred,
    })
}

/// The manifest of the platform.
struct FoundManifest {
    /// The document of the reference.
    first: BlobDescriptor,
    media_type: String,
    /// The digest of the platform's manifest.
    own: String,
    manifest: OciImageManifest,
}

/// Finds the manifest of the platform, through indexes. Each document on the way is kept.
async fn find(
    repository: &Repository,
    layout: &Layout,
    platform: &Platform,
) -> Result<FoundManifest, PullError> {
    let mut first = None;
    let mut wanted: Option<BlobDescriptor> = None;
    for _ in 0..=DEPTH {
        let content = repository.document(wanted.as_ref().map(|blob| &*blob.digest)).await?;
        let blob = described(&content, wanted.as_ref())?;
        let name = format!("the document {}", blob.digest);
        let fault =
            |reason: String| PullError::Document { object: name, reference: repository.name(), reason };
        if content.len() > DOCUMENT_LIMIT {
            return Err(fault("it is larger than 4 MiB".to_owned()));
        }
        let document: OciManifest = match serde_json::from_slice(&content) {
            Ok(document) => document,
            Err(error) => return Err(fault(format!("it is neither a manifest nor an index: {error}"))),
        };
        layout.keep(&blob, &content)?;
        match document {
            OciManifest::Image(manifest) => {
                if manifest.layers.len() > LAYERS {
                    return Err(fault(format!("it has more than {LAYERS} layers")));
                }
                let own = blob.digest.clone();
                let media_type =
                    manifest.media_type.clone().unwrap_or_else(|| OCI_IMAGE_MEDIA_TYPE.to_owned());
                let (first, media_type) = first.unwrap_or((blob, media_type));
                return Ok(FoundManifest { first, media_type, own, manifest });
            }
            OciManifest::ImageIndex(index) => {
                let known: Vec<(Platform, &str, i64)> = index
                    .manifests
                    .iter()
                    .filter_map(|entry| {
                        let of = entry.platform.as_ref()?;
                        let (os, architecture) = (of.os.to_string(), of.architecture.to_string());
                        Some((
                            Platform::new(&os, &architecture, of.variant.as_deref()),
                            &*entry.digest,
                            entry.size,
                        ))
                    })
                    .collect();
                let Some((_, digest, size)) = known.iter().find(|(of, ..)| platform.takes(of)) else {
                    let found: Vec<String> = known.iter().map(|(of, ..)| of.to_string()).collect();
                    let found =
                        if found.is_empty() { "none with a platform".to_owned() } else { found.join(", ") };
                    let reference = repository.name();
                    return Err(PullError::NoPlatform { reference, platform: platform.clone(), found });
                };
                wanted = Some(BlobDescriptor::new(digest, *size)?);
                let media_type = index.media_type.unwrap_or_else(|| OCI_IMAGE_INDEX_MEDIA_TYPE.to_owned());
                first.get_or_insert((blob, media_type));
            }
        }
    }
    Err(PullError::Document {
        object: "the index".to_owned(),
        reference: repository.name(),
        reason: format!("more than {DEPTH} indexes lie within each other"),
    })
}

/// The descriptor of a document, which is the one that led to it.
fn described(content: &[u8], wanted: Option<&BlobDescriptor>) -> Result<BlobDescriptor, PullError> {
    let digest = format!("sha256:{}", hex::encode(Sha256::digest(content)));
    let found = BlobDescriptor::new(&digest, i64::try_from(content.len()).unwrap_or(i64::MAX))?;
    match wanted {
        Some(wanted) if *wanted != found => {
            let reason = format!("the registry sent {} bytes with the digest {}", found.size, found.digest);
            Err(wanted.fault(reason))
        }
        _ => Ok(found),
    }
}
