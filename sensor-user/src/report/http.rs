//! The page of metrics and the two health pages, over HTTP.
//!
//! In: a listening socket, the metrics and the readiness. Out: `/metrics`, `/healthz` and `/readyz`. A thread of its own serves
//! them, so readers of the pages do not delay detection, and a long verification does not delay the pages. The server answers
//! `GET` and `HEAD` only, reads nothing of a request but the path, and changes nothing.

use crate::report::metrics::{CONTENT_TYPE, Metrics};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE as CONTENT_TYPE_HEADER, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use sensor_model::{
    connections::to_end,
    socket::{HEALTH, METRICS, READY},
};
use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

/// Where the server listens by default. Only this host can reach it.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// Most connections at once. One more ends the oldest connection of the peer that has most of them, so idle connections do not
/// block other peers.
const MAXIMUM_CONNECTIONS: usize = 64;

/// Longest time of a connection. Prometheus then makes a new one.
const CONNECTION_TIMEOUT: Duration = Duration::from_mins(2);

/// Longest time until a client has sent its request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The thread renders one page at a time.
const STACK_BYTES: usize = 256 << 10;

/// Longest time for open connections to end at the shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the daemon is not ready, shared by all parts that set a reason. Without a reason it is ready.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    reasons: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

impl Readiness {
    /// The daemon is not ready because of `subject`, for this reason. It replaces an earlier reason of the subject.
    pub fn not_ready(&self, subject: &'static str, reason: impl Into<String>) {
        self.lock().insert(subject, reason.into());
    }

    /// `subject` no longer keeps the daemon from being ready.
    pub fn ready(&self, subject: &'static str) {
        self.lock().remove(subject);
    }

    /// All reasons, by subject; empty when ready.
    pub fn reasons(&self) -> BTreeMap<&'static str, String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        // One map operation at a time: a panic elsewhere cannot leave it broken.
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The contents of the pages.
#[derive(Debug, Clone)]
pub struct Pages {
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The readiness.
    pub readiness: Readiness,
}

/// Serves the pages until `shutdown` is done, and then lets open connections end. An error of one connection ends only that
/// connection. A listener that fails for good ends the server early.
pub async fn serve(
    listener: TcpListener,
    pages: Pages,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_for(CONNECTION_TIMEOUT, listener, pages, shutdown).await
}

async fn serve_for(
    limit: Duration,
    listener: TcpListener,
    pages: Pages,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let mut shutdown = pin!(shutdown);
    let (stop, _) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut peers = Peers::default();
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(ended) = connections.join_next_with_id() => {
                peers.remove(ended.map_or_else(|error| error.id(), |(id, ())| id));
            }
            accepted = listener.accept() => {
                let (stream, peer) = match accepted {
                    Ok((stream, peer)) => (stream, peer.ip()),
                    Err(error) if is_passing(&error) => {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                peers.make_room();
                peers.add(peer, connections.spawn(connection(limit, stream, pages.clone(), stop.subscribe())));
            }
        }
    }
    drop(listener);
    stop.send_replace(true);
    let finish = async { while connections.join_next().await.is_some() {} };
    if timeout(SHUTDOWN_TIMEOUT, finish).await.is_err() {
        tracing::warn!("connections to the metrics page were cut off at shutdown");
    }
    Ok(())
}

/// Serves the pages from a thread of its own, until the sender of `shutdown` sends `true` or is dropped. The thread ends when
/// open connections have ended.
///
/// # Errors
/// No thread or runtime can be made.
pub fn serve_in_thread(
    listener: std::net::TcpListener,
    pages: Pages,
    mut shutdown: watch::Receiver<bool>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let serve = async move {
        let stopped = async move { drop(shutdown.wait_for(|stop| *stop).await) };
        let served = match TcpListener::from_std(listener) {
            Ok(listener) => serve(listener, pages, stopped).await,
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            tracing::error!(%error, "The metrics page has ended.");
        }
    };
    let thread = std::thread::Builder::new().name("pages".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(move || runtime.block_on(serve))
}

/// Open connections by their peers, the oldest first.
#[derive(Debug, Default)]
struct Peers(VecDeque<(IpAddr, AbortHandle)>);

impl Peers {
    fn add(&mut self, peer: IpAddr, connection: AbortHandle) {
        self.0.push_back((peer, connection));
    }

    fn remove(&mut self, id: tokio::task::Id) {
        self.0.retain(|(_, connection)| connection.id() != id);
    }

    /// Ends a connection if there is no room for one more.
    fn make_room(&mut self) {
        if self.0.len() < MAXIMUM_CONNECTIONS {
            return;
        }
        let addresses: Vec<IpAddr> = self.0.iter().map(|(peer, _)| *peer).collect();
        if let Some((_, connection)) = to_end(&addresses).and_then(|at| self.0.remove(at)) {
            connection.abort();
        }
    }
}

/// Whether accepting may work again later: the client disconnected, or the process has too many descriptors.
pub(super) fn is_passing(error: &io::Error) -> bool {
    use nix::errno::Errno;
    let passing =
        [Errno::ECONNABORTED, Errno::EINTR, Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
    error.raw_os_error().is_some_and(|code| passing.contains(&Errno::from_raw(code)))
}

async fn connection(
    limit: Duration,
    stream: tokio::net::TcpStream,
    pages: Pages,
    mut stop: watch::Receiver<bool>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = respond(request.method(), request.uri().path(), &pages);
        async move { Ok::<_, Infallible>(response) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);
    let stopped = async { stop.wait_for(|stop| *stop).await.is_ok() };
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = sleep(limit) => return,
        _ = stopped => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection to the metrics page ended");
    }
}

/// The answer to a request for one of the pages, also on the reporter's socket.
pub(super) fn respond(method: &Method, path: &str, pages: &Pages) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        METRICS => match pages.metrics.page() {
            Ok(text) => page(StatusCode::OK, CONTENT_TYPE, text),
            Err(error) => page(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("metrics: {error}\n")),
        },
        HEALTH => page(StatusCode::OK, TEXT, "ok\n".to_owned()),
        READY => {
            let reasons = pages.readiness.reasons();
            if reasons.is_empty() {
                return page(StatusCode::OK, TEXT, "ready\n".to_owned());
            }
            let lines: Vec<String> =
                reasons.into_iter().map(|(subject, reason)| format!("{subject}: {reason}\n")).collect();
            page(StatusCode::SERVICE_UNAVAILABLE, TEXT, lines.concat())
        }
        _ => page(StatusCode::NOT_FOUND, TEXT, "the pages are /metrics, /healthz and /readyz\n".to_owned()),
    }
}

fn page(status: StatusCode, content_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE_HEADER, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests;
