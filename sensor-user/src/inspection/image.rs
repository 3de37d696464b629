//! What the image of the OS says about a path.
//!
//! In: the indexes of a host, a path, and what declares the path above the image. Out: for each index that has the path, the layer that put it
//! there, what it put there, and how the host differs.

use crate::{
    image::{Found, ImageError, ImageIndex, Verifier, decides},
    observation::{Observer, snapshot},
};
use sensor_model::{
    difference::Difference,
    image::{ImageEntry, ImageMeta, ImageSource, Known, Package, Strength},
    observation::{FileType, Observation},
    record::RecordedState,
    verdict::VerdictKind,
};
use serde::Serialize;
use std::path::Path;

/// What an image says about a path.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ExplainedImage {
    /// What the index was made from.
    pub source: ImageSource,
    /// Digest of the image's manifest; for packages, of what their databases say.
    pub digest: String,
    /// Digest of the manifest of the image that an ostree commit was made from; absent if the commit was made in another way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// Names that its layout gave to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// What it has at the path; null if it has nothing there.
    pub entry: Option<ExplainedEntry>,
    /// The config that declares the path, or else the source of higher precedence that knows enough of it to be watched, so that the image's state
    /// does not apply; null if there is neither.
    pub overruled_by: Option<String>,
}

impl ExplainedImage {
    /// The source in words. It may hold control characters.
    pub fn name(&self) -> String {
        match self.source {
            ImageSource::Ostree => "ostree commit".to_owned(),
            ImageSource::Extensions => "extensions".to_owned(),
            ImageSource::Packages => "packages".to_owned(),
            ImageSource::Baseline => "baseline".to_owned(),
            ImageSource::Layers if self.names.is_empty() => format!("image {}", self.digest),
            ImageSource::Layers => format!("image {} ({})", self.digest, self.names.join(", ")),
        }
    }
}

/// The entry of a path in an image, and how the host differs.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ExplainedEntry {
    /// The path without links, as the image has it.
    pub path: String,
    /// The layer that put it there.
    pub layer: BlamedLayer,
    /// What the layer put there.
    pub expected: ImageState,
    /// What the verdict rests on.
    pub strength: Strength,
    /// The sealed tree that the path is in. While it is sealed, and nothing is mounted over the path, the daemon has one thing for the tree and none
    /// for the path. Absent if the path is in none, or differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sealed_tree: Option<String>,
    /// The verdict.
    pub verdict: VerdictKind,
    /// Every difference.
    pub differences: Vec<Difference>,
    /// An earlier deployment that ships something else at this path of `/etc`. So the host's file holds back what the booted deployment ships.
    /// Absent if all earlier deployments ship the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_content_in: Option<String>,
    /// Metadata and digest; null if it is missing or cannot be read.
    #[schemars(with = "Option<RecordedState>")]
    pub found: Option<serde_json::Value>,
    /// The same, as the observer has it.
    #[serde(skip)]
    pub observation: Observation,
}

/// A layer that is to blame, or a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct BlamedLayer {
    /// Its number, counted from 1, the lowest first. That of an ostree commit is above those of the layers that it was made from.
    pub number: usize,
    /// How many layers the image has.
    pub count: usize,
    /// Digest of its blob; absent for a package, a baseline and an ostree commit.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// The package; absent for a layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package: Option<Package>,
    /// The packages in a layer of an encapsulated ostree commit; absent for other layers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<String>,
    /// The line of the image's history that made it; null if the image has none for it.
    pub history: Option<String>,
}

impl BlamedLayer {
    /// The layer of an entry.
    pub fn of(meta: &ImageMeta, entry: &ImageEntry) -> Self {
        let layer = meta.layers.get(usize::from(entry.layer));
        Self {
            number: usize::from(entry.layer) + 1,
            count: meta.layer_count(),
            digest: layer.map_or_else(String::new, |layer| layer.digest.clone()),
            package: layer.and_then(|layer| layer.package.clone()),
            components: layer.map_or_else(Vec::new, |layer| layer.components.clone()),
            history: layer.and_then(|layer| layer.history.clone()),
        }
    }

    /// In words: `layer 2 of 3, sha256:…`, or `package openssh-server 1:9.2p1-2 (amd64)`. It may hold control characters.
    pub fn text(&self) -> String {
        match &self.package {
            Some(package) => format!("package {}", package.text()),
            None if self.digest.is_empty() => self.history.clone().unwrap_or_default(),
            None => format!("layer {} of {}, {}", self.number, self.count, self.digest),
        }
    }
}

/// What an image has at a path.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ImageState {
    /// How much of the path's state is known.
    pub known: Known,
    /// Whether it is a configuration file of a package, which an admin may change.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub config: bool,
    /// Its type; absent if it is not known.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub file_type: Option<FileType>,
    /// Permission bits, with setuid, setgid and sticky; absent if they are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Owning user id; absent if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Owning group id; absent if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Size of a file in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// SHA-256 of a file's content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// MD5 of a file's content, where a package has no better digest. SHA-256, size, mode, owner and capabilities beside it are those of the file
    /// that had this MD5 when the index was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub md5: Option<String>,
    /// Checksum of an ostree object: type, owner, mode, attributes and content together. Only for a file whose object in the repository is
    /// damaged, so that nothing else is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ostree: Option<String>,
    /// Target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Major and minor number of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<(u32, u32)>,
    /// Extended attributes, in readable form.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub xattrs: Vec<(String, String)>,
}

