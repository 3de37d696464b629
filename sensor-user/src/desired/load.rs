//! Reads configs and policies, and makes expectations of them.

use super::last_valid;
use crate::apply;
use crate::bounded;
use crate::labels::{self, Version};
use crate::observation::Observer;
use anyhow::{Context, bail};
use sensor_model::compare::Ids;
use sensor_model::drift_policy::{Action, DriftPolicy, DriftPolicyFile};
use sensor_model::expectation::{Expectation, Expected, Owner};
use sensor_model::expectations::expectations;
use sensor_model::ignition::Purpose;
use sensor_model::machine_config::{MachineConfig, Manifest, ManifestError, parse_for};
use sensor_model::merge::{self, Rendered};
use sensor_model::waiting::{WaitingArgument, note, wanted};
use std::fs;
use std::path::{Path, PathBuf};

/// The service's policies below its host's root, which count where neither configs nor policies are named.
pub const POLICIES: &str = "etc/holdfast/policies";

/// File name endings that are read in a directory.
const ENDINGS: [&str; 4] = ["yaml", "yml", "json", "ign"];

/// What is done about fields that a config's format does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// They are an error: what a person wrote has to mean what it says.
    Refuse,
    /// They are warned of: somebody said so, or the config was accepted before.
    Warn,
    /// They were refused or warned of when the config was read before.
    Told,
}

impl Unknown {
    /// By a flag that allows them.
    pub fn allowed(allow: bool) -> Self {
        if allow { Self::Warn } else { Self::Refuse }
    }

    /// Refuses a file, or warns of it.
    ///
    /// # Errors
    /// The first unknown field, with the nearest known one.
    pub fn check(self, manifest: &Manifest) -> Result<(), ManifestError> {
        match self {
            Self::Refuse => return manifest.refuse_unknown(),
            Self::Told => return Ok(()),
            Self::Warn => {}
        }
        for unknown in &manifest.unknown {
            tracing::warn!(
                file = unknown.origin,
                object = unknown.object,
                field = unknown.field,
                "{}",
                unknown.reason
            );
        }
        Ok(())
    }
}

/// Files by name, and their bytes.
pub(crate) type Files = Vec<(String, Vec<u8>)>;

/// The desired state of a node.
#[derive(Debug, Default)]
pub struct Desired {
    /// What each managed thing should be, without those that the policy ignores.
    pub expectations: Vec<Expectation>,
    /// Users and groups that they name.
    pub ids: Ids,
    /// What is done about drift.
    pub policy: DriftPolicy,
    /// MachineConfigs in the order of the merge.
    pub sources: Vec<String>,
    /// Kernel arguments that wait for the next boot and are no drift in this one.
    pub waiting: Vec<WaitingArgument>,
    /// The SELinux policy whose labels are expected.
    pub labels: Version,
    /// The configs declare nothing at all.
    pub nothing: bool,
}

/// Reads the merge of MachineConfigs (with contents; drop it when done).
pub fn rendered(configs: &[PathBuf], unknown: Unknown) -> anyhow::Result<Rendered> {
    of_files(configs, &read(configs)?, unknown)
}

fn of_files(configs: &[PathBuf], files: &Files, unknown: Unknown) -> anyhow::Result<Rendered> {
    match merged(files, Purpose::Verify, unknown)? {
        Some(rendered) => Ok(rendered),
        None => bail!("no MachineConfig or Ignition config in {}", list(configs)),
    }
}

/// Reads files, and those in directories, by name.
pub(crate) fn read(paths: &[PathBuf]) -> anyhow::Result<Files> {
    let read = |path: PathBuf| {
        let bytes =
            bounded::read(&path, bounded::CONFIG).with_context(|| format!("read {}", path.display()))?;
        Ok((path.display().to_string(), bytes))
    };
    files(paths)?.into_iter().map(read).collect()
}

/// The merge of files that were read already, by name and bytes; `None` where no config is in them.
pub(crate) fn merged(files: &Files, purpose: Purpose, unknown: Unknown) -> anyhow::Result<Option<Rendered>> {
    let mut machine_configs: Vec<MachineConfig> = Vec::new();
    for (name, bytes) in files {
        let manifest = parse_for(name, bytes, purpose)?;
        unknown.check(&manifest)?;
        for config in &manifest.machine_configs {
            for warning in &config.warnings {
                tracing::warn!(machine_config = &*config.source.machine_config, "{warning}");
            }
        }
        machine_configs.extend(manifest.machine_configs);
    }
    if machine_configs.is_empty() {
        return Ok(None);
    }
    // One alone may be a rendered one: then it says everything itself, also what is not taken from one of several.
    if machine_configs.len() == 1
        && let Some(config) = machine_configs.pop()
    {
        return Ok(Some(merge::rendered(config)?));
    }
    Ok(Some(merge::merge(machine_configs)?))
}

