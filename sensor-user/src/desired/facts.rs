//! Facts of a host that expectations need.
//!
//! In: expectations. Out: the same with the host's labels, and the ids that they name. This room asks for the facts through a
//! trait, and the rooms that observe the host implement it.

use crate::sys::FileVersion;
use sensor_model::{
    closed::HostDirectories,
    compare::Ids,
    drift_policy::DriftPolicy,
    expectation::{Expectation, Expected, NotCarried, Owner, Thing},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// Facts of one host.
pub trait HostFacts {
    /// Number of a user of the host.
    fn user_id(&self, name: &str) -> Option<u32>;

    /// Number of a group of the host.
    fn group_id(&self, name: &str) -> Option<u32>;

    /// Why a thing is not compared on this host; `None` if it is compared.
    fn unchecked(&self, thing: &Thing) -> Option<String>;

    /// The version of the SELinux policy now.
    fn label_version(&self) -> LabelVersion;

    /// A path without links on the way to its last name, as far as that exists.
    fn place(&self, path: &Path) -> PathBuf;

    /// The directories that a policy closes, and what packages and the booted image put below them. `state`: the state directory, with the
    /// indexes of images.
    fn directories(&self, policy: &DriftPolicy, state: &Path) -> HostDirectories;

    /// What the host's image, packages and baseline have at the paths that a policy's rules name.
    fn image_things(&self, policy: &DriftPolicy, state: &Path) -> Vec<Expectation>;

    /// What the booted image lacks of the config with this name, which makes the expectations `declared`; `None` if it lacks nothing, or the
    /// host does not show it.
    fn not_carried(&self, config: &str, declared: &[Expectation], state: &Path) -> Option<NotCarried>;

    /// The config from which the booted image was built, as far as its label shows it.
    fn built_from(&self, state: &Path) -> Option<String>;

    /// The versions of the facts about directories and images now.
    fn directories_version(&self, policy: &DriftPolicy, state: &Path) -> DirectoriesVersion;

    /// Sets the label of each expectation by the SELinux policy. Gives the types that the policy allows any user to choose.
    fn label(&self, expectations: &mut [Expectation], policy: &DriftPolicy) -> BTreeSet<String>;
}

/// The files of a host's SELinux policy: of each its inode, size, and times of change in nanoseconds. Empty on a host without
/// SELinux.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelVersion(pub(crate) Vec<Option<FileVersion>>);

/// The versions of what [`HostFacts::directories`], [`HostFacts::image_things`], [`HostFacts::not_carried`] and [`HostFacts::built_from`] give,
/// and where to look for a change. Without a closed directory and without a rule about an image it has only the version of the indexes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoriesVersion {
    /// The databases of packages: of each its inode, size, and times of change in nanoseconds.
    pub(crate) packages: Vec<Option<FileVersion>>,
    /// The directories that match the glob of a rule, by the rule's path.
    pub(crate) matching: BTreeMap<String, Vec<PathBuf>>,
    /// The closed directories that are links to other closed directories, or to which links lead on the way, with the paths of these.
    #[serde(default)]
    pub(crate) linked: BTreeMap<PathBuf, PathBuf>,
    /// The indexes of images.
    pub(crate) images: ImagesVersion,
    /// The merged extensions, if they have an index.
    pub(crate) extensions: String,
    /// The directories in which the globs look for names, or in which such a link is, and in which only root can make a name.
    pub(crate) searched: Vec<PathBuf>,
}

/// The state of the indexes and of what a scan found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImagesVersion {
    /// The directory of indexes: another state means other indexes. `None` without the directory. No policy is needed for it: the booted
    /// image is compared with the config that it was built from, too.
    pub(crate) indexes: Option<FileVersion>,
    /// The findings: another state means other findings. `None` without a rule that scans, and without findings.
    pub(crate) findings: Option<FileVersion>,
    /// A digest of the mounts that the kernel proves, and of what is mounted in them. `None` without a rule about an image, and without such
    /// mounts.
    #[serde(default)]
    pub(crate) seals: Option<[u8; 32]>,
}

/// Completes expectations with facts of the host. Gives the ids that they name.
pub(crate) fn complete(expectations: &mut [Expectation], policy: &DriftPolicy, host: &dyn HostFacts) -> Ids {
    let customizable = host.label(expectations, policy);
    Ids { customizable, ..ids(expectations, host) }
}

fn ids(expectations: &[Expectation], host: &dyn HostFacts) -> Ids {
    let mut ids = Ids::default();
    let mut note = |user: &Owner, group: &Owner| {
        if let Owner::Name(name) = user
            && let Some(uid) = host.user_id(name)
        {
            ids.users.insert(name.clone(), uid);
        }
        if let Owner::Name(name) = group
            && let Some(gid) = host.group_id(name)
        {
            ids.groups.insert(name.clone(), gid);
        }
    };
    for expectation in expectations {
        match &expectation.expected {
            Expected::File(file) => note(&file.user, &file.group),
            Expected::Directory(directory) => note(&directory.user, &directory.group),
            Expected::Link(link) => note(&link.user, &link.group),
            _ => {}
        }
    }
    ids
}
