//! The reporter's socket: HTTP/1.1 and JSON over a unix socket, for the node's reporter.
//!
//! In: a bound socket, the newest status, the newest entry of the log, the pages, and what takes orders. Out: the answers of [`sensor_model::socket`]. A
//! thread of its own serves them. The loop never waits for it: a peer that is away, slow or hostile delays no detection. A peer
//! that is not the reporter is closed without an answer, and counted.

mod answers;
mod bounded_status;
mod hang;
mod orders;
mod peer;
mod published;

#[cfg(test)]
mod tests;

use super::http::is_passing;
use super::metrics::Metrics;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use peer::{PeerCheck, PeerRefusal};
use sensor_model::socket::{CONNECTIONS, HEADER_SECONDS, LONGEST_WAIT_SECONDS, REQUEST_HEAD_BYTES, SOCKET};
use std::convert::Infallible;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};

pub(super) use answers::Answers;
pub(super) use bounded_status::text as bounded_text;
use orders::Working;
pub use orders::{ConfigOrders, PolicyOrders, ReporterOrders};
pub use peer::ReporterPeer;
#[cfg(test)]
pub(super) use published::Published;
pub(super) use published::{StatusPublisher, channel};

/// The socket gets its name when it is ready.
const TEMPORARY: &str = ".reporter.sock.new";

/// The age at which a connection takes no further request. The reporter then makes a new one.
const CONNECTION_TIMEOUT: Duration = Duration::from_mins(2);

/// Longest time of the last request of a connection: the longest wait, and the answer.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(LONGEST_WAIT_SECONDS + 10);

/// Longest time for open connections to end at the shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause between two questions about the progress of an apply.
const CONTINUE_PAUSE: Duration = Duration::from_secs(5);

/// Most headers of a request.
const HEADERS: usize = 32;

/// Shortest time between two log lines about refused peers.
const REFUSAL_PAUSE: Duration = Duration::from_mins(1);

/// The thread makes one answer at a time.
const STACK_BYTES: usize = 256 << 10;

/// The name of the socket in the run directory.
pub(super) fn path(run: &Path) -> PathBuf {
    run.join(Path::new(SOCKET).file_name().unwrap_or_default())
}

/// Binds the socket for root and a group. Other users may then look up names in the run directory, and not list them.
pub(super) fn bind(run: &Path, group: u32) -> io::Result<StdListener> {
    let temporary = run.join(TEMPORARY);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = StdListener::bind(&temporary)?;
    listener.set_nonblocking(true)?;
    chown(&temporary, None, Some(group))?;
    fs::set_permissions(&temporary, Permissions::from_mode(0o660))?;
    fs::set_permissions(run, Permissions::from_mode(0o711))?;
    fs::rename(&temporary, path(run))?;
    Ok(listener)
}

