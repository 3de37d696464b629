//! Why an image is not indexed, or an index not read.

use super::merged_extensions::ExtensionFault;
use crate::{packages::Unread, sys::CallError};
use sensor_model::{
    image::{BaselineError, ConfigError, IndexError, LayerError, ManifestError},
    ostree::ObjectError,
};
use std::{
    io,
    path::{Path, PathBuf},
};

/// The fewest digits of the beginning of a digest or of a checksum.
pub(super) const FEWEST: usize = 6;

/// What is wrong with a blob of a layout.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// It cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// Its size is not that of the descriptor.
    #[error("it has {found} bytes, and its descriptor says {expected}")]
    Size {
        /// The size in the descriptor.
        expected: u64,
        /// The size of the file.
        found: u64,
    },
    /// Its content is not that of its digest.
    #[error("its content has the digest {found}; the image is damaged, fetch it again")]
    Digest {
        /// The digest of the content.
        found: String,
    },
    /// A JSON document is too large.
    #[error("it is a document of {size} bytes, and {limit} bytes are the limit")]
    TooLarge {
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
}

/// Why no image of a layout is taken.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The directory is no layout.
    #[error("{}: it is not an OCI image layout: {reason}", path.display())]
    NotALayout {
        /// The directory.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A blob cannot be used.
    #[error("blob {digest}: {error}")]
    Blob {
        /// Its digest.
        digest: String,
        /// Why not.
        error: BlobError,
    },
    /// A manifest or an index cannot be used.
    #[error("manifest {digest}: {error}")]
    Manifest {
        /// Its digest.
        digest: String,
        /// Why not.
        error: ManifestError,
    },
    /// The config of an image cannot be used.
    #[error("config {digest}: {error}")]
    Config {
        /// Its digest.
        digest: String,
        /// Why not.
        error: ConfigError,
    },
    /// Indexes lead to indexes, too deep.
    #[error("image indexes are nested more than {0} deep")]
    Nested(usize),
    /// It has more of something than a layout may have, or indexes name it again and again.
    #[error(
        "the image indexes of the layout name more than {most} {what}; copy the image alone into another layout"
    )]
    TooMany {
        /// What it has.
        what: &'static str,
        /// The limit.
        most: usize,
    },
    /// No image is the chosen one.
    #[error("no image of the layout {wanted}; it has: {}", list(images))]
    None {
        /// What is asked for.
        wanted: String,
        /// The images.
        images: Vec<String>,
    },
    /// Several images are.
    #[error("several images of the layout {wanted}; choose one by --digest: {}", list(images))]
    Several {
        /// What is asked for.
        wanted: String,
        /// The images.
        images: Vec<String>,
    },
}

fn list(images: &[String]) -> String {
    if images.is_empty() { "no image".to_owned() } else { images.join(", ") }
}