/// Where everything is read from.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// MachineConfigs and Ignition configs: files and directories.
    pub configs: &'a [PathBuf],
    /// Drift policies: files and directories.
    pub policies: &'a [PathBuf],
    /// The state directory, which tells what waits for the next boot.
    pub state: &'a Path,
    /// What is done about unknown fields.
    pub unknown: Unknown,
    /// What was read is kept there as the last that could be used; `None` keeps nothing.
    pub keep: Option<&'a Path>,
    /// It is kept also where the configs declare nothing.
    pub keep_nothing: bool,
}

/// Reads everything.
pub fn load(inputs: &Inputs<'_>, observer: &Observer) -> anyhow::Result<Desired> {
    let Inputs { configs, policies, state, unknown, keep, keep_nothing } = *inputs;
    let (mut of_configs, of_policies) = (read(configs)?, read(policies)?);
    let rendered = of_files(configs, &of_configs, unknown)?;
    let policy = policy_of(&of_policies)?;
    let nothing = rendered.declares_nothing();
    let mut expectations = expectations(&rendered)?;
    let waiting = apply::waits(state).unwrap_or_else(|error| {
        // Without it such arguments are drift, which is on the safe side.
        tracing::warn!(%error, "It is not known which kernel arguments wait for the next boot.");
        Vec::new()
    });
    let waiting = wanted(&waiting, &apply::os::declared(&rendered));
    note(&mut expectations, &waiting);
    expectations.retain(|expectation| match observer.unchecked(&expectation.thing) {
        None => true,
        Some(reason) => {
            tracing::debug!(path = %expectation.thing.path().display(), reason, "Not checked on this host.");
            false
        }
    });
    expectations
        .retain(|expectation| policy.decide(&expectation.thing.path(), None).action != Action::Ignore);
    expectations.shrink_to_fit();
    // Before the policy is read: one that changes meanwhile is noticed later.
    let labels = Version::of(observer);
    let ids = known(&mut expectations, &policy, observer);
    let sources = rendered.sources.iter().map(|source| source.machine_config.to_string()).collect();
    let is_applied = last_valid::are_applied(configs, state);
    if is_applied {
        // The store of applies keeps them.
        of_configs.clear();
    }
    if let Some(keep) = keep.filter(|_| !nothing || keep_nothing || is_applied)
        && let Err(error) = last_valid::keep(keep, &of_configs, &of_policies)
    {
        tracing::warn!(
            error = format!("{error:#}"),
            "The configs are not kept for a start without usable ones."
        );
    }
    Ok(Desired { expectations, ids, policy, sources, waiting, labels, nothing })
}

/// The drift policy of a host's service, for what is not told another one: nothing of it where there is none.
pub(crate) fn policy_of_the_service(root: &Path) -> anyhow::Result<DriftPolicy> {
    let of_the_service = root.join(POLICIES);
    if of_the_service.is_dir() { policy(&[of_the_service]) } else { Ok(DriftPolicy::default()) }
}

/// The drift policy of files and directories.
pub(crate) fn policy(paths: &[PathBuf]) -> anyhow::Result<DriftPolicy> {
    policy_of(&read(paths)?)
}

fn policy_of(files: &Files) -> anyhow::Result<DriftPolicy> {
    let parsed: Result<Vec<_>, _> =
        files.iter().map(|(name, bytes)| DriftPolicyFile::parse(name, bytes)).collect();
    Ok(DriftPolicy::merge(&parsed?)?)
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Files among `paths`, and in directories among them those with a known ending, by name.
pub(crate) fn files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        let metadata = fs::metadata(path).with_context(|| format!("read {}", path.display()))?;
        if !metadata.is_dir() {
            found.push(path.clone());
            continue;
        }
        let mut inside = Vec::new();
        for entry in fs::read_dir(path).with_context(|| format!("read {}", path.display()))? {
            let entry = entry.with_context(|| format!("read {}", path.display()))?.path();
            if entry.is_file() && has_known_ending(&entry) {
                inside.push(entry);
            }
        }
        inside.sort();
        found.extend(inside);
    }
    Ok(found)
}

pub(crate) fn has_known_ending(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known))
}

/// What only the host can say of expectations: whose ids they name, and which labels its SELinux policy has for them.
pub(crate) fn known(expectations: &mut [Expectation], policy: &DriftPolicy, observer: &Observer) -> Ids {
    let customizable = labels::expect(expectations, policy, observer);
    Ids { customizable, ..ids(expectations, observer) }
}

fn ids(expectations: &[Expectation], observer: &Observer) -> Ids {
    let mut ids = Ids::default();
    let mut note = |user: &Owner, group: &Owner| {
        if let Owner::Name(name) = user
            && let Some(uid) = observer.uid(name)
        {
            ids.users.insert(name.clone(), uid);
        }
        if let Owner::Name(name) = group
            && let Some(gid) = observer.gid(name)
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
