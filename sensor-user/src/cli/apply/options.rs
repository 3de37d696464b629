//! The options of `apply` and `rollback`.

use crate::{
    apply::{GivenConsent, HostApplyOptions, NewConfig, OperatorRule, REBOOT, YES},
    cli::output::Output,
    desired::{Unknown, state_directory},
};
use std::path::PathBuf;

/// Options for the host, and the output format.
#[derive(Debug, clap::Args)]
pub struct HostOptions {
    /// Root of the host's file system.
    #[arg(long, default_value = "/", value_name = "DIRECTORY")]
    pub host_root: PathBuf,
    /// State directory: journal, history and originals. [default: /var/lib/holdfast below the host's root]
    #[arg(long, value_name = "DIRECTORY")]
    pub state: Option<PathBuf>,
    /// Output format.
    #[command(flatten)]
    pub output: Output,
}

impl HostOptions {
    /// The state directory.
    pub fn state(&self) -> PathBuf {
        state_directory(self.state.as_deref(), &self.host_root)
    }
}

/// Options of an apply.
#[expect(clippy::struct_excessive_bools, reason = "one for each option")]
#[derive(Debug, clap::Args)]
pub struct ApplyFlags {
    /// Disruption policies (`MachineConfiguration` or `DisruptionPolicy`): a file, or a directory of them; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub policy: Vec<PathBuf>,
    /// Drift policies: a file, or a directory of them; may be repeated. Drift that they ignore or only observe does not stop an
    /// apply. [default: /etc/holdfast/policies below the host's root]
    #[arg(long, value_name = "PATH")]
    pub drift_policy: Vec<PathBuf>,
    /// The node's pool, for policies that apply to certain pools. [default: from NEW's name or role]
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Print the plan and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Start without asking, as does `HOLDFAST_YES=1`. Required without a terminal.
    #[arg(short, long)]
    pub yes: bool,
    /// Allow the reboot of a plan that has one, as does `HOLDFAST_REBOOT=1`. Required without a terminal.
    #[arg(long)]
    pub reboot: bool,
    /// Write every declared path whether or not it has drifted, and reboot.
    #[arg(long)]
    pub force: bool,
    /// Write files only: run no action of the plan (reload, restart, change of the OS) and do not reboot. For a root that is not
    /// running.
    #[arg(long)]
    pub no_acts: bool,
    /// Write even though the Machine Config Operator's daemon runs on this host.
    #[arg(long)]
    pub beside_mco: bool,
}

impl ApplyFlags {
    /// The consent of the options and the environment.
    pub(super) fn consent(&self) -> GivenConsent {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| value == "1");
        GivenConsent { yes: self.yes || is_set(YES), reboot: self.reboot || is_set(REBOOT) }
    }

    /// The same for the room that applies.
    pub(super) fn for_host(&self, host: &HostOptions) -> HostApplyOptions {
        HostApplyOptions {
            root: host.host_root.clone(),
            state: host.state(),
            disruption_policies: self.policy.clone(),
            drift_policies: self.drift_policy.clone(),
            pool: self.pool.clone(),
            force: self.force,
            act: !self.no_acts,
            operator: if self.beside_mco { OperatorRule::Beside } else { OperatorRule::Never },
        }
    }
}

/// The options that name configs.
#[derive(Debug, clap::Args)]
pub(super) struct ConfigOptions {
    /// The new config: MachineConfig manifests or Ignition configs, files or directories of them.
    #[arg(required_unless_present = "resume", conflicts_with = "resume", value_name = "NEW")]
    new: Vec<PathBuf>,
    /// The present config of a host to which none was applied yet; may be repeated.
    #[arg(long, value_name = "PATH")]
    current: Vec<PathBuf>,
    /// Log a warning about unknown fields in configs instead of refusing the configs.
    #[arg(long)]
    allow_unknown: bool,
    /// Apply a config that declares nothing, which removes everything that the present config declares.
    #[arg(long)]
    allow_empty: bool,
}

impl ConfigOptions {
    /// The same for the room that applies.
    pub(super) fn wanted(&self) -> NewConfig<'_> {
        NewConfig {
            new: &self.new,
            current: &self.current,
            unknown: Unknown::allowed(self.allow_unknown),
            allow_empty: self.allow_empty,
        }
    }
}
