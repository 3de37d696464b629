//! From configs and policies to expectations.
//!
//! In: which files are read and how, and facts of the host. Out: the desired state. If one file of a set is wrong, none of them is
//! used.

use super::{
    error::DesiredError, facts::DirectoriesVersion, facts::HostFacts, facts::LabelVersion, facts::complete,
    files::read, inputs::Inputs, last_usable, manifests::of_files, policies::drift_policies,
    source::StateSource,
};
use sensor_model::{
    absent::{AbsentNames, absent_paths},
    closed::{HostDirectories, closed_directories},
    compare::Ids,
    config_digest::config_digest_with,
    drift_policy::{DriftAction, DriftPolicy},
    expectation::{Expectation, Expected, SYSTEMD_DIRECTORY, Thing},
    expectations::expectations,
    image::trust_store_of,
    merge::Rendered,
    os::arguments,
    status::ExpectedConfig,
    waiting::{WaitingArgument, note, wanted},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The desired state of a node.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Desired {
    /// The expectations, without those that the policy ignores. Each has a line of its own in the output of the process that reads configs.
    #[serde(skip)]
    pub expectations: Vec<Expectation>,
    /// The ids of the users and groups that they name.
    pub ids: Ids,
    /// The drift policy.
    pub policy: DriftPolicy,
    /// MachineConfigs in the order of the merge.
    pub sources: Vec<String>,
    /// The digest of what these declare.
    pub digest: String,
    /// The config from which the booted image was built, if the host shows it.
    pub built_from: Option<String>,
    /// Kernel arguments that wait for the next boot and are no drift in this one.
    pub waiting: Vec<WaitingArgument>,
    /// The SELinux policy whose labels are expected.
    pub labels: LabelVersion,
    /// The versions of the closed directories and of the packages in them.
    pub directories: DirectoriesVersion,
    /// The configs declare nothing at all.
    pub nothing: bool,
}

impl Desired {
    /// The config that declares it, as the status has it. `source` is where it was read.
    pub fn config(&self, source: &StateSource) -> ExpectedConfig {
        let name = match &self.sources[..] {
            [name] => Some(name.clone()),
            _ => None,
        };
        ExpectedConfig { origin: source.origin(), name, digest: self.digest.clone() }
    }
}

/// The desired state of a node, and the config that declares it.
#[derive(Debug)]
pub struct DesiredWithConfig {
    /// The merge of all MachineConfigs, with contents.
    pub rendered: Rendered,
    /// Expectations and the policy.
    pub desired: Desired,
}

/// Reads the desired state.
///
/// # Errors
/// A file that cannot be read or used, with file, field and reason.
pub fn load(inputs: &Inputs, host: &dyn HostFacts) -> Result<Desired, DesiredError> {
    Ok(load_with_config(inputs, host)?.desired)
}

/// The same with the rendered config.
///
/// # Errors
/// As [`load`].
pub fn load_with_config(inputs: &Inputs, host: &dyn HostFacts) -> Result<DesiredWithConfig, DesiredError> {
    load_from_source(inputs, host).map_err(|error| inputs.source.explain(error))
}

fn load_from_source(inputs: &Inputs, host: &dyn HostFacts) -> Result<DesiredWithConfig, DesiredError> {
    let configs = inputs.source.manifests();
    let (mut config_files, policy_files) = (read(configs)?, read(&inputs.all_policies())?);
    let rendered = of_files(configs, &config_files, inputs.unknown())?;
    let policy = drift_policies(&policy_files)?;
    let nothing = rendered.declares_nothing();
    let mut expectations = expectations(&rendered)?;
    let digest = config_digest_with(&rendered, &expectations);
    // Read before the directories and indexes: if they change meanwhile, the next comparison finds another version.
    let directories = host.directories_version(&policy, &inputs.state);
    compare_image_with_config(&mut expectations, &rendered, host, &inputs.state);
    let built_from = host.built_from(&inputs.state);
    let mut host_directories = host.directories(&policy, &inputs.state);
    if policy.closed().next().is_some() {
        let written = written_directories(&expectations, &policy, &host_directories, host);
        host_directories.written.extend(written);
    }
    let closed = closed_directories(&expectations, &policy, &host_directories);
    let mut of_image = host.image_things(&policy, &inputs.state);
    Overruled::by(expectations.iter()).remove_from(&mut of_image);
    let places = declared_places(expectations.iter().chain(&of_image), &policy, host);
    let absent = absent_paths(&expectations, &places, &policy, &host_directories);
    let waiting = wanted(&(inputs.waits)(&inputs.state), &kernel_arguments(&rendered));
    note(&mut expectations, &waiting);
    expectations.retain(|expectation| match host.unchecked(&expectation.thing) {
        None => true,
        Some(reason) => {
            tracing::debug!(path = %expectation.thing.path().display(), reason, "This host does not show the thing; it is not compared.");
            false
        }
    });
    expectations.extend(closed);
    expectations.extend(absent);
    expectations.extend(of_image);
    expectations.sort_by(|one, other| one.thing.cmp(&other.thing));
    expectations.retain(|expectation| {
        // Whether a more precise rule ignores a path of the image is known only with an index.
        expectation.expected == Expected::Unindexed
            || policy.decide_about(expectation, None).action != DriftAction::Ignore
    });
    expectations.shrink_to_fit();
    // Read before the labels: if the SELinux policy changes meanwhile, the next comparison finds another version.
    let labels = host.label_version();
    let ids = complete(&mut expectations, &policy, host);
    let sources = rendered.sources.iter().map(|source| source.machine_config.to_string()).collect();
    let is_applied = inputs.source.generation().is_some();
    if is_applied {
        // The store of applies keeps these files.
        config_files.clear();
    }
    if let Some(keep) = inputs.keep.as_ref().filter(|_| !nothing || inputs.allow_empty || is_applied)
        && let Err(error) = last_usable::keep(keep, &config_files, &policy_files)
    {
        tracing::warn!(%error, "The daemon cannot keep the configs for a start that finds unusable ones.");
    }
    Ok(DesiredWithConfig {
        rendered,
        desired: Desired {
            expectations,
            ids,
            policy,
            sources,
            digest,
            built_from,
            waiting,
            labels,
            directories,
            nothing,
        },
    })
}

/// The directories of declared objects to which links lead, with their places. Closed directories are left out: a
/// link in the place of a closed directory is drift.
fn written_directories(
    declared: &[Expectation],
    policy: &DriftPolicy,
    closed: &HostDirectories,
    host: &dyn HostFacts,
) -> BTreeMap<PathBuf, PathBuf> {
    let objects = declared.iter().filter(|one| one.thing.is_object()).map(|one| one.thing.path());
    let mut directories: BTreeSet<PathBuf> =
        objects.filter_map(|path| path.parent().map(Path::to_owned)).collect();
    let named = policy.closed_or_left_open().filter_map(|(rule, _)| rule.directory());
    for path in named.chain(closed.matching.values().flatten().map(PathBuf::as_path)) {
        directories.remove(path);
    }
    let place = |directory: PathBuf| {
        // A path in the directory, so that a link at the end of the directory's own path is followed, too.
        let place = host.place(&directory.join("x")).parent()?.to_owned();
        (place != directory).then_some((directory, place))
    };
    directories.into_iter().filter_map(place).collect()
}

/// The places of declared objects, and of directories above them, that have the name of a path in a rule with `absent`. Links may lead from one
/// of the two paths to the other.
fn declared_places<'a>(
    declared: impl Iterator<Item = &'a Expectation>,
    policy: &DriftPolicy,
    host: &dyn HostFacts,
) -> Vec<PathBuf> {
    let names = AbsentNames::of(policy);
    let mut places = Vec::new();
    for one in declared.filter(|one| one.thing.is_object()) {
        let path = one.thing.path();
        places.extend(names.at_or_above(&path).map(|above| host.place(above)));
    }
    places
}

