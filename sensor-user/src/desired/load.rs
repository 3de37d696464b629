//! From configs and policies to expectations.
//!
//! In: what is read and how, and facts of the host. Out: what the node should be. Nothing is used of a set of files in which
//! one file is wrong.

use super::{
    error::DesiredError, facts::HostFacts, facts::LabelVersion, facts::complete, files::read, inputs::Inputs,
    last_usable, manifests::of_files, policies::drift_policies,
};
use sensor_model::{
    compare::Ids,
    drift_policy::{DriftAction, DriftPolicy},
    expectation::{Expectation, Thing},
    expectations::expectations,
    merge::Rendered,
    os::arguments,
    waiting::{WaitingArgument, note, wanted},
};
use std::path::{Path, PathBuf};

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
    pub labels: LabelVersion,
    /// The configs declare nothing at all.
    pub nothing: bool,
}

/// The desired state of a node, and the config that declares it.
#[derive(Debug)]
pub struct Whole {
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
    Ok(load_whole(inputs, host)?.desired)
}

/// The same with the rendered config.
///
/// # Errors
/// As [`load`].
pub fn load_whole(inputs: &Inputs, host: &dyn HostFacts) -> Result<Whole, DesiredError> {
    load_chosen(inputs, host).map_err(|error| inputs.source.explain(error))
}

fn load_chosen(inputs: &Inputs, host: &dyn HostFacts) -> Result<Whole, DesiredError> {
    let configs = inputs.source.manifests();
    let (mut config_files, policy_files) = (read(configs)?, read(&inputs.policies)?);
    let rendered = of_files(configs, &config_files, inputs.unknown())?;
    let policy = drift_policies(&policy_files)?;
    let nothing = rendered.declares_nothing();
    let mut expectations = expectations(&rendered)?;
    let waiting = wanted(&(inputs.waits)(&inputs.state), &kernel_arguments(&rendered));
    note(&mut expectations, &waiting);
    expectations.retain(|expectation| match host.unchecked(&expectation.thing) {
        None => true,
        Some(reason) => {
            tracing::debug!(path = %expectation.thing.path().display(), reason, "This host cannot be compared here.");
            false
        }
    });
    expectations
        .retain(|expectation| policy.decide(&expectation.thing.path(), None).action != DriftAction::Ignore);
    expectations.shrink_to_fit();
    // Taken before the labels are read: a policy that changes meanwhile has another version at the next comparison.
    let labels = host.label_version();
    let ids = complete(&mut expectations, &policy, host);
    let sources = rendered.sources.iter().map(|source| source.machine_config.to_string()).collect();
    let is_applied = inputs.source.generation().is_some();
    if is_applied {
        // The store of applies keeps these.
        config_files.clear();
    }
    if let Some(keep) = inputs.keep.as_ref().filter(|_| !nothing || inputs.allow_empty || is_applied)
        && let Err(error) = last_usable::keep(keep, &config_files, &policy_files)
    {
        tracing::warn!(%error, "The daemon cannot keep the configs for a start that finds unusable ones.");
    }
    Ok(Whole { rendered, desired: Desired { expectations, ids, policy, sources, waiting, labels, nothing } })
}

/// Kernel arguments that a config declares, one each.
pub(crate) fn kernel_arguments(rendered: &Rendered) -> Vec<String> {
    arguments::words(rendered.kernel_arguments.iter().map(|part| part.value.as_str()))
}

/// Everything that is declared of a path, also what the policy ignores; with the closed directory that the path is in.
///
/// # Errors
/// Contents that cannot be decoded.
pub fn things_at(whole: &Whole, path: &Path, host: &dyn HostFacts) -> Result<Vec<Expectation>, DesiredError> {
    let mut all = expectations(&whole.rendered)?;
    note(&mut all, &whole.desired.waiting);
    all.retain(|expectation| {
        let thing = &expectation.thing;
        if host.unchecked(thing).is_some() {
            return false;
        }
        let within = matches!(thing, Thing::ClosedDirectory { .. }) && path.parent() == Some(&*thing.path());
        *thing.path() == *path || within
    });
    // The expectation of a declared name says more than that of its closed directory.
    if all.iter().any(|expectation| *expectation.thing.path() == *path) {
        all.retain(|expectation| *expectation.thing.path() == *path);
    }
    host.label(&mut all, &whole.desired.policy);
    Ok(all)
}

/// Everything that is declared of paths, each by itself.
///
/// # Errors
/// A path that nothing declares, one that only its closed directory is about, and contents that cannot be decoded.
pub fn declared_things(
    whole: &Whole,
    paths: &[PathBuf],
    host: &dyn HostFacts,
) -> Result<Vec<Expectation>, DesiredError> {
    let mut things = Vec::new();
    for path in paths {
        let found = things_at(whole, path, host)?;
        if found.is_empty() {
            return Err(DesiredError::NotDeclared(path.clone()));
        }
        if let Some(closed) = found.iter().find(|expectation| *expectation.thing.path() != **path) {
            let directory = closed.thing.path().to_path_buf();
            return Err(DesiredError::OnlyItsDirectory { path: path.clone(), directory });
        }
        things.extend(found);
    }
    Ok(things)
}

/// A field of a MachineConfig that is declared and not compared.
#[derive(Debug)]
pub struct NotChecked {
    /// Its name in a MachineConfig.
    pub field: &'static str,
    /// Why not.
    pub reason: String,
}

/// What a config declares and this host is not compared with.
pub fn not_checked(rendered: &Rendered, host: &dyn HostFacts) -> Vec<NotChecked> {
    let never = |what: &str| Some(format!("{what} are not compared with what runs"));
    let unless = |thing: &Thing| host.unchecked(thing);
    let declared = [
        ("kernelArguments", !rendered.kernel_arguments.is_empty(), unless(&Thing::KernelArguments)),
        ("kernelType", rendered.kernel_type.is_some(), never("kernel packages")),
        ("extensions", !rendered.extensions.is_empty(), never("packages")),
        ("fips", rendered.fips.is_some(), never("FIPS modes")),
        ("osImageURL", rendered.os_image_url.is_some(), unless(&Thing::OsImage)),
    ];
    let declared = declared.into_iter().filter(|(_, is_declared, _)| *is_declared);
    declared.filter_map(|(field, _, reason)| reason.map(|reason| NotChecked { field, reason })).collect()
}
