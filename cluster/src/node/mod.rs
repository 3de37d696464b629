//! The node's reporter: from the sensor's socket to the API server.
//!
//! In: the options of `holdfast-cluster node`. Out: the node's objects, for as long as it runs. One task asks the sensor, another
//! one writes. Between them is only the newest finding, so a slow API server delays neither the sensor nor the newest state.

#[cfg(test)]
mod restart_tests;
mod sensor;
#[cfg(test)]
mod steady_tests;
#[cfg(test)]
mod tests;
mod writer;

use crate::client::{ClientError, client};
use crate::listen::{self, PageAddress};
use crate::manage::{self, ManageChannels, Manager};
use crate::metrics::ReporterMetrics;
use crate::node_config::ConfigFollower;
use crate::node_watch;
use crate::os_image::OsImageFollower;
use crate::pods::Pods;
use crate::policies::PolicyFollower;
use crate::probes;
use crate::publish::{self, ManagedNode, NodeMetadata, Publisher, ReporterPlace, WrittenNode};
use crate::reads::Reads;
use crate::reports::{ComparedConfig, NodeFinding};
use crate::secure::{self, Authorizer, CertificateFiles, Certificates, Pages, SecureError};
use crate::socket::SensorSocket;
use kube::{Client, Config};
use sensor_model::socket::ApplyProgress;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use writer::{ClusterChannels, ManagedChannels};

/// Longest time to connect to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause of an answer of the API server.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest time in which a write that is under way may end at a shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// What the reporter may do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Report what differs.
    #[default]
    Observe,
    /// Also lead updates of the node, through the Machine Config Operator's annotations of its Node.
    Manage,
}

/// The options.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the reporter may do.
    pub mode: Mode,
    /// Where the reporter runs.
    pub place: ReporterPlace,
    /// The sensor's socket.
    pub socket: PathBuf,
    /// The address of the health pages.
    pub probes: PageAddress,
    /// The address of the pages over TLS.
    pub secure: PageAddress,
    /// The certificate of these pages; without one a self-signed one is made.
    pub certificate: Option<CertificateFiles>,
    /// How long the sensor may be silent before the reporter says so.
    pub grace: Duration,
}

