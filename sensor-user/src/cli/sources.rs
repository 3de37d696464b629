//! Where a command's expectations come from, and the host that they are about.

use super::BadInput;
use crate::{
    apply::{STATE, Store},
    desired::{self, Desired, Inputs, POLICIES, Unknown},
    labels,
    observation::{Observer, RootError},
};
use anyhow::Context as _;
use sensor_model::{
    drift_policy::Decision,
    expectation::{Expectation, Thing},
    expectations::expectations,
    merge::Rendered,
    path::check_absolute,
    waiting::{Waits, note},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// The service's configs below its host's root, which count where none are named.
pub const CONFIGS: &str = "etc/holdfast/machine-configs";

/// Configs and policies to read: those named, else what was `applied` last, as for the daemon, else the service's own on the
/// host at `root`. The service's policies are never mixed with configs from elsewhere, so that an answer about a config
/// does not depend on the machine it is asked on.
pub fn or_of_the_service(
    root: &Path,
    config: &[PathBuf],
    policy: &[PathBuf],
    applied: Option<PathBuf>,
) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let (mut configs, mut policies) = (config.to_vec(), policy.to_vec());
    if configs.is_empty() {
        configs.push(applied.unwrap_or_else(|| root.join(CONFIGS)));
        let of_the_service = root.join(POLICIES);
        if policies.is_empty() && of_the_service.is_dir() {
            policies.push(of_the_service);
        }
    }
    (configs, policies)
}

/// The state directory: the one that is named, or that of the host at `root`, so that one host's applies are never taken
/// for those of another.
pub fn state_of(named: Option<&Path>, root: &Path) -> PathBuf {
    named.map_or_else(|| root.join(STATE.trim_start_matches('/')), Path::to_owned)
}

