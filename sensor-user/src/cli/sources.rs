//! The options that name configs, policies and a host, for each command that compares.

use super::exit::BadInput;
use crate::{
    apply::waits_or_none,
    desired::{DesiredError, NamedSources},
    inspection::{DeclaredHost, DeclaredHostError},
    observation::{Observer, RootError},
};
use sensor_model::path::{PathError, check_absolute};
use std::path::{Path, PathBuf};

/// Options of every command that compares.
#[derive(Debug, clap::Args)]
pub struct Sources {
    /// MachineConfig manifests or Ignition configs: a file, or a directory of them; may be repeated. [default: the config that
    /// was applied last, else /etc/holdfast/machine-configs, else /etc/machine-config-daemon/currentconfig; with the policies in
    /// /etc/holdfast/policies]
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

    /// The same; `None` if no config is named, none was applied, and the host has none.
    ///
    /// # Errors
    /// As [`Sources::load`].
    pub(super) fn load_if_any(
        &self,
        observer: impl FnOnce(&Path) -> Result<Observer, RootError>,
    ) -> anyhow::Result<Option<DeclaredHost>> {
        match DeclaredHost::load(self.named(), waits_or_none, observer) {
            Ok(host) => Ok(Some(host)),
            Err(DeclaredHostError::Desired(DesiredError::NoneOfService(_))) => Ok(None),
            Err(error) => Err(BadInput::wrap_if(error.is_input(), error)),
        }
    }

    /// The same with another observer of the host.
    ///
    /// # Errors
    /// As [`Sources::load`].
    pub fn load_with(
        &self,
        observer: impl FnOnce(&Path) -> Result<Observer, RootError>,
    ) -> anyhow::Result<DeclaredHost> {
        DeclaredHost::load(self.named(), waits_or_none, observer)
            .map_err(|error| BadInput::wrap_if(error.is_input(), error))
    }

    /// The same for the rooms.
    pub(super) fn named(&self) -> NamedSources {
        NamedSources {
            root: self.host_root.clone(),
            state: self.state.clone(),
            configs: self.config.clone(),
            policies: self.policy.clone(),
            allow_unknown: self.allow_unknown,
        }
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
