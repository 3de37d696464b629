//! The names of an image and of its layers, and how strong a verdict by them is.

use super::entry::ImageEntry;
use crate::{observation::FileType, strength::Strength, xattr};
use sensor_protocol::names;
use serde::{Deserialize, Serialize};

/// The text between the digest of a layer and its line of history in a blame.
const HISTORY: &str = ", `";

names! {
    /// What an index was made from.
    pub enum ImageSource {
        /// The layers of an OCI image.
        Layers = "layers",
        /// The ostree commit that a host booted.
        Ostree = "ostree",
        /// The databases of packages of a host.
        Packages = "packages",
        /// The directories of the extensions that were merged over the host's hierarchies.
        Extensions = "extensions",
        /// What was at paths of a host when a baseline was taken.
        Baseline = "baseline",
    }
}

/// A package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version, with epoch and release.
    pub version: String,
    /// Its architecture.
    pub architecture: String,
}

impl Package {
    /// In words: `openssh-server 1:9.2p1-2 (amd64)`.
    pub fn text(&self) -> String {
        format!("{} {} ({})", self.name, self.version, self.architecture)
    }
}

/// One layer of an image, or one package of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LayerMeta {
    /// Digest of the layer's blob; absent for a package, a baseline and an ostree commit.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub digest: String,
    /// Digest of the uncompressed layer; absent for a package.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub diff_id: String,
    /// Size of the blob in bytes; absent for a package.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size: Option<u64>,
    /// The package; absent for a layer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub package: Option<Package>,
    /// The packages in a layer of an encapsulated ostree commit, by the layer's annotation `ostree.components`; absent for other layers.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub components: Vec<String>,
    /// The line of the image's history that made the layer; null if the image has none for it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub history: Option<String>,
}

impl LayerMeta {
    /// The packages of a layer of an encapsulated ostree commit in words: `packages bash, coreutils, glibc and 4 more`. `None` for other layers.
    pub fn packages_text(&self) -> Option<String> {
        packages_text(&self.components)
    }
}

/// Packages in words: `packages bash, coreutils, glibc and 4 more`. `None` without any.
pub fn packages_text(packages: &[String]) -> Option<String> {
    /// Most of them that are named.
    const NAMED: usize = 3;
    let noun = if packages.len() == 1 { "package" } else { "packages" };
    let named = packages.get(..NAMED).unwrap_or(packages).join(", ");
    match packages.len().saturating_sub(NAMED) {
        _ if packages.is_empty() => None,
        0 => Some(format!("{noun} {named}")),
        more => Some(format!("{noun} {named} and {more} more")),
    }
}

/// What an index says about its image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ImageMeta {
    /// What the index was made from.
    pub source: ImageSource,
    /// Digest of the manifest of the platform; for an ostree commit `ostree:` and its checksum; for packages, the digest of what their databases
    /// say; for extensions, of what their directories have; for a baseline, of its file.
    pub digest: String,
    /// Digest of the manifest of the image that an ostree commit was made from, by the commit's metadata. Absent if the commit was made in
    /// another way.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub manifest: Option<String>,
    /// Digests of the image indexes that lead to the manifest, the outermost first. They name the same image.
    pub indexes: Vec<String>,
    /// Digest of the image's config; absent for packages, a baseline, and a commit that was made in another way than from an image.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub config: String,
    /// The platform, such as `linux/amd64`; for packages, what manages them: `dpkg`, `rpm` or both; for a baseline empty.
    pub platform: String,
    /// Names that the layout gives to the image.
    pub names: Vec<String>,
    /// When the image was made, by its own word, or the baseline was taken.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub created: Option<String>,
    /// The rendered MachineConfig from which a cluster built the image, by the image's label `machineconfig`. Absent without that label.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub machine_config: Option<String>,
    /// The layers, the lowest first; or the packages, or the extensions. The last one of an ostree commit is the commit itself: it has no digest,
    /// and is to blame where no layer of the commit's image is.
    pub layers: Vec<LayerMeta>,
    /// How many paths the index has.
    pub entries: u64,
    /// Bytes of all uncompressed layers.
    pub bytes: u64,
    /// The image is an encapsulated ostree commit. Its extended attributes are in objects of their own.
    pub ostree: bool,
    /// The index has the extended attributes of the encapsulated commit's files, from their objects. It does not have those of directories.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub object_xattrs: bool,
    /// The index has `/etc` once more as `/usr/etc`, where an ostree host keeps it as the image ships it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub shipped_etc: bool,
    /// The state of the databases of packages that it was made from, the checksum of the commit, or the merged extensions; absent for an image. In another state
    /// the index is old.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub state: Option<String>,
    /// Files of an ostree commit whose objects in the repository are damaged; absent if none is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub damaged: Option<DamagedFiles>,
}

names! {
    /// Why an object of an ostree repository is not used.
    pub enum ObjectDamage {
        /// Its content, owner, mode or attributes are not those of its checksum.
        Checksum = "it does not have its checksum",
        /// It is missing.
        Missing = "it is missing",
        /// It is neither a file nor a link.
        Type = "it is neither a file nor a symbolic link",
        /// A process wrote into it while it was read.
        Changing = "it changed while it was read",
        /// The disk or the file system fails.
        Unreadable = "it cannot be read",
    }
}

/// Most damaged files of a commit that an index lists.
const MOST_DAMAGED: usize = 1000;

/// A file of a commit whose object in the repository is damaged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DamagedFile {
    /// Its path in the commit.
    pub path: String,
    /// The object: `ostree:` and its checksum.
    pub object: String,
    /// What is wrong with it.
    pub reason: ObjectDamage,
}

