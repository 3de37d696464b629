//! What should be: MachineConfigs and drift policies, read from files.
//!
//! In: paths. Out: expectations, the ids they name, and the policy. Every error names file, field and
//! reason, and nothing is used of a set in which one file is bad.

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
use sensor_model::machine_config::{MachineConfig, parse_for};
use sensor_model::merge::{self, Rendered};
use sensor_model::os::waiting::{WaitingArgument, note, wanted};
use std::fs;
use std::path::{Path, PathBuf};

/// The service's policies below its host's root, which count where neither configs nor policies are named.
pub const POLICIES: &str = "etc/holdfast/policies";

/// File name endings that are read in a directory.
const ENDINGS: [&str; 4] = ["yaml", "yml", "json", "ign"];

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
}

/// Reads the merge of MachineConfigs (with contents; drop it when done).
pub fn rendered(configs: &[PathBuf]) -> anyhow::Result<Rendered> {
    rendered_for(configs, Purpose::Verify)
}

/// The same for a purpose: what is only compared may have parts that no running node can take.
pub fn rendered_for(configs: &[PathBuf], purpose: Purpose) -> anyhow::Result<Rendered> {
    let mut read = Vec::new();
    for path in files(configs)? {
        let bytes =
            bounded::read(&path, bounded::CONFIG).with_context(|| format!("read {}", path.display()))?;
        read.push((path.display().to_string(), bytes));
    }
    match merged(&read, purpose)? {
        Some(rendered) => Ok(rendered),
        None => bail!("no MachineConfig or Ignition config in {}", list(configs)),
    }
}

/// The merge of files that were read already, by name and bytes; `None` where no config is in them.
pub(crate) fn merged(files: &[(String, Vec<u8>)], purpose: Purpose) -> anyhow::Result<Option<Rendered>> {
    let mut machine_configs: Vec<MachineConfig> = Vec::new();
    for (name, bytes) in files {
        let manifest = parse_for(name, bytes, purpose)?;
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

/// Reads everything; what waits for the next boot from the state directory.
pub fn load(
    configs: &[PathBuf],
    policies: &[PathBuf],
    state: &Path,
    observer: &Observer,
) -> anyhow::Result<Desired> {
    let rendered = rendered(configs)?;
    let policy = policy(policies)?;
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
    Ok(Desired { expectations, ids, policy, sources, waiting, labels })
}

/// The drift policy of a host's service, for what is not told another one: nothing of it where there is none.
pub(crate) fn policy_of_the_service(root: &Path) -> anyhow::Result<DriftPolicy> {
    let of_the_service = root.join(POLICIES);
    if of_the_service.is_dir() { policy(&[of_the_service]) } else { Ok(DriftPolicy::default()) }
}

/// The drift policy of files and directories.
pub(crate) fn policy(paths: &[PathBuf]) -> anyhow::Result<DriftPolicy> {
    let mut files_of_policy = Vec::new();
    for path in files(paths)? {
        let bytes =
            bounded::read(&path, bounded::CONFIG).with_context(|| format!("read {}", path.display()))?;
        files_of_policy.push(DriftPolicyFile::parse(&path.display().to_string(), &bytes)?);
    }
    Ok(DriftPolicy::merge(&files_of_policy)?)
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
