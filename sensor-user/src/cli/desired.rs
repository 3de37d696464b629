//! `holdfast desired`: reads configs for the daemon, in a process of its own.

use super::{exit::IN_SYNC, output::Screen};
use crate::{
    apply::waits_or_none,
    desired::reader_process::{HostConfigs, ReaderArguments, answer},
    image::TreeFiles,
    observation::{Observer, RootError, device_mapper::VerityDevices},
};
use std::{io, os::fd::AsFd as _, path::PathBuf, sync::Arc};

/// Arguments.
#[expect(clippy::struct_excessive_bools, reason = "one for each option")]
#[derive(Debug, clap::Args)]
pub struct Read {
    /// MachineConfig manifests or Ignition configs: files, or directories of them.
    #[arg(long, value_name = "PATH")]
    config: Vec<PathBuf>,
    /// The configs are those of this apply.
    #[arg(long, value_name = "NUMBER")]
    generation: Option<u64>,
    /// The configs are those of the service.
    #[arg(long, conflicts_with = "generation")]
    service: bool,
    /// The config is the one of the Machine Config Operator's daemon.
    #[arg(long, conflicts_with_all = ["generation", "service"])]
    operator: bool,
    /// Drift policies: files, or directories of them.
    #[arg(long, value_name = "PATH")]
    policy: Vec<PathBuf>,
    /// Root of the host's file system.
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) host_root: PathBuf,
    /// State directory: which kernel arguments wait for the next boot.
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) state: PathBuf,
    /// The image that is the host's root, by a handle of the daemon.
    #[arg(long, value_name = "PATH")]
    root_image: Option<PathBuf>,
    /// The table of a verity device, as `MAJOR:MINOR NAME PARAMETERS`. Standard input is then the control device of the daemon.
    #[arg(long, value_name = "LINE")]
    device_table: Vec<String>,
    /// Log a warning about unknown fields in configs instead of refusing the configs.
    #[arg(long)]
    allow_unknown: bool,
    /// Directory in which usable configs are kept.
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
    /// Keep also configs that declare nothing.
    #[arg(long)]
    allow_empty: bool,
}

impl Read {
    /// Writes the desired state, or why it cannot be read.
    ///
    /// # Errors
    /// The daemon closed the pipe.
    pub fn run(self, screen: &mut Screen) -> anyhow::Result<u8> {
        let host = self.observer();
        answer(self.arguments(), host, waits_or_none, screen.writer())?;
        Ok(IN_SYNC)
    }

    /// An observer of the host.
    ///
    /// # Errors
    /// The host's root cannot be opened.
    pub(super) fn observer(&self) -> Result<Observer, RootError> {
        let observer = Observer::guarded(&self.host_root)?;
        // Only the daemon, which reads the configs again when a tree is not sealed any more, gets one expectation for a whole tree.
        let contents = TreeFiles::of(&self.state).sealed();
        let observer = observer.with_sealed_on(contents, self.verity_devices()).with_trees();
        match &self.root_image {
            Some(handle) => Ok(observer.with_root_image(handle)),
            None => Ok(observer),
        }
    }

    /// The verity devices that the daemon asked for.
    pub(super) fn verity_devices(&self) -> Option<Arc<VerityDevices>> {
        let control =
            io::stdin().as_fd().try_clone_to_owned().ok().filter(|_| !self.device_table.is_empty())?;
        VerityDevices::handed_over(control, &self.device_table).map(Arc::new)
    }

    /// What the daemon asked to read.
    pub(super) fn arguments(self) -> ReaderArguments {
        ReaderArguments {
            configs: self.config,
            generation: self.generation,
            of_host: match (self.service, self.operator) {
                (true, _) => Some(HostConfigs::Service),
                (_, true) => Some(HostConfigs::Operator),
                _ => None,
            },
            policies: self.policy,
            root: self.host_root,
            state: self.state,
            allow_unknown: self.allow_unknown,
            allow_empty: self.allow_empty,
            keep: self.keep,
        }
    }
}