/// Serves a bound socket from a thread of its own, until the sender of `stop` sends `true` or is dropped.
pub(super) fn serve_in_thread(
    listener: StdListener,
    peer: ReporterPeer,
    answers: Answers,
    orders: ReporterOrders,
    stop: watch::Receiver<bool>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let serve = async move {
        let served = match UnixListener::from_std(listener) {
            Ok(listener) => serve(listener, &peer, answers, orders, stop).await,
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            tracing::error!(%error, "The reporter's socket is closed.");
        }
    };
    let thread = std::thread::Builder::new().name("reporter".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(move || runtime.block_on(serve))
}

async fn serve(
    listener: UnixListener,
    check: &dyn PeerCheck,
    answers: Answers,
    orders: ReporterOrders,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut refusals = Refusals::new(Arc::clone(&answers.pages.metrics));
    let mut connections = JoinSet::new();
    let working = Working::default();
    let continuing = orders.configs.clone().map(|orders| tokio::spawn(continue_applies(orders)));
    let stopping = stop.clone();
    let mut hangs = pin!(hang::loop_hangs(answers.published.clone()));
    let mut stopped = pin!(async move { drop(stop.wait_for(|stop| *stop).await) });
    loop {
        tokio::select! {
            () = &mut stopped => break,
            () = &mut hangs => {
                tracing::error!(seconds = hang::LIMIT.as_secs(), "The daemon's loop hangs: the daemon ends, so that it is started again.");
                // Nothing in this process can stop the loop.
                std::process::exit(hang::EXIT_CODE);
            }
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let stream = match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) if is_passing(&error) => {
                        sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let mut accepted = check.check(&stream);
                if accepted.is_ok() && connections.len() >= CONNECTIONS {
                    accepted = Err(PeerRefusal::Connections);
                }
                match accepted {
                    Ok(()) => {
                        let orders = (orders.clone(), working.clone());
                        drop(connections.spawn(connection(stream, answers.clone(), orders, stopping.clone())));
                    }
                    Err(refusal) => refusals.add(&refusal),
                }
            }
        }
    }
    drop(listener);
    if let Some(task) = continuing {
        task.abort();
    }
    let finish = async { while connections.join_next().await.is_some() {} };
    if timeout(SHUTDOWN_TIMEOUT, finish).await.is_err() {
        tracing::warn!("connections of the reporter were cut off at shutdown");
    }
    Ok(())
}

/// Asks for the progress of the newest apply again and again, because that continues one whose process ended early.
async fn continue_applies(orders: Arc<dyn ConfigOrders>) {
    loop {
        let orders = Arc::clone(&orders);
        if let Err(error) = spawn_blocking(move || drop(orders.progress())).await {
            tracing::error!(%error, "The thread that continues applies ended early.");
        }
        sleep(CONTINUE_PAUSE).await;
    }
}

async fn connection(
    stream: UnixStream,
    answers: Answers,
    orders: (ReporterOrders, Working),
    mut stop: watch::Receiver<bool>,
) {
    let stopping = stop.clone();
    let answers = Arc::new(answers);
    let service = service_fn(move |request: Request<Incoming>| {
        let (answers, (orders, working), stop) = (Arc::clone(&answers), orders.clone(), stopping.clone());
        let (request, content) = request.into_parts();
        async move {
            let answer = if orders::is_order(request.uri.path()) {
                orders::answer(orders, &working, &request, content, stop).await
            } else {
                answers.answer(&request, stop).await
            };
            Ok::<_, Infallible>(answer)
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(HEADER_SECONDS))
        .max_buf_size(REQUEST_HEAD_BYTES)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);
    let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
    let result = tokio::select! {
        result = serving.as_mut() => Ok(result),
        () = stopped => {
            serving.as_mut().graceful_shutdown();
            timeout(SHUTDOWN_TIMEOUT, serving).await
        }
        () = sleep(CONNECTION_TIMEOUT) => {
            serving.as_mut().graceful_shutdown();
            timeout(LAST_REQUEST_TIMEOUT, serving).await
        }
    };
    match result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection of the reporter ended"),
        Err(_) => tracing::debug!("a connection of the reporter was cut off"),
    }
}

/// Counts refused peers, and logs some of them.
#[derive(Debug)]
struct Refusals {
    metrics: Arc<Metrics>,
    logged: Option<Instant>,
    /// Refusals since the last log line.
    unlogged: u64,
}

impl Refusals {
    fn new(metrics: Arc<Metrics>) -> Self {
        metrics.reporter_socket(&PeerRefusal::WORDS);
        Self { metrics, logged: None, unlogged: 0 }
    }

    fn add(&mut self, refusal: &PeerRefusal) {
        self.metrics.reporter_refused(refusal.word());
        if self.logged.is_some_and(|at| at.elapsed() < REFUSAL_PAUSE) {
            self.unlogged += 1;
            return;
        }
        let unlogged = std::mem::take(&mut self.unlogged);
        tracing::warn!(reason = %refusal, unlogged, "Refused a peer of the reporter's socket.");
        self.logged = Some(Instant::now());
    }
}
