//! `holdfast agent`: the daemon.

use super::exit::BadInput;
use crate::agent::ordered_reverts::RevertOrders;
use crate::agent::{AgentOptions, Enrolment, Services, enrol, run};
use crate::apply::{
    ModeFiles, NodeOrders, NodePolicies, NodeReverts, RevertHost, agent_view::AgentView, waits_or_none,
};
use crate::bounded;
use crate::clock::{Clock as _, SystemClock};
use crate::desired::{DaemonInputs, NamedSources, POLICIES, SERVICE_CONFIGS};
use crate::host_namespaces;
use crate::kernel::object::OBJECT_SHA256;
use crate::no_network;
use crate::repair::revert::Reverter;
use crate::report::forensic;
use crate::report::http::DEFAULT_ADDRESS;
use crate::report::metrics::{BuildInfo, Metrics};
use crate::report::reporter::{Places, Reporter};
use crate::report::socket::{ConfigOrders, PolicyOrders, ReporterOrders, ReporterPeer};
use crate::report::status_file;
use anyhow::Context as _;
use nix::sys::stat::{Mode as FileMode, umask};
use sensor_model::cgroup::Placement;
use sensor_model::drift_policy::ActionLimits;
use sensor_model::expectation::SYSTEMD_DIRECTORY;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The directory in which links and maps are pinned.
pub const PINS: &str = "/sys/fs/bpf/holdfast";

/// The control group of this process.
const OWN_GROUP: &str = "/proc/self/cgroup";

/// Most bytes of it.
const OWN_GROUP_BYTES: u64 = 64 << 10;

/// The units of an installation, and the targets that enable them.
const UNITS: [(&str, &str); 4] = [
    ("holdfast.service", "multi-user.target"),
    ("holdfast-reporter.service", "multi-user.target"),
    ("holdfast-early.service", "sysinit.target"),
    ("holdfast-enrol.service", "sysinit.target"),
];

/// What an installation has of Holdfast. The daemon moves none of it, whatever the rule: without its unit it would not start again.
fn installed(root: &Path) -> impl Iterator<Item = PathBuf> {
    let units = root.join(SYSTEMD_DIRECTORY.trim_start_matches('/'));
    let of_units = UNITS
        .into_iter()
        .flat_map(|(unit, target)| [unit.to_owned(), format!("{unit}.d"), format!("{target}.wants/{unit}")]);
    let of_units = of_units.map(move |name| units.join(name));
    [SERVICE_CONFIGS, POLICIES].map(|path| root.join(path)).into_iter().chain(of_units)
}

/// What the daemon does on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// Report, and write no managed path.
    Observe,
    /// Keep one host without a cluster as it is declared.
    Standalone,
    /// Report, and have other processes apply the configs that the node's reporter hands in, and write back.
    Manage,
}

