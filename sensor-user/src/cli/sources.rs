//! The options that name configs, policies and a host, for each command that compares.

use super::exit::BadInput;
use crate::{
    apply::waits_or_none,
    desired::{Generation, Inputs, NamedSources},
    inspection::DeclaredHost,
    observation::{Observer, RootError},
    store::Store,
};
use anyhow::Context as _;
use sensor_model::path::{PathError, check_absolute};
use std::path::{Path, PathBuf};

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

impl Sources {
    /// Reads the configs and policies.
    ///
    /// # Errors
    /// A file that cannot be read or used, with file, field and reason.
    pub fn load(&self) -> anyhow::Result<DeclaredHost> {
        self.load_with(Observer::new)
    }

    /// The same with another observer of the host.
    ///
    /// # Errors
    /// As [`Sources::load`].
    pub fn load_with(
        &self,
        observer: impl FnOnce(&Path) -> Result<Observer, RootError>,
    ) -> anyhow::Result<DeclaredHost> {
        let observer = observer(&self.host_root)
            .map_err(|error| BadInput::wrap(anyhow::Error::from(error).context("--host-root")))?;
        DeclaredHost::load(&self.inputs()?, observer).map_err(BadInput::wrap)
    }

    fn inputs(&self) -> anyhow::Result<Inputs> {
        self.named().inputs(applied, waits_or_none)
    }

    fn named(&self) -> NamedSources {
        NamedSources {
            root: self.host_root.clone(),
            state: self.state.clone(),
            configs: self.config.clone(),
            policies: self.policy.clone(),
            allow_unknown: self.allow_unknown,
        }
    }

    /// The state directory.
    pub fn state(&self) -> PathBuf {
        self.named().state()
    }
}

/// The config that was applied last, with its number.
fn applied(state: &Path) -> anyhow::Result<Option<Generation>> {
    let current = Store::current_in(state).context(
        "without --config, Holdfast uses the config that was applied last, and cannot read which one that is; run this as root, \
         or name a config by --config",
    )?;
    Ok(current.map(Generation::from))
}

/// A path of the host as an argument: absolute and cleaned.
///
/// # Errors
/// What is wrong with it.
pub fn host_path(text: &str) -> Result<PathBuf, PathError> {
    check_absolute(text)?;
    Ok(PathBuf::from(text))
}