/// Adds to the expectation of the OS image what the booted image lacks of the config, if it was built from it. An image is built from one
/// rendered config.
fn compare_image_with_config(
    expectations: &mut [Expectation],
    rendered: &Rendered,
    host: &dyn HostFacts,
    state: &Path,
) {
    let [config] = &rendered.sources[..] else { return };
    if !expectations.iter().any(|one| matches!(one.expected, Expected::OsImage(_))) {
        return;
    }
    let lacking = host.not_carried(&config.machine_config, expectations, state).map(Box::new);
    for expectation in expectations {
        if let Expected::OsImage(image) = &mut expectation.expected {
            image.not_carried.clone_from(&lacking);
        }
    }
}

/// The paths at which a config takes precedence over the image.
#[derive(Debug, Default)]
pub struct Overruled<'a> {
    paths: HashSet<Arc<Path>>,
    files: HashSet<Arc<Path>>,
    /// The declared units, and whether the config disables each.
    units: HashMap<&'a str, bool>,
    /// The directories that a tool of the host fills with declared certificates.
    trust_stores: HashSet<&'static Path>,
}

impl<'a> Overruled<'a> {
    /// What these expectations overrule: those of configs.
    pub fn by(declared: impl Iterator<Item = &'a Expectation>) -> Self {
        let mut found = Self::default();
        for expectation in declared {
            let thing = &expectation.thing;
            if thing.is_object() {
                found.paths.insert(thing.path());
            }
            match (thing, &expectation.expected) {
                (Thing::File { .. } | Thing::Link { .. }, _) => {
                    found.trust_stores.extend(trust_store_of(&thing.path()));
                    found.files.insert(thing.path());
                }
                (Thing::Unit { name }, Expected::Unit(unit)) => {
                    found.units.insert(name, unit.enabled == Some(false));
                }
                _ => {}
            }
        }
        found
    }