impl From<&ImageEntry> for ImageState {
    fn from(entry: &ImageEntry) -> Self {
        let known = |number| entry.known.has_metadata().then_some(number);
        let has_size = entry.sha256.is_some();
        Self {
            known: entry.known,
            config: entry.config,
            file_type: entry.known.has_type().then_some(entry.file_type),
            mode: known(entry.mode),
            uid: known(entry.uid),
            gid: known(entry.gid),
            size: has_size.then_some(entry.size),
            sha256: entry.sha256.map(hex::encode),
            md5: entry.md5.map(hex::encode),
            ostree: entry.ostree.map(hex::encode),
            target: entry.target.as_ref().map(|target| String::from_utf8_lossy(target).into_owned()),
            device: entry.device,
            xattrs: entry.xattrs.clone(),
        }
    }
}

impl ImageState {
    /// In a few words. It may hold control characters.
    pub fn summary(&self) -> String {
        let kind = match (self.file_type, self.known) {
            (Some(kind), _) => kind.as_str().replace('-', " "),
            (None, Known::Name) => "a name that need not exist".to_owned(),
            (None, _) => "something, without a digest".to_owned(),
        };
        if let Some(checksum) = &self.ostree {
            return format!("ostree:{checksum} (its object in the repository is damaged)");
        }
        let what = match (&self.target, &self.sha256, &self.md5, self.device) {
            (Some(target), ..) => format!("link to {target}"),
            (_, Some(sum), Some(md5), _) => {
                format!("md5:{md5}; when the index was made sha256:{sum} ({} bytes)", self.size.unwrap_or(0))
            }
            (_, Some(sum), ..) => format!("sha256:{sum} ({} bytes)", self.size.unwrap_or(0)),
            (_, _, Some(sum), _) => format!("md5:{sum}"),
            (.., Some((major, minor))) => format!("{kind} {major}:{minor}"),
            _ => kind,
        };
        let what = if self.config { format!("{what}, a configuration file") } else { what };
        match (self.mode, self.uid, self.gid) {
            (Some(mode), Some(uid), Some(gid)) => format!("{what}, mode {mode:04o}, owner {uid}:{gid}"),
            _ => what,
        }
    }
}

/// Explains a path by each index that has it, the strongest first; if none has it, by the first. Empty without an index. `declared_by` names
/// the config that declares the path. Without a config the first index that knows enough of the path to be watched overrules those after it.
///
/// # Errors
/// An index cannot be read.
pub(super) fn explain_by_images(
    indexes: &[ImageIndex],
    observer: &Observer,
    root: &Path,
    path: &Path,
    declared_by: Option<&str>,
) -> Result<Vec<ExplainedImage>, ImageError> {
    let explained = |index: &ImageIndex, found: Option<Found>, overruled_by: Option<String>| ExplainedImage {
        source: index.meta().source,
        digest: index.meta().digest.clone(),
        manifest: index.meta().manifest.clone(),
        names: index.meta().names.clone(),
        entry: found.map(|found| entry(index.meta(), found, observer)),
        overruled_by,
    };
    let mut all: Vec<ExplainedImage> = Vec::new();
    let mut overruled_by = declared_by.map(str::to_owned);
    for index in indexes {
        if let Some(found) = Verifier::new(index, observer, root).path(path)? {
            let is_deciding = decides(&found.path, &found.entry, index.meta());
            let this = explained(index, Some(found), overruled_by.clone());
            if is_deciding && overruled_by.is_none() {
                overruled_by = Some(this.name());
            }
            all.push(this);
        }
    }
    if let ([], [first, ..]) = (&all[..], indexes) {
        all.push(explained(first, None, declared_by.map(str::to_owned)));
    }
    Ok(all)
}

fn entry(meta: &ImageMeta, found: Found, observer: &Observer) -> ExplainedEntry {
    let verdict = match (found.differences.is_empty(), found.is_unreadable()) {
        (true, _) => VerdictKind::Compliant,
        (false, true) => VerdictKind::Unknown,
        (false, false) => VerdictKind::Drifted,
    };
    let tree = if verdict == VerdictKind::Compliant { observer.sealed_tree_of(&found.path) } else { None };
    ExplainedEntry {
        sealed_tree: tree.map(|(top, _)| top.to_string_lossy().into_owned()),
        path: found.path.to_string_lossy().into_owned(),
        layer: BlamedLayer::of(meta, &found.entry),
        expected: ImageState::from(&found.entry),
        strength: found.observation.seal().map_or_else(|| meta.strength(&found.entry), Strength::from),
        verdict,
        differences: found.differences,
        other_content_in: found.other_content_in,
        found: snapshot(&found.observation),
        observation: found.observation,
    }
}
