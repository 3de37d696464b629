//! The JSON documents of an image layout.
//!
//! In: bytes whose digest the caller verified. Out: descriptors, the layers of a manifest, and the history of a config. Unused
//! fields may have any value.

use super::reference::is_digest;
use serde::Deserialize;
use serde_json::Value;
use std::{collections::BTreeMap, fmt, str::FromStr};

/// Most descriptors of one image index.
const MOST_MANIFESTS: usize = 1024;
/// Most layers of one image.
const MOST_LAYERS: usize = 1024;
/// Most lines of a history.
const MOST_HISTORY: usize = 8192;
/// Most characters of a line of the history that are kept.
const HISTORY_LENGTH: usize = 1000;
/// The annotation with the name that a layout gives to an image.
const NAME: &str = "org.opencontainers.image.ref.name";
/// The label with the digest of the last uncompressed layer of an encapsulated ostree commit.
const LAST_OF_COMMIT: &str = "ostree.final-diffid";
/// The annotation of a layer of an encapsulated ostree commit with the names of the packages in it, with commas between them.
const COMPONENTS: &str = "ostree.components";
/// The label with the rendered MachineConfig from which the Machine Config Operator built the image.
const MACHINE_CONFIG: &str = "machineconfig";
/// Most characters of an object's name in Kubernetes.
const MOST_OF_NAME: usize = 253;
/// Docker's annotation of attestations, which are manifests without a root directory.
const ATTESTATION: &str = "vnd.docker.reference.type";

/// Why a document of a layout is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It is no JSON of the form.
    #[error("it is neither an image manifest nor an image index: {0}")]
    Json(String),
    /// It has too many parts.
    #[error("it has {count} {what}, and {limit} are the limit")]
    Many {
        /// What it has.
        what: &'static str,
        /// How many.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// A digest of another kind.
    #[error("{0:?} is not a digest of the form sha256:<64 hexadecimal digits>")]
    Digest(String),
    /// A layer of a kind that this version cannot read.
    #[error("layers of the type {0:?} are not supported; supported are tar, tar+gzip and tar+zstd")]
    LayerType(String),
    /// It has neither layers nor manifests.
    #[error("it has neither \"layers\" nor \"manifests\"")]
    Neither,
    /// It is a manifest without a config.
    #[error("the manifest has no config, so it is no container image")]
    NoConfig,
}

/// Why the config of an image is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// It is no JSON of the form.
    #[error("it is not an image config: {0}")]
    Json(String),
    /// It does not list the layers of the manifest.
    #[error("it has {diff_ids} diff_ids, and the manifest has {layers} layers")]
    DiffIds {
        /// How many digests it has.
        diff_ids: usize,
        /// How many layers there are.
        layers: usize,
    },
    /// A digest of another kind.
    #[error("the diff_id {0:?} is not a digest of the form sha256:<64 hexadecimal digits>")]
    Digest(String),
}

/// The fields of a platform.
const PLATFORM: [&str; 3] = ["os", "architecture", "variant"];

/// A platform: operating system, architecture and variant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Platform {
    /// Go's name of the operating system.
    pub os: String,
    /// Go's name of the architecture.
    pub architecture: String,
    /// Such as `v8`; empty if there is none.
    pub variant: String,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if self.variant.is_empty() { Ok(()) } else { write!(f, "/{}", self.variant) }
    }
}

impl FromStr for Platform {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('/').map(str::to_owned);
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(os), Some(architecture), variant, None) if !os.is_empty() && !architecture.is_empty() => {
                Ok(Self { os, architecture, variant: variant.unwrap_or_default() })
            }
            _ => {
                Err("a platform has the form OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, such as linux/amd64")
            }
        }
    }
}

impl Platform {
    /// Linux on this processor.
    pub fn of_this_machine() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "powerpc64" => "ppc64le",
            "riscv64" => "riscv64",
            other => other,
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: String::new() }
    }

    /// Whether an image of this platform is what `wanted` asks for. A variant matters only if both have one.
    pub fn is(&self, wanted: &Self) -> bool {
        let same_variant =
            self.variant.is_empty() || wanted.variant.is_empty() || self.variant == wanted.variant;
        self.os == wanted.os && self.architecture == wanted.architecture && same_variant
    }
}

