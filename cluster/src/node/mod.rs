//! The node's reporter: from the sensor's socket to the API server.
//!
//! In: the options of `holdfast-cluster node`. Out: the node's objects, for as long as it runs. One task asks the sensor, another
//! one writes. Between them is only the newest finding, so a slow API server delays neither the sensor nor the newest state.

mod sensor;
#[cfg(test)]
mod tests;
mod writer;

use crate::pods::Pods;
use crate::probes;
use crate::publish::{Publisher, ReporterPlace};
use crate::socket::SensorSocket;
use kube::{Client, Config};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

/// Longest time to connect to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause of an answer of the API server.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest time in which a write that is under way may end at a shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The options.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the reporter runs.
    pub place: ReporterPlace,
    /// The sensor's socket.
    pub socket: PathBuf,
    /// The address of the health pages.
    pub probes: SocketAddr,
    /// How long the sensor may be silent before the reporter says so.
    pub grace: Duration,
}

/// Why the reporter cannot run.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The reporter does not know how to reach the API server.
    #[error("cannot find the API server: neither a service account's token nor a kubeconfig can be used")]
    Config(#[source] Box<kube::config::InferConfigError>),
    /// No client can be made.
    #[error("cannot make a client of the API server")]
    Client(#[source] Box<kube::Error>),
    /// The address of the health pages cannot be used.
    #[error("cannot listen on {address} for the health pages")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        #[source]
        error: io::Error,
    },
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
    let client = Client::try_from(config).map_err(|error| NodeError::Client(Box::new(error)))?;
    let listener = TcpListener::bind(options.probes)
        .await
        .map_err(|error| NodeError::Listen { address: options.probes, error })?;
    let mut terminate = signal(SignalKind::terminate()).map_err(NodeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(NodeError::Signals)?;

    let (findings, newest) = watch::channel(None);
    let (not_ready, ready) = watch::channel(Some("the sensor has not answered yet"));
    let (stop, stopped) = watch::channel(false);
    let socket = SensorSocket::new(options.socket);
    let asking = tokio::spawn(sensor::follow(socket, options.grace, findings, not_ready));
    let pages = tokio::spawn(probes::serve(listener, ready));
    let pods = Pods::new(client.clone(), &options.place.node);
    let publisher = Publisher::new(&client, options.place);
    let mut writing = tokio::spawn(writer::write(publisher, pods, newest, stopped));
    tracing::info!("The reporter runs.");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    asking.abort();
    stop.send_replace(true);
    if timeout(SHUTDOWN_TIMEOUT, &mut writing).await.is_err() {
        tracing::warn!("A write that was under way at the shutdown was cut off.");
        writing.abort();
    }
    pages.abort();
    tracing::info!("The reporter ends.");
    Ok(())
}