    /// Removes the expectations of the image that are overruled. With the last link in a directory of enabling links, `systemctl disable`
    /// removes the directory.
    pub fn remove_from(&self, of_image: &mut Vec<Expectation>) {
        let mut emptied = HashSet::new();
        let mut others = HashSet::new();
        for one in of_image.iter() {
            let Some(directory) = one.thing.path().parent().map(Path::to_owned) else { continue };
            if self.is_disabled(one) {
                emptied.insert(directory)
            } else {
                others.insert(directory)
            };
        }
        let is_emptied =
            |path: &Path| enables_units(path) && emptied.contains(path) && !others.contains(path);
        of_image.retain(|one| !self.has(one) && !is_emptied(&one.thing.path()));
    }

    /// Whether an expectation of the image is overruled.
    pub fn has(&self, of_image: &Expectation) -> bool {
        if matches!(of_image.thing, Thing::Hierarchy { .. }) || matches!(of_image.expected, Expected::Tree(_))
        {
            // A config may declare the directory's mode, and says nothing about mounts.
            return false;
        }
        let path = of_image.thing.path();
        if of_image.expected == Expected::Unindexed {
            // Other paths of a directory stay unknown.
            return self.files.contains(&path);
        }
        let is_in = |store: &&Path| path.starts_with(store) && *path != **store;
        let is_of_store = self.trust_stores.iter().any(is_in);
        is_of_store || self.paths.contains(&path) || self.enables(&path) || self.is_disabled(of_image)
    }

    /// Whether a path is that of a declared unit, or of a link that enables it. The config decides whether these exist.
    fn enables(&self, path: &Path) -> bool {
        is_place_of_links(path) && self.disables(path).is_some()
    }

    /// Whether the config disables the unit of a link, which may have another name (`Alias=`).
    fn is_disabled(&self, of_image: &Expectation) -> bool {
        let path = of_image.thing.path();
        let Expected::Link(link) = &of_image.expected else { return false };
        is_place_of_links(&path)
            && [&*path, &link.target].iter().any(|unit| self.disables(unit) == Some(true))
    }

    /// Whether the config disables the unit with the last name of a path; `None` if it does not declare such a unit.
    fn disables(&self, unit: &Path) -> Option<bool> {
        self.units.get(unit.file_name()?.to_str()?).copied()
    }
}

/// Whether a link at a path may enable a unit, or give it another name.
fn is_place_of_links(path: &Path) -> bool {
    path.parent().is_some_and(|above| above == Path::new(SYSTEMD_DIRECTORY) || enables_units(above))
}

/// Whether links in a directory of the configuration enable units.
fn enables_units(directory: &Path) -> bool {
    let ending = directory.extension().and_then(OsStr::to_str);
    matches!(ending, Some("wants" | "requires" | "upholds"))
        && directory.parent() == Some(Path::new(SYSTEMD_DIRECTORY))
}

/// The kernel arguments of a config, each by itself.
pub(crate) fn kernel_arguments(rendered: &Rendered) -> Vec<String> {
    arguments::words(rendered.kernel_arguments.iter().map(|part| part.value.as_str()))
}
