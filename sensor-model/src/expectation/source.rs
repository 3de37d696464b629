//! What declares a thing.
//!
//! In: nothing. Out: the kinds of sources, and the name and the origin of each. Records and outputs show both.

use crate::strength::Strength;
use sensor_protocol::names;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The config that declares a thing. All things of one manifest share it.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Source {
    /// Name of the MachineConfig (`metadata.name`), or the file name of a plain Ignition config.
    pub machine_config: Arc<str>,
    /// The manifest file it was read from, as given on the command line or found in a directory.
    pub origin: Arc<str>,
}

impl Source {
    /// The source with this name, read from this file.
    pub fn new(machine_config: impl Into<Arc<str>>, origin: impl Into<Arc<str>>) -> Self {
        Self { machine_config: machine_config.into(), origin: origin.into() }
    }
}

names! {
    /// The kinds of what declares a thing.
    pub enum SourceKind {
        /// A MachineConfig.
        MachineConfig = "machine-config",
        /// The OS image, by its layers or by the ostree commit.
        Image = "image",
        /// A merged extension.
        Extension = "extension",
        /// A package.
        Package = "package",
        /// A baseline of the host.
        Baseline = "baseline",
        /// A drift policy, which closes the directory or expects nothing at the path.
        Policy = "policy",
    }
}

/// What declares a thing: the enum has a case for each kind of source.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(untagged)]
pub enum ExpectationSource {
    /// A MachineConfig.
    MachineConfig(Source),
    /// A layer of the OS image, or a package. All things of one layer share it.
    ImageLayer(Arc<ImageLayer>),
    /// A drift policy, which closes the directory or expects nothing at the path.
    ClosedBy(ClosedBy),
}

/// A rule that closes a directory, or that expects nothing at a path.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct ClosedBy {
    /// The path of the rule: a directory or a glob; without `/` at its end and without wildcards, the path where nothing may be.
    pub rule: Arc<str>,
    /// The file of the drift policy, or kind and name of the object in the cluster.
    pub policy: Arc<str>,
    /// A database of packages could not be read, so files of packages may look undeclared; absent if all were read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub packages_unread: bool,
    /// The booted image has no index, or one that is old or cannot be read, so an undeclared name may be the image's; absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub image_unindexed: bool,
}

/// A layer of an OS image, or a package of the host.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct ImageLayer {
    /// The layer in words, with its number, digest and line of history; or the package with its version.
    pub layer: Arc<str>,
    /// The image by digest; `packages` or `baseline` for those of the host.
    pub image: Arc<str>,
    /// What a verdict about the thing rests on; absent if no index says what the thing should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strength: Option<Strength>,
}

impl ExpectationSource {
    /// Its name in records and outputs: of the MachineConfig, the layer in words, or the path of the rule.
    pub fn name(&self) -> &str {
        match self {
            Self::MachineConfig(source) => &source.machine_config,
            Self::ImageLayer(layer) => &layer.layer,
            Self::ClosedBy(closed) => &closed.rule,
        }
    }

    /// Whether an undeclared name may be one of the image, because the booted image has no index.
    pub fn is_uncertain(&self) -> bool {
        matches!(self, Self::ClosedBy(closed) if closed.image_unindexed)
    }

    /// Its kind.
    pub fn kind(&self) -> SourceKind {
        match self {
            Self::MachineConfig(_) => SourceKind::MachineConfig,
            Self::ClosedBy(_) => SourceKind::Policy,
            Self::ImageLayer(layer) => match layer.strength {
                Some(Strength::PackageSha256 | Strength::PackageMd5 | Strength::PackageName) => {
                    SourceKind::Package
                }
                Some(Strength::Extension) => SourceKind::Extension,
                Some(Strength::Baseline) => SourceKind::Baseline,
                Some(
                    Strength::Sealed
                    | Strength::SealedDevice
                    | Strength::Layer
                    | Strength::Commit
                    | Strength::CommitChecksum,
                )
                | None => SourceKind::Image,
            },
        }
    }

    /// What a verdict rests on. `None` for a MachineConfig and a rule of a policy, which say themselves what should be there.
    pub fn strength(&self) -> Option<Strength> {
        match self {
            Self::ImageLayer(layer) => layer.strength,
            Self::MachineConfig(_) | Self::ClosedBy(_) => None,
        }
    }

    /// Its origin: the manifest file, the image, or the file of the drift policy.
    pub fn origin(&self) -> &str {
        match self {
            Self::MachineConfig(source) => &source.origin,
            Self::ImageLayer(layer) => &layer.image,
            Self::ClosedBy(closed) => &closed.policy,
        }
    }
}

impl From<ImageLayer> for ExpectationSource {
    fn from(layer: ImageLayer) -> Self {
        Self::ImageLayer(Arc::new(layer))
    }
}

impl From<Source> for ExpectationSource {
    fn from(source: Source) -> Self {
        Self::MachineConfig(source)
    }
}
