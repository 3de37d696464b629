//! `holdfast agent`: the daemon.

use crate::agent::{AgentOptions, Services, run};
use crate::apply::{agent_view::AgentView, waits_or_none};
use crate::clock::{Clock as _, SystemClock};
use crate::desired::NamedSources;
use crate::kernel::object::OBJECT_SHA256;
use crate::repair::revert::Reverter;
use crate::report::forensic;
use crate::report::http::DEFAULT_ADDRESS;
use crate::report::metrics::{BuildInfo, Metrics};
use crate::report::reporter::{Places, Reporter};
use crate::report::status_file;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The directory in which links and maps are pinned.
pub const PINS: &str = "/sys/fs/bpf/holdfast";

/// Arguments.
#[expect(clippy::struct_excessive_bools, reason = "one for each option")]
#[derive(Debug, clap::Args)]
pub struct AgentCommand {
    /// Run on one host without a cluster.
    #[arg(long, required = true)]
    standalone: bool,
    /// MachineConfig manifests or Ignition configs: files, or directories of them. After the first `holdfast apply` the daemon
    /// uses the applied config instead. [default: /etc/holdfast/machine-configs, with the policies in /etc/holdfast/policies]
    #[arg(long, num_args = 1.., value_name = "PATH")]
    config: Vec<PathBuf>,
    /// Drift policies: files, or directories of them. Without one, all drift degrades the node.
    #[arg(long, num_args = 1.., value_name = "PATH")]
    policy: Vec<PathBuf>,
    /// Log a warning about unknown fields in configs instead of refusing the configs.
    #[arg(long)]
    allow_unknown: bool,
    /// Accept configs that declare nothing after configs that declared something.
    #[arg(long)]
    allow_empty: bool,
    /// Root of the host's file system.
    #[arg(long, default_value = "/", value_name = "DIRECTORY")]
    host_root: PathBuf,
    /// State directory: applied configs, and the canary file. [default: /var/lib/holdfast below the host's root]
    #[arg(long, value_name = "DIRECTORY")]
    state: Option<PathBuf>,
    /// Directory of the status file.
    #[arg(long, default_value = status_file::DIRECTORY, value_name = "DIRECTORY")]
    run: PathBuf,
    /// Directory of the forensic log.
    #[arg(long, default_value = forensic::DIRECTORY, value_name = "DIRECTORY")]
    log: PathBuf,
    /// BPF file system directory in which the kernel programs are pinned, so that they run on without the daemon.
    #[arg(long, default_value = PINS, value_name = "DIRECTORY")]
    pins: PathBuf,
    /// Do not pin the kernel programs: they end with the daemon.
    #[arg(long)]
    no_pins: bool,
    /// Address of the metrics and health pages; `none` serves no pages.
    #[arg(long, default_value_t = DEFAULT_ADDRESS.to_string(), value_name = "ADDRESS:PORT")]
    listen: String,
    /// Seconds between full verifications.
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    verify_every: u64,
    /// Seconds between writes of the canary file.
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    canary_every: u64,
}

impl AgentCommand {
    /// Runs the daemon until a signal ends it.
    pub fn run(self) -> anyhow::Result<u8> {
        let listen: Option<SocketAddr> = match self.listen.as_str() {
            "none" => None,
            address => match address.parse() {
                Ok(address) => Some(address),
                Err(error) => {
                    tracing::error!(%error, address, "`--listen` needs an address and a port, or `none`.");
                    return Ok(super::exit::USAGE);
                }
            },
        };
        let sources = NamedSources {
            root: self.host_root,
            state: self.state,
            configs: self.config,
            policies: self.policy,
            allow_unknown: self.allow_unknown,
        };
        let inputs = sources.daemon_inputs(self.allow_empty, waits_or_none);
        let places = Places { log: self.log, state: inputs.state.clone(), run: self.run.clone(), listen };
        let services = Services {
            reports: Box::new(Reporter::new(places, Arc::new(SystemClock), Arc::new(metrics()?))),
            applies: Box::new(AgentView::new(&inputs.root, &inputs.state)),
            write_back: Box::new(Reverter::new(&inputs.root)),
        };
        let options = AgentOptions {
            inputs,
            run: self.run,
            pins: (!self.no_pins).then_some(self.pins),
            verify_every: Duration::from_secs(self.verify_every),
            canary_every: Duration::from_secs(self.canary_every),
        };
        run(options, services)?;
        Ok(super::exit::IN_SYNC)
    }
}

/// The metrics, with the versions of the daemon and the kernel.
fn metrics() -> anyhow::Result<Metrics> {
    let build = BuildInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: option_env!("HOLDFAST_COMMIT").unwrap_or("unknown").to_owned(),
        object: OBJECT_SHA256.to_owned(),
        kernel: nix::sys::utsname::uname()?.release().to_string_lossy().into_owned(),
    };
    Ok(Metrics::new(build, SystemClock.now()))
}