/// Options of every command that compares.
#[derive(Debug, clap::Args)]
pub struct Sources {
    /// MachineConfig manifests or Ignition configs: a file, or a directory of them; may be repeated. Without any, those
    /// that were applied last, else those of the host's service: /etc/holdfast/machine-configs; with the policies
    /// in /etc/holdfast/policies.
    #[arg(long, value_name = "PATH")]
    pub config: Vec<PathBuf>,
    /// Drift policies: a file, or a directory of them; may be repeated. Without any, all drift degrades.
    #[arg(long, value_name = "PATH")]
    pub policy: Vec<PathBuf>,
    /// Warn of unknown fields in configs instead of refusing them.
    #[arg(long)]
    pub allow_unknown: bool,
    /// Root of the host's file system.
    #[arg(long, default_value = "/", value_name = "DIRECTORY")]
    pub host_root: PathBuf,
    /// Where it is kept what was applied, and which kernel arguments wait for the next boot. [default:
    /// /var/lib/holdfast of that host]
    #[arg(long, value_name = "DIRECTORY")]
    pub state: Option<PathBuf>,
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
        self.load_with(Observer::new)
    }

    /// The same with another way to look at the host.
    ///
    /// # Errors
    /// As [`Sources::load`].
    pub fn load_with(
        &self,
        observe: impl FnOnce(&Path) -> Result<Observer, RootError>,
    ) -> anyhow::Result<Loaded> {
        let observer = Arc::new(
            observe(&self.host_root)
                .map_err(|error| BadInput::wrap(anyhow::Error::from(error).context("--host-root")))?,
        );
        let applied = if self.config.is_empty() { self.applied()? } else { None };
        let which = match &applied {
            Some((id, _)) => format!("without --config, what was applied last, number {id}"),
            None => "without --config, that of the service".to_owned(),
        };
        // What was applied was accepted then.
        let unknown = Unknown::allowed(self.allow_unknown || applied.is_some());
        let (configs, policies) =
            or_of_the_service(&self.host_root, &self.config, &self.policy, applied.map(|(_, config)| config));
        let state = state_of(self.state.as_deref(), &self.host_root);
        let inputs = Inputs {
            configs: &configs,
            policies: &policies,
            state: &state,
            unknown,
            keep: None,
            keep_nothing: false,
        };
        let desired = desired::load(&inputs, &observer).map_err(|error| {
            let named = !self.config.is_empty();
            BadInput::wrap(if named { error } else { error.context(which) })
        })?;
        let rendered = desired::rendered(&configs, Unknown::Told).map_err(BadInput::wrap)?;
        Ok(Loaded { root: self.host_root.clone(), observer, rendered, desired })
    }

    /// Where it is kept what was applied.
    pub fn state(&self) -> PathBuf {
        state_of(self.state.as_deref(), &self.host_root)
    }

    /// The config that was applied last, with its number.
    fn applied(&self) -> anyhow::Result<Option<(u64, PathBuf)>> {
        Store::current_in(&self.state()).context(
            "without --config, the config that was applied last counts, and which one that is cannot be read; run this as \
             root, or name a config by --config",
        )
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
        note(&mut all, &self.desired.waiting);
        all.retain(|expectation| {
            let thing = &expectation.thing;
            if self.observer.unchecked(thing).is_some() {
                return false;
            }
            let within =
                matches!(thing, Thing::ClosedDirectory { .. }) && path.parent() == Some(&*thing.path());
            *thing.path() == *path || within
        });
        // A declared name in a closed directory is said by its own expectation.
        if all.iter().any(|expectation| *expectation.thing.path() == *path) {
            all.retain(|expectation| *expectation.thing.path() == *path);
        }
        labels::expect(&mut all, &self.desired.policy, &self.observer);
        Ok(all)
    }

    /// What the policy says of drift of a path by somebody unknown.
    pub fn decision(&self, path: &Path) -> Decision<'_> {
        self.desired.policy.decide(path, None)
    }

    /// What waits for the next boot, as outputs have it.
    pub fn waiting(&self) -> Vec<Waits> {
        self.desired.waiting.iter().cloned().map(Waits::from).collect()
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

    const ROOT: &str = "/";

    #[test]
    fn without_configs_those_of_the_service_count() {
        for (root, path) in
            [(ROOT, "/etc/holdfast/machine-configs"), ("/mnt", "/mnt/etc/holdfast/machine-configs")]
        {
            assert_eq!(or_of_the_service(root.as_ref(), &[], &[], None).0, [PathBuf::from(path)]);
        }
    }

    #[test]
    fn what_was_applied_counts_more_than_the_services_and_less_than_what_is_named() {
        let (applied, named) = (PathBuf::from("generations/1/config"), [PathBuf::from("a.yaml")]);
        assert_eq!(
            or_of_the_service(ROOT.as_ref(), &[], &[], Some(applied.clone())).0,
            std::slice::from_ref(&applied)
        );
        assert_eq!(or_of_the_service(ROOT.as_ref(), &named, &[], Some(applied)).0, named);
    }

    #[test]
    fn the_state_is_that_of_the_host_that_is_worked_on() {
        assert_eq!(state_of(None, Path::new("/")), Path::new("/var/lib/holdfast"));
        assert_eq!(state_of(None, Path::new("/mnt")), Path::new("/mnt/var/lib/holdfast"));
        assert_eq!(state_of(Some(Path::new("/state")), Path::new("/mnt")), Path::new("/state"));
    }

    #[test]
    fn the_services_policies_are_not_mixed_with_other_configs_or_policies() {
        let (named, policy) = ([PathBuf::from("a.yaml")], [PathBuf::from("p.yaml")]);
        assert_eq!(or_of_the_service(ROOT.as_ref(), &named, &[], None), (named.to_vec(), vec![]));
        assert_eq!(
            or_of_the_service(ROOT.as_ref(), &[], &policy, None),
            (vec![Path::new(ROOT).join(CONFIGS)], policy.to_vec())
        );
    }
}