/// The files of a commit whose objects in the repository are damaged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DamagedFiles {
    /// How many there are.
    pub count: u64,
    /// The first thousand of them, in the order of the commit.
    pub first: Vec<DamagedFile>,
}

impl DamagedFiles {
    /// Adds a file.
    pub fn add(&mut self, path: &[u8], object: &[u8; 32], reason: ObjectDamage) {
        self.count += 1;
        if self.first.len() < MOST_DAMAGED {
            let path = String::from_utf8_lossy(path).into_owned();
            self.first.push(DamagedFile { path, object: ostree_digest(hex::encode(object)), reason });
        }
    }
}

/// A checksum of ostree, tagged with its kind. It is the digest of no file's bytes.
pub fn ostree_digest(checksum: impl std::fmt::Display) -> String {
    format!("ostree:{checksum}")
}

/// Which extended attributes of a path are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownXattrs {
    /// Each one.
    All,
    /// The capabilities.
    Capabilities,
    /// None.
    None,
}

impl ImageMeta {
    /// The same with the tag `ostree:` of a commit's checksum, which indexes of version 2 of the form have as `sha256:`.
    #[must_use]
    pub fn with_kind_of_digest(mut self) -> Self {
        if self.source == ImageSource::Ostree
            && let Some(checksum) = self.digest.strip_prefix("sha256:")
        {
            self.digest = ostree_digest(checksum);
        }
        self
    }

    /// Whether a digest names this image: that of the manifest, or of an image index that leads to it.
    pub fn is(&self, digest: &str) -> bool {
        self.digest == digest || self.indexes.iter().any(|index| index == digest)
    }

    /// Which extended attributes of its path an entry has. An encapsulated ostree commit has them in objects of their own. The database of rpm has the
    /// capabilities. The index of dpkg's packages has those that a file with the package's MD5 had when the index was made.
    pub fn known_xattrs(&self, entry: &ImageEntry) -> KnownXattrs {
        let is_unknown = || entry.xattrs.iter().any(|(_, value)| value == xattr::UNKNOWN);
        match self.source {
            _ if !entry.known.has_metadata() || is_unknown() => KnownXattrs::None,
            _ if self.ostree && !self.object_xattrs => KnownXattrs::None,
            // Those of a directory are in another kind of object, which is not read.
            _ if self.ostree && entry.file_type == FileType::Directory => KnownXattrs::None,
            ImageSource::Packages => KnownXattrs::Capabilities,
            _ => KnownXattrs::All,
        }
    }

    /// What a verdict about an entry rests on.
    pub fn strength(&self, entry: &ImageEntry) -> Strength {
        match (self.source, entry.sha256, entry.md5) {
            (ImageSource::Layers, ..) => Strength::Layer,
            (ImageSource::Ostree, ..) if entry.ostree.is_some() => Strength::CommitChecksum,
            (ImageSource::Ostree, ..) => Strength::Commit,
            (ImageSource::Extensions, ..) => Strength::Extension,
            (ImageSource::Baseline, ..) => Strength::Baseline,
            // The SHA-256 beside an MD5 is that of the file which had the MD5, so the MD5 is the proof.
            (ImageSource::Packages, _, Some(_)) => Strength::PackageMd5,
            (ImageSource::Packages, Some(_), None) => Strength::PackageSha256,
            (ImageSource::Packages, None, None) => Strength::PackageName,
        }
    }

    /// What verdicts about contents rest on, at the weakest.
    pub fn strength_of_contents(&self) -> Strength {
        match self.source {
            ImageSource::Layers => Strength::Layer,
            ImageSource::Ostree => Strength::Commit,
            ImageSource::Extensions => Strength::Extension,
            ImageSource::Baseline => Strength::Baseline,
            ImageSource::Packages if self.platform == "rpm" => Strength::PackageSha256,
            ImageSource::Packages => Strength::PackageMd5,
        }
    }

    /// How many layers the image has, without the commit that was made from it.
    pub fn layer_count(&self) -> usize {
        match self.layers.as_slice() {
            [layers @ .., commit] if commit.digest.is_empty() && self.has_digests() => layers.len(),
            all => all.len(),
        }
    }

    /// Whether layers of an image are known, and not only a commit, packages or a baseline.
    pub fn has_digests(&self) -> bool {
        self.layers.first().is_some_and(|layer| !layer.digest.is_empty())
    }

    /// The blame in words: `layer 2 of 3, sha256:…, "RUN …"`, or the package. The line is cut to `most` characters.
    pub fn blame(&self, layer: u16, most: usize) -> String {
        let number = usize::from(layer);
        let count = self.layer_count();
        let Some(meta) = self.layers.get(number) else { return format!("layer {} of {count}", number + 1) };
        if let Some(package) = &meta.package {
            return format!("package {}", package.text());
        }
        if meta.digest.is_empty() {
            return meta.history.clone().unwrap_or_default();
        }
        let digest: String = meta.digest.chars().take(19).collect();
        let mut text = format!("layer {} of {count}, {digest}…", number + 1);
        if let Some(packages) = meta.packages_text() {
            text.extend([", ", &packages]);
        } else if let Some(line) = &meta.history {
            let mut short: String = line.chars().take(most).collect();
            if short.len() < line.len() {
                short.push('…');
            }
            text.extend([HISTORY, &short, "`"]);
        }
        text
    }
}

/// A blame without the line of history, which may have what a build was given, such as a password.
pub fn without_history(blame: &str) -> &str {
    blame.split_once(HISTORY).map_or(blame, |(before, _)| before)
}

/// Whether a text is a digest of the one kind that is supported: `sha256:` and 64 lower-case hexadecimal digits.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|digits| {
        digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}