/// Why an image is not indexed, or an index not read.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// No image is taken from the layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A layer cannot be read.
    #[error("layer {number} of {count} ({digest}): {reason}")]
    Layer {
        /// Its number, counted from 1.
        number: usize,
        /// How many there are.
        count: usize,
        /// Its digest.
        digest: String,
        /// Why not.
        reason: LayerFault,
    },
    /// The index cannot be written or opened.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The index is damaged.
    #[error("{}: {reason}; build it anew with `holdfast image index`", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: IndexError,
    },
    /// No index is that of a digest.
    #[error(
        "no index of {wanted}; build it with `holdfast image index LAYOUT`, or that of an ostree commit with `holdfast image index \
         --ostree=COMMIT`{}",
        known(images)
    )]
    Unknown {
        /// The digest, or its beginning.
        wanted: String,
        /// Digests of the images that have one.
        images: Vec<String>,
    },
    /// A database of packages cannot be read.
    #[error("the databases of packages cannot be indexed: {0}")]
    Packages(#[from] Unread),
    /// The host has neither dpkg nor rpm.
    #[error("this host has no database of packages: neither /var/lib/dpkg/status nor rpmdb.sqlite")]
    NoPackages,
    /// The host keeps no `/etc` as its image ships it.
    #[error(
        "this host does not keep the /etc of its image, or this process may not read it, so nothing there can be put back; run it as root on a \
         host that boots images"
    )]
    NoPristine,
    /// The booted image has no index that applies.
    #[error(
        "the booted image has no index, or an old one; make it with `holdfast image index --ostree` on an ostree host, or else with `holdfast \
         image index LAYOUT`"
    )]
    BootedNotIndexed,
    /// The image of the booted deployment has an index, but the booted commit is another tree, and has none.
    #[error(
        "the index of {0} is that of the base image: the booted ostree commit was not made from this image alone (rpm-ostree may have added \
         packages), and has no index; make it with `holdfast image index --ostree`"
    )]
    BaseAlone(String),
    /// There is no index of the host's extensions or packages, of its commit, or of a baseline.
    #[error("there is no index of this host's {0}; make it with `holdfast image index --{0}`")]
    NotIndexed(&'static str),
    /// A path cannot be read for a baseline.
    #[error("{error}; nothing was printed")]
    Unreadable {
        /// The path, and why not.
        error: String,
    },
    /// A path that a baseline is to be taken of does not exist.
    #[error(
        "{}: it does not exist on the host at {}, so nothing was printed; name paths that exist",
        path.display(),
        root.display()
    )]
    NoPath {
        /// The path.
        path: PathBuf,
        /// The root of the host.
        root: PathBuf,
    },
    /// A path changed while it was read for a baseline.
    #[error("{}: it changed while it was read, so nothing was printed; try again", path.display())]
    Changing {
        /// The path.
        path: PathBuf,
    },
    /// A file is no baseline.
    #[error("{}: {reason}; `holdfast baseline` makes one", path.display())]
    Baseline {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: BaselineError,
    },
    /// The commit of an ostree host cannot be indexed.
    #[error(transparent)]
    Ostree(#[from] OstreeFault),
    /// The host with this root booted another ostree commit since the index was made.
    #[error(
        "the host at {} booted another ostree commit than the indexed one; make the index anew with `holdfast image index --ostree{}`",
        .0.display(),
        root_option(.0)
    )]
    OtherCommit(PathBuf),
    /// The extensions of the host cannot be indexed.
    #[error(transparent)]
    Extensions(#[from] ExtensionFault),
    /// On the host with this root other extensions are merged since the index was made.
    #[error(
        "other extensions are merged on the host at {} than the indexed ones; make the index anew with `holdfast image index --extensions{}`",
        .0.display(),
        root_option(.0)
    )]
    OtherExtensions(PathBuf),
    /// No index says what the host has beside its extensions.
    #[error(
        "no current index says what this host has beside its extensions, so each name of its image or packages would look unexpected; make it with \
         `holdfast image index`, or leave out --unexpected"
    )]
    OnlyExtensions,
    /// Packages of the host with this root changed since the index was made.
    #[error(
        "the packages changed on the host at {} since their index was made, or the index is that of another root, so it says nothing about them; \
         make it anew with `holdfast image index --packages{}`",
        .0.display(),
        root_option(.0)
    )]
    Old(PathBuf),
    /// An image index leads to several images that have an index, and not one of them alone is for this machine.
    #[error(
        "the image index {wanted} leads to several images that have an index, and not to exactly one for this machine ({machine}): {}; name the \
         digest of one of these",
        images.join(", ")
    )]
    SeveralPlatforms {
        /// The digest of the image index.
        wanted: String,
        /// The platform of this machine.
        machine: String,
        /// The digests of the images, with their platforms.
        images: Vec<String>,
    },
    /// The image of the booted deployment has an index, but the booted commit names another manifest.
    #[error(
        "the booted ostree commit was made from {manifest}, and only another image of {wanted} has an index; make the index with `holdfast image \
         index --ostree`, or with `holdfast image index LAYOUT --digest {manifest}`"
    )]
    OtherManifest {
        /// The digest in the deployment's origin.
        wanted: String,
        /// The digest in the commit.
        manifest: String,
    },
    /// Too few digits name an image.
    #[error("{wanted}: at least {FEWEST} digits of a digest are needed; these begin so: {}", images.join(", "))]
    Short {
        /// The beginning of a digest.
        wanted: String,
        /// The digests that begin so.
        images: Vec<String>,
    },
    /// Several indexes are.
    #[error("several images have a digest that begins with {wanted}: {}", images.join(", "))]
    Ambiguous {
        /// The beginning of a digest.
        wanted: String,
        /// The digests.
        images: Vec<String>,
    },
}

