//! Where a command's expectations come from, and the host that they are about.

use super::BadInput;
use crate::{
    agent::desired::{self, Desired},
    observation::Observer,
};
use anyhow::Context as _;
use sensor_model::{
    drift_policy::Decision,
    expectation::{Expectation, Thing},
    expectations::expectations,
    merge::Rendered,
    path::check_absolute,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// The service's configs, which count where none are named.
pub const CONFIGS: &str = "/etc/holdfast/machine-configs";
/// The service's policies, which count where neither configs nor policies are named.
pub const POLICIES: &str = "/etc/holdfast/policies";

/// Configs and policies to read: those named, or the service's own. The service's policies are never mixed with
/// configs from elsewhere, so that an answer about a config does not depend on the machine it is asked on.
pub fn or_of_the_service(config: &[PathBuf], policy: &[PathBuf]) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let (mut configs, mut policies) = (config.to_vec(), policy.to_vec());
    if configs.is_empty() {
        configs.push(PathBuf::from(CONFIGS));
        if policies.is_empty() && Path::new(POLICIES).is_dir() {
            policies.push(PathBuf::from(POLICIES));
        }
    }
    (configs, policies)
}

/// Options of every command that compares.
#[derive(Debug, clap::Args)]
pub struct Sources {
    /// MachineConfig manifests or Ignition configs: a file, or a directory of them; may be repeated. Without any, those
    /// of the service: /etc/holdfast/machine-configs, with the policies in /etc/holdfast/policies.
    #[arg(long, value_name = "PATH")]
    pub config: Vec<PathBuf>,
    /// Drift policies: a file, or a directory of them; may be repeated. Without any, all drift degrades.
    #[arg(long, value_name = "PATH")]
    pub policy: Vec<PathBuf>,
    /// Root of the host's file system.
    #[arg(long, default_value = "/", value_name = "DIRECTORY")]
    pub host_root: PathBuf,
}

/// The host, and what should be on it.
#[derive(Debug)]
pub struct Loaded {
    /// The host's root.
    pub root: PathBuf,
    /// Its files.
    pub observer: Arc<Observer>,
    /// The merge of all MachineConfigs.
    pub rendered: Rendered,
    /// Expectations without those that the policy ignores, and the policy.
    pub desired: Desired,
}

impl Sources {
    /// Reads everything.
    ///
    /// # Errors
    /// A file that cannot be read or used, with file, field and reason.
    pub fn load(&self) -> anyhow::Result<Loaded> {
        let observer = Arc::new(
            Observer::new(&self.host_root)
                .map_err(|error| BadInput::wrap(anyhow::Error::from(error).context("--host-root")))?,
        );
        let (configs, policies) = or_of_the_service(&self.config, &self.policy);
        let desired = desired::load(&configs, &policies, &observer).map_err(|error| {
            let named = !self.config.is_empty();
            BadInput::wrap(if named { error } else { error.context("without --config, that of the service") })
        })?;
        let rendered = desired::rendered(&configs).map_err(BadInput::wrap)?;
        Ok(Loaded { root: self.host_root.clone(), observer, rendered, desired })
    }
}

impl Loaded {
    /// Everything that is declared of a path, also what the policy ignores; with the closed directory
    /// that the path is in.
    ///
    /// # Errors
    /// Contents that cannot be decoded.
    pub fn things_at(&self, path: &Path) -> anyhow::Result<Vec<Expectation>> {
        let mut all = expectations(&self.rendered).context("expectations")?;
        all.retain(|expectation| {
            let thing = &expectation.thing;
            if self.observer.unchecked(thing).is_some() {
                return false;
            }
            let within =
                matches!(thing, Thing::ClosedDirectory { .. }) && path.parent() == Some(&*thing.path());
            thing.path() == path || within
        });
        // A declared name in a closed directory is said by its own expectation.
        if all.iter().any(|expectation| expectation.thing.path() == path) {
            all.retain(|expectation| expectation.thing.path() == path);
        }
        Ok(all)
    }

    /// What the policy says of drift of a path by somebody unknown.
    pub fn decision(&self, path: &Path) -> Decision<'_> {
        self.desired.policy.decide(path, None)
    }

    /// What the configuration declares and nothing here compares, and why.
    pub fn not_checked(&self) -> Vec<NotChecked> {
        let rendered = &self.rendered;
        let never = |what: &str| Some(format!("{what} are not compared with what runs"));
        let unless = |thing: &Thing| self.observer.unchecked(thing);
        let declared = [
            ("kernelArguments", !rendered.kernel_arguments.is_empty(), unless(&Thing::KernelArguments)),
            ("kernelType", rendered.kernel_type.is_some(), never("kernel packages")),
            ("extensions", !rendered.extensions.is_empty(), never("packages")),
            ("fips", rendered.fips.is_some(), never("FIPS modes")),
            ("osImageURL", rendered.os_image_url.is_some(), unless(&Thing::OsImage)),
        ];
        declared
            .into_iter()
            .filter_map(|(field, declared, reason)| {
                reason.filter(|_| declared).map(|reason| NotChecked { field, reason })
            })
            .collect()
    }
}

/// A field of the configuration that is not compared.
#[derive(Debug)]
pub struct NotChecked {
    /// Its name in a MachineConfig.
    pub field: &'static str,
    /// Why not.
    pub reason: String,
}

/// A path of the host as an argument: absolute and cleaned.
///
/// # Errors
/// What is wrong with it.
pub fn host_path(text: &str) -> Result<PathBuf, String> {
    check_absolute(text)?;
    Ok(PathBuf::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_configs_those_of_the_service_count() {
        assert_eq!(or_of_the_service(&[], &[]).0, [PathBuf::from(CONFIGS)]);
    }

    #[test]
    fn the_services_policies_are_not_mixed_with_other_configs_or_policies() {
        let (named, policy) = ([PathBuf::from("a.yaml")], [PathBuf::from("p.yaml")]);
        assert_eq!(or_of_the_service(&named, &[]), (named.to_vec(), vec![]));
        assert_eq!(or_of_the_service(&[], &policy), (vec![PathBuf::from(CONFIGS)], policy.to_vec()));
    }
}