/// Why the reporter cannot run.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The reporter does not know how to reach the API server.
    #[error("cannot find the API server: neither a service account's token nor a kubeconfig can be used")]
    Config(#[source] Box<kube::config::InferConfigError>),
    /// There is no client of the API server.
    #[error("cannot begin without the API server's client")]
    Client(#[from] ClientError),
    /// The address of the health pages or of the pages over TLS cannot be used.
    #[error("cannot listen on {address} for the {pages}")]
    Listen {
        /// The address.
        address: PageAddress,
        /// The pages.
        pages: &'static str,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// There is no certificate for the pages over TLS.
    #[error("cannot serve pages over TLS")]
    Secure(#[from] SecureError),
    /// The process cannot receive signals.
    #[error("cannot receive signals")]
    Signals(#[source] io::Error),
}

/// Reports until SIGTERM or SIGINT.
///
/// # Errors
/// Why it cannot begin. Later failures are logged, and what failed is tried again.
pub async fn run(options: Options) -> Result<(), NodeError> {
    let mut config = Config::infer().await.map_err(|error| NodeError::Config(Box::new(error)))?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    // A failed write is tried again with the state of then, so a repetition of the old request would be too late.
    config.default_retry = false;
    let reads = Reads::new(&config, &options.place.node)?;
    let client = client(config)?;
    let listener = listen(options.probes, "health pages")?;
    let secure_listener = listen(options.secure, "pages over TLS")?;
    let certificates = match options.certificate {
        Some(files) => Certificates::from_files(files)?,
        None => Certificates::self_signed(vec![options.place.node.clone(), options.place.holder.clone()])?,
    };
    let metrics = ReporterMetrics::default();
    let mut terminate = signal(SignalKind::terminate()).map_err(NodeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(NodeError::Signals)?;

    let (findings, newest) = watch::channel(None);
    let (not_ready, readiness) = watch::channel(Some("the sensor has not answered yet"));
    let (stop, stopped) = watch::channel(false);
    let (managed, wanted) = watch::channel(None);
    let (written, seen) = watch::channel(WrittenNode::default());
    let mut managing = JoinSet::new();
    let follow = (&reads, &*options.place.node, &*options.socket);
    let mut cluster = follow_cluster(&mut managing, follow, &newest);
    let node = cluster.node.clone();
    // In mode `observe` the channel stays open, and has no plan and no annotation.
    let _observes = match options.mode {
        Mode::Observe => {
            managed.send_replace(Some(ManagedNode::default()));
            Some(managed)
        }
        Mode::Manage => {
            let update = Update { written: seen, managed, findings: newest.clone() };
            let here = (&*options.place.node, node.clone());
            cluster.progress =
                Some(manage_node(&mut managing, &client, &reads, here, &options.socket, update));
            None
        }
    };
    let authorizer = Authorizer::new(&client, &options.place.node, metrics.clone());
    let secure_pages = Pages::new(authorizer, metrics.clone(), options.socket.clone());
    let log = options.socket.clone();
    let socket = SensorSocket::new(options.socket);
    let asking = tokio::spawn(sensor::follow(socket, options.grace, findings, not_ready, metrics.clone()));
    let serving = tokio::spawn(secure::serve(secure_listener, certificates, secure_pages));
    let (renewals, renewed) = watch::channel(None);
    let reason = move || readiness.borrow().or_else(|| writes_nothing(*renewed.borrow()));
    let pages = tokio::spawn(probes::serve(listener, reason));
    let pods = Pods::new(reads.clone(), &options.place.node);
    let publisher = Publisher::new(&client, reads, options.place).counting(metrics).comparing(log);
    let update = ManagedChannels { managed: wanted, written, renewals };
    let writer = writer::write(publisher, pods, newest, update, cluster, stopped);
    let mut writing = tokio::spawn(writer);
    tracing::info!(mode = ?options.mode, "The reporter runs.");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    asking.abort();
    managing.abort_all();
    stop.send_replace(true);
    if timeout(SHUTDOWN_TIMEOUT, &mut writing).await.is_err() {
        tracing::warn!("A write that was under way at the shutdown was cut off.");
        writing.abort();
    }
    pages.abort();
    serving.abort();
    tracing::info!("The reporter ends.");
    Ok(())
}

/// Why a reporter that wrote its Lease at this time is not ready, if it is not. A new version that cannot write then stops its own
/// rollout, and an alert about the pod shows it.
fn writes_nothing(renewed: Option<Instant>) -> Option<&'static str> {
    match renewed {
        None => Some("nothing was written to the API server yet"),
        Some(renewed) => (renewed.elapsed() > publish::LEASE_DURATION)
            .then_some("the Lease, the report or the conditions have not been written for five minutes"),
    }
}

/// Starts the tasks of both modes that read the cluster. Gives what they hand on.
fn follow_cluster(
    tasks: &mut JoinSet<()>,
    (reads, name, socket): (&Reads, &str, &Path),
    newest: &watch::Receiver<Option<NodeFinding>>,
) -> ClusterChannels {
    let (newest_node, node) = watch::channel(None);
    tasks.spawn(node_watch::follow(reads.clone(), name.to_owned(), newest_node));
    let (standing, policies) = watch::channel(None);
    let follower =
        PolicyFollower::new(reads.clone(), name, node.clone(), SensorSocket::new(socket), standing);
    tasks.spawn(follower.run());
    let (opinions, os_image) = watch::channel(None);
    tasks.spawn(OsImageFollower::new(reads, name, opinions).run(newest.clone(), node.clone()));
    let (found, config) = watch::channel(ComparedConfig::default());
    tasks.spawn(ConfigFollower::new(reads, found).run(newest.clone(), node.clone()));
    ClusterChannels { policies, os_image, config, node, progress: None }
}

/// What the tasks of mode `manage` share with the others.
struct Update {
    written: watch::Receiver<WrittenNode>,
    managed: watch::Sender<Option<ManagedNode>>,
    findings: watch::Receiver<Option<NodeFinding>>,
}

/// Starts the tasks of mode `manage`: the one that follows the progress, and the one that takes the steps. Gives the progress.
fn manage_node(
    tasks: &mut JoinSet<()>,
    client: &Client,
    reads: &Reads,
    (name, node): (&str, watch::Receiver<Option<NodeMetadata>>),
    socket: &Path,
    update: Update,
) -> watch::Receiver<Option<ApplyProgress>> {
    let (newest, progress) = watch::channel(None);
    tasks.spawn(manage::follow_progress(SensorSocket::new(socket), newest));
    let Update { written, managed, findings } = update;
    let channels = ManageChannels { node, progress: progress.clone(), findings, written, managed };
    let manager = Manager::new(client, reads.clone(), name.to_owned(), SensorSocket::new(socket), channels);
    tasks.spawn(manager.run());
    progress
}

fn listen(address: PageAddress, pages: &'static str) -> Result<TcpListener, NodeError> {
    listen::listen(address).map_err(|error| NodeError::Listen { address, pages, error })
}
