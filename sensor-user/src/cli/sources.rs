//! Where a command's expectations come from, and the host that they are about.

use super::exit::BadInput;
use crate::{
    apply::{Store, waits_or_none},
    desired::{self, Desired, Inputs, NotChecked, Whole, choose, state_directory},
    observation::{Observer, RootError},
};
use anyhow::Context as _;
use sensor_model::{
    drift_policy::DriftDecision,
    expectation::Expectation,
    path::{PathError, check_absolute},
    waiting::WaitingOutput,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Options of every command that compares.
#[derive(Debug, clap::Args)]
pub struct Sources {
    /// MachineConfig manifests or Ignition configs: a file, or a directory of them; may be repeated. [default: the config that
    /// was applied last, else /etc/holdfast/machine-configs; with the policies in /etc/holdfast/policies]
    #[arg(long, value_name = "PATH")]
    pub config: Vec<PathBuf>,
    /// Drift policies: a file, or a directory of them; may be repeated. Without one, all drift degrades the node.
    #[arg(long, value_name = "PATH")]
    pub policy: Vec<PathBuf>,
    /// Log a warning about unknown fields in configs instead of refusing the configs.
    #[arg(long)]
    pub allow_unknown: bool,
    /// Root of the host's file system.
    #[arg(long, default_value = "/", value_name = "DIRECTORY")]
    pub host_root: PathBuf,
    /// State directory: applied configs, and kernel arguments that wait for the next boot. [default: /var/lib/holdfast below
    /// the host's root]
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
    /// The rendered config, and its expectations without those that the policy ignores.
    pub whole: Whole,
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
        let whole = desired::load_whole(&self.inputs()?, &*observer).map_err(BadInput::wrap)?;
        Ok(Loaded { root: self.host_root.clone(), observer, whole })
    }

    fn inputs(&self) -> anyhow::Result<Inputs> {
        let state = self.state();
        let applied = if self.config.is_empty() { applied(&state)? } else { None };
        let applied = applied.map(desired::Generation::from);
        let (source, policies) = choose(&self.host_root, &self.config, &self.policy, applied);
        Ok(Inputs {
            root: self.host_root.clone(),
            state,
            source,
            policies,
            allow_unknown: self.allow_unknown,
            allow_empty: false,
            apart: false,
            keep: None,
            waits: waits_or_none,
            replaced: None,
        })
    }

    /// The state directory.
    pub fn state(&self) -> PathBuf {
        state_directory(self.state.as_deref(), &self.host_root)
    }
}

/// The config that was applied last, with its number.
fn applied(state: &Path) -> anyhow::Result<Option<(u64, PathBuf)>> {
    Store::current_in(state).context(
        "without --config, Holdfast uses the config that was applied last, and cannot read which one that is; run this as root, \
         or name a config by --config",
    )
}

impl Loaded {
    /// Expectations and the policy.
    pub fn desired(&self) -> &Desired {
        &self.whole.desired
    }

    /// Everything that is declared of a path, also what the policy ignores; with the closed directory that the path is in.
    ///
    /// # Errors
    /// Contents that cannot be decoded.
    pub fn things_at(&self, path: &Path) -> anyhow::Result<Vec<Expectation>> {
        Ok(desired::things_at(&self.whole, path, &*self.observer)?)
    }

    /// What the policy says of drift of a path by somebody unknown.
    pub fn decision(&self, path: &Path) -> DriftDecision<'_> {
        self.desired().policy.decide(path, None)
    }

    /// What waits for the next boot, as outputs have it.
    pub fn waiting(&self) -> Vec<WaitingOutput> {
        self.desired().waiting.iter().cloned().map(WaitingOutput::from).collect()
    }

    /// What the configuration declares and nothing here compares, and why.
    pub fn not_checked(&self) -> Vec<NotChecked> {
        desired::not_checked(&self.whole.rendered, &*self.observer)
    }
}

/// A path of the host as an argument: absolute and cleaned.
///
/// # Errors
/// What is wrong with it.
pub fn host_path(text: &str) -> Result<PathBuf, PathError> {
    check_absolute(text)?;
    Ok(PathBuf::from(text))
}