/// A reference to a blob.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Media type.
    #[serde(default)]
    pub media_type: String,
    /// `sha256:…`.
    pub digest: String,
    /// Size in bytes.
    pub size: u64,
    /// The platform, in an image index.
    #[serde(default)]
    pub platform: Option<Platform>,
    /// Annotations.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    /// The name that the layout gives to it.
    pub fn name(&self) -> Option<&str> {
        self.annotations.get(NAME).map(String::as_str)
    }

    /// The packages that a layer of an encapsulated ostree commit has, by its annotation; empty for other layers.
    pub fn components(&self) -> Vec<String> {
        let names = self.annotations.get(COMPONENTS).into_iter().flat_map(|names| names.split(','));
        names.map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    /// Whether the blob is another index.
    pub fn is_index(&self) -> bool {
        matches!(
            self.media_type.as_str(),
            "application/vnd.oci.image.index.v1+json"
                | "application/vnd.docker.distribution.manifest.list.v2+json"
        )
    }

    /// Whether it may be a container image: not an attestation about one.
    pub fn may_be_image(&self) -> bool {
        let unknown = self.platform.as_ref().is_some_and(|platform| platform.os == "unknown");
        !unknown && !self.annotations.contains_key(ATTESTATION)
    }

    fn check(&self) -> Result<(), ManifestError> {
        if is_digest(&self.digest) { Ok(()) } else { Err(ManifestError::Digest(self.digest.clone())) }
    }
}

/// How a layer is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// It is a plain tar archive.
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// By the media type of a layer.
    ///
    /// # Errors
    /// Another media type, also that of an encrypted layer.
    pub fn of_layer(media_type: &str) -> Result<Self, ManifestError> {
        match media_type {
            "application/vnd.oci.image.layer.v1.tar"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar"
            | "application/vnd.docker.image.rootfs.diff.tar" => Ok(Self::None),
            "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip" => Ok(Self::Gzip),
            "application/vnd.oci.image.layer.v1.tar+zstd"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd" => Ok(Self::Zstd),
            other => Err(ManifestError::LayerType(other.to_owned())),
        }
    }
}

/// The manifest of one platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The config.
    pub config: Descriptor,
    /// The layers, the lowest first.
    pub layers: Vec<(Descriptor, Compression)>,
}

/// A document of a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManifestDocument {
    /// A list of manifests.
    Index(Vec<Descriptor>),
    /// A manifest.
    Manifest(Manifest),
}

/// Which image of a layout to take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The digest of a manifest or of an image index.
    pub digest: Option<String>,
    /// The platform, if the digest is not that of a manifest.
    pub platform: Option<Platform>,
}

/// Refuses the keys of an object that are a field in another case. Go's library takes such a key for the field, and of two keys the later
/// one. So the tools that unpack an image could take other layers than this parser.
fn check_keys(object: &Value, fields: &[&str]) -> Result<(), String> {
    let is_field = |key: &str| fields.iter().any(|field| folded(field) == folded(key));
    let mut keys = object.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    keys.find(|key| !fields.contains(key) && is_field(key)).map_or(Ok(()), |key| {
        Err(format!("the key {key:?} is a field in another case, and tools read it in two ways"))
    })
}