/// The option of `image index` for a root other than that of the running system.
fn root_option(root: &Path) -> String {
    if root == Path::new("/") { String::new() } else { format!(" --root {}", root.display()) }
}

fn known(images: &[String]) -> String {
    if images.is_empty() { String::new() } else { format!("; there are indexes of {}", images.join(", ")) }
}

/// Why the commit of an ostree host cannot be indexed.
#[derive(Debug, thiserror::Error)]
pub enum OstreeFault {
    /// The host booted none.
    #[error(
        "this host did not boot an ostree deployment, so it has no commit to index; index its packages with --packages, or a layout of its \
         image"
    )]
    NotBooted,
    /// Not one commit has the name.
    #[error(
        "{of} ostree deployments of this host are of the commit {wanted:?}, and one is needed: name a checksum, the beginning of one, `staged`, or \
         the image or branch of a deployment; the deployed commits are {}",
        deployed.join(", ")
    )]
    NoCommit {
        /// The name.
        wanted: String,
        /// How many commits have it.
        of: usize,
        /// The checksums of the deployed commits.
        deployed: Vec<String>,
    },
    /// The name of the deployment has no checksum.
    #[error(
        "the booted deployment has the name {0:?}, which does not begin with the checksum of a commit; `ostree admin status` shows what is \
         deployed"
    )]
    Name(String),
    /// The repository stores files in another form.
    #[error(
        "the repository /ostree/repo has the mode {0:?}, and only that of hosts, \"bare\", is read; index a layout of the host's image instead"
    )]
    Mode(String),
    /// A ref names no commit.
    #[error("{}: it does not have the checksum of a commit; `ostree refs --list` shows what refs name", .0.display())]
    Reference(PathBuf),
    /// The commit has more paths than an image may have, or longer ones.
    #[error(
        "{0}: the commit has more than 2,000,000 paths, or one with more bytes than the kernel allows, so it is not indexed"
    )]
    Limits(String),
    /// A commit or a directory does not have its checksum, so what is below it is not known.
    #[error("{}: it does not have its checksum; `ostree fsck` lists all such objects, and a new deployment replaces them", object.display())]
    Damaged {
        /// The object.
        object: PathBuf,
    },
    /// An object has another form.
    #[error("{}: {reason}; `ostree fsck` checks the repository", object.display())]
    Object {
        /// The object.
        object: PathBuf,
        /// What is wrong with it.
        reason: ObjectError,
    },
}

/// Why a layer cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LayerFault {
    /// Its blob cannot be used.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// It cannot be decompressed.
    #[error("it cannot be decompressed: {0}")]
    Compression(io::Error),
    /// It cannot be read as a layer.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// Its uncompressed bytes are not those of the config.
    #[error("its uncompressed bytes have the digest {found}, and the image's config says {expected}")]
    DiffId {
        /// The digest in the config.
        expected: String,
        /// That of the bytes.
        found: String,
    },
    /// A decompression bomb.
    #[error(
        "one compressed byte gives more than {limit} bytes, which is the limit for more than {from} bytes; it is taken for a \
         decompression bomb"
    )]
    Ratio {
        /// The limit.
        limit: u64,
        /// From how many bytes on.
        from: u64,
    },
}

impl ImageError {
    /// Whether the mistake is in an argument, or in what it names.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Layout(_)
            | Self::Layer { .. }
            | Self::Unknown { .. }
            | Self::Ambiguous { .. }
            | Self::Short { .. }
            | Self::SeveralPlatforms { .. }
            | Self::OtherManifest { .. }
            | Self::NoPackages
            | Self::NoPath { .. }
            | Self::NoPristine
            | Self::BootedNotIndexed
            | Self::BaseAlone(_)
            | Self::NotIndexed(_)
            | Self::Baseline { .. }
            | Self::OtherCommit(_)
            | Self::OtherExtensions(_)
            | Self::OnlyExtensions
            | Self::Extensions(ExtensionFault::NotRunning(_))
            | Self::Ostree(OstreeFault::NotBooted | OstreeFault::NoCommit { .. } | OstreeFault::Mode(_))
            | Self::Old(_) => true,
            Self::Call(_)
            | Self::Index { .. }
            | Self::Packages(_)
            | Self::Extensions(_)
            | Self::Ostree(_)
            | Self::Unreadable { .. }
            | Self::Changing { .. } => false,
        }
    }
}