/// Arguments.
#[expect(clippy::struct_excessive_bools, reason = "one for each option")]
#[derive(Debug, clap::Args)]
pub struct AgentCommand {
    /// What the daemon does on its node.
    #[arg(long, value_enum, default_value = "observe")]
    mode: Mode,
    /// Run on one host without a cluster: the same as `--mode standalone`.
    #[arg(long, conflicts_with = "mode")]
    standalone: bool,
    /// Enter the host's mount and control-group namespaces first: for a pod with `hostPID`. The daemon then opens no network socket.
    #[arg(long, conflicts_with_all = ["host_root", "listen"])]
    enter_host: bool,
    /// MachineConfig manifests or Ignition configs: files, or directories of them. After the first `holdfast apply` the daemon
    /// uses the applied config instead. [default: /etc/holdfast/machine-configs, else
    /// /etc/machine-config-daemon/currentconfig, and in the mode `manage` the other way round; with the policies in
    /// /etc/holdfast/policies]
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
    /// Enrol the managed paths with the pinned kernel programs if the root directory is another one than before, and end: after a
    /// soft reboot, before units start.
    #[arg(long, conflicts_with_all = ["enter_host", "no_pins"])]
    enrol_only: bool,
    /// Do not pin the kernel programs: they end with the daemon.
    #[arg(long)]
    no_pins: bool,
    /// Address of the metrics and health pages; `none` serves no pages. [default: 127.0.0.1:9464 with `--standalone`, else none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Open the socket `reporter.sock` in the run directory for the reporter that runs as this user.
    #[arg(long, value_name = "UID", value_parser = clap::value_parser!(u32).range(1..))]
    reporter_uid: Option<u32>,
    /// Serve the reporter only if it belongs to this systemd unit.
    #[arg(long, requires = "reporter_uid", value_name = "UNIT")]
    reporter_unit: Option<String>,
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
        let mode = if self.standalone { Mode::Standalone } else { self.mode };
        if mode == Mode::Manage && self.reporter_uid.is_none() && !self.enrol_only {
            let reason = "--mode manage needs --reporter-uid: it applies what the node's reporter hands in";
            return Err(BadInput::because(reason));
        }
        if self.enter_host {
            // No thread exists yet.
            host_namespaces::enter()?;
            no_network::forbid()?;
        }
        if self.enter_host || self.reporter_uid.is_some() {
            // As in the service's unit: other users reach the run directory.
            umask(FileMode::from_bits_truncate(0o077));
        }
        let listen: Option<SocketAddr> = match self.listen.as_deref() {
            Some("none") => None,
            None => (mode == Mode::Standalone && !self.enter_host).then_some(DEFAULT_ADDRESS),
            Some(address) => match address.parse() {
                Ok(address) => Some(address),
                Err(error) => {
                    tracing::error!(%error, address, "`--listen` needs an address and a port, or `none`.");
                    return Ok(super::exit::USAGE);
                }
            },
        };
        let reporter = match self.reporter_uid {
            None => None,
            Some(uid) => Some(ReporterPeer { uid, unit: self.reporter_unit, pod: own_pod(self.enter_host)? }),
        };
        if self.enter_host
            && mode == Mode::Manage
            && let Some(ReporterPeer { uid, unit: None, pod: None }) = &reporter
        {
            anyhow::bail!(
                "--mode manage: this container belongs to no pod, by its control group, so each process of the user {uid} could order configs; \
                 name the reporter's unit with `--reporter-unit`, or use `--mode observe`"
            );
        }
        let sources = NamedSources {
            root: self.host_root,
            state: self.state,
            configs: self.config,
            policies: self.policy,
            allow_unknown: self.allow_unknown,
        };
        let with_cluster_policies = mode != Mode::Standalone;
        let options = DaemonInputs { allow_empty: self.allow_empty, with_cluster_policies };
        let mut inputs = sources.clone().daemon_inputs(options, waits_or_none);
        if mode == Mode::Manage {
            inputs.prefer_operator_config();
            inputs.allow_no_config();
        }
        let limits = if mode == Mode::Manage { ActionLimits::MANAGE } else { ActionLimits::OBSERVE };
        let orders = ReporterOrders {
            policies: with_cluster_policies
                .then(|| Arc::new(NodePolicies::new(&inputs, limits)) as Arc<dyn PolicyOrders>),
            configs: (mode == Mode::Manage)
                .then(|| Arc::new(NodeOrders::new(&inputs.root, &inputs.state)) as Arc<dyn ConfigOrders>),
        };
        let mode_files =
            ModeFiles::new(&inputs, with_cluster_policies.then_some(limits), mode == Mode::Manage);
        let program = std::env::current_exe().ok();
        let own = [self.log.clone(), self.run.clone()].into_iter().chain(program);
        let own: Vec<PathBuf> = own.chain(installed(&inputs.root)).collect();
        let revert_orders = (mode == Mode::Manage).then(|| {
            let host = RevertHost { sources, own: own.clone() };
            Box::new(NodeReverts::new(host)) as Box<dyn RevertOrders>
        });
        let places = Places {
            log: self.log,
            state: inputs.state.clone(),
            run: self.run.clone(),
            listen,
            reporter,
            orders,
        };
        let options = AgentOptions {
            inputs,
            run: self.run,
            pins: (!self.no_pins).then_some(self.pins),
            verify_every: Duration::from_secs(self.verify_every),
            canary_every: Duration::from_secs(self.canary_every),
            writes_managed_paths: mode == Mode::Standalone,
        };
        if self.enrol_only {
            let applies = AgentView::new(&options.inputs.root, &options.inputs.state);
            match enrol(options, Box::new(applies))? {
                Enrolment::NoPrograms => tracing::info!("No pinned kernel programs of this version run."),
                Enrolment::SameRoot => {
                    tracing::info!("The pinned kernel programs watch this root directory.");
                }
                Enrolment::NewRoot(entries) => {
                    tracing::info!(entries, "Enrolled the managed paths of a new root directory.");
                }
            }
            return Ok(super::exit::IN_SYNC);
        }
        let services = Services {
            settle_mode: Box::new(move || mode_files.settle()),
            reports: Box::new(Reporter::new(places, Arc::new(SystemClock), Arc::new(metrics()?))),
            applies: Box::new(AgentView::new(&options.inputs.root, &options.inputs.state)),
            write_back: Box::new(Reverter::new(&options.inputs.root, &options.inputs.state, own)),
            revert_orders,
        };
        run(options, services)?;
        Ok(super::exit::IN_SYNC)
    }
}

/// The uid of the pod that this process belongs to. In the namespace of a container the path of the control group does not show it,
/// so this comes after the host's namespaces are entered. That changes no membership.
fn own_pod(in_host: bool) -> anyhow::Result<Option<String>> {
    let text = bounded::read_text(Path::new(OWN_GROUP), OWN_GROUP_BYTES).context(OWN_GROUP)?;
    let pod = Placement::of_proc(&text).pod_uid;
    if in_host && pod.is_none() {
        tracing::warn!(
            "This process is in no pod: each process of the reporter's user may use the reporter's socket."
        );
    }
    Ok(pod)
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