/// A key as Go compares it: without case. Two letters outside ASCII have the lower case of one in it.
fn folded(key: &str) -> String {
    let fold = |letter: char| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    key.chars().map(fold).collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn check_document(json: &[u8]) -> Result<(), String> {
    let document: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    check_keys(&document, &["config", "layers", "manifests"])?;
    let all = list(&document["layers"]).chain(list(&document["manifests"])).chain([&document["config"]]);
    for descriptor in all {
        check_keys(descriptor, &["mediaType", "digest", "size", "platform", "annotations"])?;
        check_keys(&descriptor["platform"], &PLATFORM)?;
    }
    Ok(())
}

fn check_config(json: &[u8]) -> Result<(), String> {
    let config: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    check_keys(&config, &[&PLATFORM[..], &["created", "rootfs", "history", "config"]].concat())?;
    check_keys(&config["rootfs"], &["diff_ids"])?;
    check_keys(&config["config"], &["Labels"])?;
    list(&config["history"]).try_for_each(|line| check_keys(line, &["created_by", "comment", "empty_layer"]))
}

#[derive(Deserialize)]
struct Document {
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
}

/// Reads a manifest or an index. A document with the fields of both is an index to some tools and a manifest to others, so it is
/// refused.
///
/// # Errors
/// JSON of another form, too many parts, digests and layers of other kinds.
pub fn parse_document(json: &[u8]) -> Result<ManifestDocument, ManifestError> {
    let document: Document =
        serde_json::from_slice(json).map_err(|error| ManifestError::Json(error.to_string()))?;
    check_document(json).map_err(ManifestError::Json)?;
    match document {
        Document { manifests: Some(manifests), layers: None, .. } => {
            limit("manifests", manifests.len(), MOST_MANIFESTS)?;
            manifests.iter().try_for_each(Descriptor::check)?;
            Ok(ManifestDocument::Index(manifests))
        }
        Document { config, layers: Some(layers), manifests: None } => {
            let config = config.ok_or(ManifestError::NoConfig)?;
            limit("layers", layers.len(), MOST_LAYERS)?;
            config.check()?;
            let mut read = Vec::with_capacity(layers.len());
            for layer in layers {
                layer.check()?;
                let compression = Compression::of_layer(&layer.media_type)?;
                read.push((layer, compression));
            }
            Ok(ManifestDocument::Manifest(Manifest { config, layers: read }))
        }
        Document { manifests: Some(_), .. } => {
            Err(ManifestError::Json("it has both \"layers\" and \"manifests\"".to_owned()))
        }
        Document { .. } => Err(ManifestError::Neither),
    }
}

fn limit(what: &'static str, count: usize, limit: usize) -> Result<(), ManifestError> {
    if count > limit { Err(ManifestError::Many { what, count, limit }) } else { Ok(()) }
}

/// What the config of an image says about its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageConfig {
    /// The platform.
    pub platform: Platform,
    /// When the image was made.
    pub created: Option<String>,
    /// For each layer the digest of its uncompressed bytes, and the line of the history.
    pub layers: Vec<(String, Option<String>)>,
    /// The image is an encapsulated ostree commit, by its labels.
    pub ostree: bool,
    /// Digest of the last uncompressed layer that is a part of the encapsulated ostree commit, by a label. The layers above it are as in
    /// other images.
    pub last_of_commit: Option<String>,
    /// The rendered MachineConfig from which a cluster built the image, by a label.
    pub machine_config: Option<String>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    platform: Platform,
    created: Option<String>,
    rootfs: RootFs,
    history: Option<Vec<History>>,
    #[serde(default, rename = "config")]
    run: Option<RunConfig>,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

#[derive(Deserialize)]
struct History {
    #[serde(default)]
    created_by: String,
    #[serde(default)]
    comment: String,
    #[serde(default)]
    empty_layer: bool,
}

#[derive(Default, Deserialize)]
struct RunConfig {
    #[serde(rename = "Labels", default)]
    labels: Option<BTreeMap<String, String>>,
}

/// Reads the config of a manifest with so many layers. The history is used only if its lines that made a layer are as many as the
/// layers: otherwise a line could be taken for that of another layer.
///
/// # Errors
/// JSON of another form, and another number of layers.
pub fn parse_config(json: &[u8], layers: usize) -> Result<ImageConfig, ConfigError> {
    let config: Config =
        serde_json::from_slice(json).map_err(|error| ConfigError::Json(error.to_string()))?;
    check_config(json).map_err(ConfigError::Json)?;
    let diff_ids = config.rootfs.diff_ids;
    if diff_ids.len() != layers {
        return Err(ConfigError::DiffIds { diff_ids: diff_ids.len(), layers });
    }
    if let Some(wrong) = diff_ids.iter().find(|digest| !is_digest(digest)) {
        return Err(ConfigError::Digest(wrong.clone()));
    }
    let lines: Vec<String> = config
        .history
        .into_iter()
        .flatten()
        .take(MOST_HISTORY)
        .filter(|line| !line.empty_layer)
        .map(|line| history_line(&line))
        .collect();
    let mut lines = if lines.len() == layers { lines } else { Vec::new() }.into_iter();
    let mut labels = config.run.unwrap_or_default().labels.unwrap_or_default();
    Ok(ImageConfig {
        platform: config.platform,
        created: config.created,
        layers: diff_ids
            .into_iter()
            .map(|digest| (digest, lines.next().filter(|line| !line.is_empty())))
            .collect(),
        ostree: labels.contains_key("ostree.commit") || labels.contains_key(LAST_OF_COMMIT),
        last_of_commit: labels.remove(LAST_OF_COMMIT),
        machine_config: labels.remove(MACHINE_CONFIG).filter(|name| is_object_name(name)),
    })
}

/// Whether a text may be the name of an object in Kubernetes. The builder of an image may give its labels any value.
fn is_object_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !text.is_empty() && text.len() <= MOST_OF_NAME && text.bytes().all(is_part)
}

/// The instruction of a line, in the form in which its author wrote it.
fn history_line(line: &History) -> String {
    let text = if line.created_by.is_empty() { &line.comment } else { &line.created_by };
    let text = match text.strip_prefix("/bin/sh -c ") {
        Some(rest) => match rest.strip_prefix("#(nop) ") {
            Some(instruction) => instruction.trim_start().to_owned(),
            None => format!("RUN {rest}"),
        },
        None => text.clone(),
    };
    text.chars().take(HISTORY_LENGTH).collect()
}
