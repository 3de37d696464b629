//! The opinions about a node's OS image, and which of them are about one image.
//!
//! In: the booted image, the annotations of the Node, and what other objects of the cluster say. Out: which images and which builds are the
//! booted one. Two images are different only if the names of both have a digest. A digest of an index and one of a platform may be the
//! same image, so a tag and a digest are never different.

use std::collections::{BTreeMap, BTreeSet};

/// The states of a Node in which its daemon does nothing.
const IDLE: [&str; 3] = ["Done", "Degraded", "Unreconcilable"];

/// What the node runs, and what its annotations say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// The Node's name.
    pub node: String,
    /// The name of the booted image, as the sensor reports it.
    pub booted: Option<String>,
    /// The digest of its manifest, as the sensor reports it.
    pub booted_digest: Option<String>,
    /// The rendered config that a label of the booted image names, as the sensor reports it.
    pub built_from: Option<String>,
    /// The rendered config that the node has.
    pub current_config: Option<String>,
    /// The rendered config that it is to have.
    pub desired_config: Option<String>,
    /// The image of the cluster that it has.
    pub current_image: Option<String>,
    /// The image of the cluster that it is to have.
    pub desired_image: Option<String>,
    /// The state of an update.
    pub state: Option<String>,
}

impl Subject {
    /// Whether the annotations say that an update is under way or waits.
    pub fn is_updating(&self) -> bool {
        let is_idle = self.state.as_deref().is_none_or(|state| IDLE.contains(&state));
        !is_idle || self.current_config != self.desired_config || self.current_image != self.desired_image
    }

    /// The booted image. A `BootcNode` that reports one of its digests as booted may add another digest of the same image.
    pub(super) fn image(&self, bootc_node: Option<&BootcNode>) -> KnownImage {
        let named = self.booted.as_deref().and_then(digest_of).map(str::to_owned);
        let mut digests: BTreeSet<String> = named.iter().chain(&self.booted_digest).cloned().collect();
        if let Some(reported) = bootc_node.map(BootcNode::booted_digests)
            && !reported.is_disjoint(&digests)
        {
            digests.extend(reported);
        }
        KnownImage { name: self.booted.clone(), is_pinned: named.is_some(), digests }
    }
}

/// A `MachineOSBuild`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Build {
    /// Its name.
    pub name: String,
    /// The rendered config from which it builds.
    pub config: String,
    /// The image that it built, with a digest; `None` before its end.
    pub image: Option<String>,
}

/// The `BootcNode` of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BootcNode {
    /// The image that the node is to boot.
    pub desired: String,
    /// The operator wants the image to be booted, its daemon has seen that, and has nothing to do.
    pub is_settled: bool,
    /// The image that the operator's daemon reports as booted.
    pub booted: Option<String>,
    /// The digest of that image.
    pub booted_digest: Option<String>,
}

impl BootcNode {
    pub(super) fn booted_digests(&self) -> BTreeSet<String> {
        let named = self.booted.as_deref().and_then(digest_of).map(str::to_owned);
        named.into_iter().chain(self.booted_digest.clone()).collect()
    }
}

/// The fields of a MachineConfig that are in an image. For a change of other fields no new image is built.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OsFields {
    /// `osImageURL`.
    pub os_image_url: String,
    /// `kernelType`; empty for the default one.
    pub kernel_type: String,
    /// `extensions`.
    pub extensions: BTreeSet<String>,
    /// `kernelArguments`.
    pub kernel_arguments: Vec<String>,
}

impl OsFields {
    /// The names of the fields that differ.
    pub(super) fn differing(&self, other: &Self) -> Vec<&'static str> {
        [
            ("osImageURL", self.os_image_url != other.os_image_url),
            ("kernelType", self.kernel_type != other.kernel_type),
            ("extensions", self.extensions != other.extensions),
            ("kernelArguments", self.kernel_arguments != other.kernel_arguments),
        ]
        .into_iter()
        .filter_map(|(name, differs)| differs.then_some(name))
        .collect()
    }
}

/// What the objects of the cluster say. What cannot be read is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opinions {
    /// All `MachineOSBuilds`.
    pub builds: Vec<Build>,
    /// The node's `BootcNode`.
    pub bootc_node: Option<BootcNode>,
    /// Rendered configs by their names.
    pub configs: BTreeMap<String, OsFields>,
}

impl Opinions {
    /// The builds of the booted image. One from the node's config is the first.
    pub fn builds_of<'a>(&'a self, subject: &Subject) -> Vec<&'a Build> {
        let booted = subject.image(self.bootc_node.as_ref());
        let is_booted =
            |build: &&Build| build.image.as_deref().and_then(|image| booted.is(image)) == Some(true);
        let mut found: Vec<&Build> = self.builds.iter().filter(is_booted).collect();
        found.sort_by_key(|build| subject.current_config.as_deref() != Some(&build.config));
        found
    }

    /// The sources that name the config from which the booted image was built: its builds, and its label. One with the node's config is first.
    pub(super) fn origins<'a>(&'a self, subject: &'a Subject) -> Vec<Origin<'a>> {
        let builds = self.builds_of(subject);
        let builds = builds.iter().map(|build| Origin { build: Some(&build.name), config: &build.config });
        let label = subject.built_from.iter().map(|config| Origin { build: None, config });
        let mut found: Vec<Origin<'_>> = builds.chain(label).collect();
        found.sort_by_key(|origin| subject.current_config.as_deref() != Some(origin.config));
        found
    }

    /// The rendered configs whose fields decide whether the booted image is that of the node's config.
    pub fn configs_wanted(&self, subject: &Subject) -> BTreeSet<String> {
        let origins = self.origins(subject);
        let Some(config) = &subject.current_config else { return BTreeSet::new() };
        if origins.first().is_none_or(|origin| origin.config == config) {
            return BTreeSet::new();
        }
        origins.iter().map(|origin| origin.config).chain([config.as_str()]).map(str::to_owned).collect()
    }
}

/// A source that names the config from which the booted image was built.
pub(super) struct Origin<'a> {
    /// The name of the `MachineOSBuild`; `None` for the label of the image.
    pub(super) build: Option<&'a str>,
    /// The rendered config.
    pub(super) config: &'a str,
}

/// An image with every digest that is known of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KnownImage {
    pub(super) name: Option<String>,
    /// The name has a digest.
    is_pinned: bool,
    digests: BTreeSet<String>,
}

impl KnownImage {
    /// Whether it is the image of this name; `None` if that is not known.
    pub(super) fn is(&self, image: &str) -> Option<bool> {
        let same_name = self.name.as_deref() == Some(image);
        match digest_of(image) {
            Some(digest) if self.digests.contains(digest) => Some(true),
            Some(_) if self.is_pinned => Some(false),
            _ => same_name.then_some(true),
        }
    }
}

/// The digest in an image's name.
pub(super) fn digest_of(image: &str) -> Option<&str> {
    let (_, digest) = image.rsplit_once('@')?;
    digest.contains(':').then_some(digest)
}
