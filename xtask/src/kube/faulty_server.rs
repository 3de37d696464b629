//! A server between a client and the API server, for tests: it counts requests and makes faults.
//!
//! In: the API server's address and certificate, and the fault of now. Out: an address, and every request that came there. The client
//! reaches it without TLS. Nothing of a token is kept.

use anyhow::{Context as _, Result, ensure};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use kube::{Client, Config};
use serde_json::json;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// How late an answer is. A reporter waits longer for one.
const LATE: Duration = Duration::from_secs(3);

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The API server answers.
    None,
    /// The answer has this code. It asks to wait for a second, as the API server does with 429.
    Code(u16),
    /// The connection ends without an answer, and the API server gets nothing.
    Cut,
    /// The API server does what is asked, and the connection ends without an answer.
    LostAnswer,
    /// There is no answer, until the client gives up.
    Silence,
    /// The API server is asked only after [`LATE`], and then answers.
    Late,
    /// A watch begins, and its first event is the error that the version is too old. The API server answers the rest.
    Gone,
    /// A watch ends as soon as it has begun. The API server answers the rest.
    EndedWatch,
}

/// One request, the user in whose name it was sent, and the code of its answer. A request without an answer has the code 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeenRequest {
    pub(super) line: String,
    pub(super) user: Option<String>,
    pub(super) code: u16,
}

#[derive(Debug)]
struct Shared {
    fault: Mutex<Fault>,
    seen: Mutex<Vec<SeenRequest>>,
    /// How often all connections were cut.
    cuts: watch::Sender<u64>,
}

/// The server. It ends with its value.
pub(super) struct FaultyServer {
    shared: Arc<Shared>,
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FaultyServer {
    /// In front of the API server at this port of the loopback, which has these certificates in PEM. There is no fault yet.
    pub(super) fn start(apiserver: u16, certificate: &[u8]) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let mut config = Config::new(format!("https://{}:{apiserver}", Ipv4Addr::LOCALHOST).parse()?);
        config.root_cert = Some(certificates(certificate)?);
        config.default_retry = false;
        // A watch may be silent.
        config.read_timeout = None;
        let (cuts, _) = watch::channel(0);
        let shared = Arc::new(Shared { fault: Mutex::new(Fault::None), seen: Mutex::default(), cuts });
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&shared);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener, config, served) => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Self { shared, port, stop: Some(stop), thread: Some(thread) })
    }

    /// The server's address.
    pub(super) fn url(&self) -> String {
        format!("http://{}:{}", Ipv4Addr::LOCALHOST, self.port)
    }

    /// The fault of each request from now on. A watch that has begun goes on.
    pub(super) fn set(&self, fault: Fault) {
        *self.shared.fault.lock().unwrap() = fault;
    }

    /// Cuts each connection of now, and with it each watch.
    pub(super) fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// The requests since the last call of [`Self::take`].
    pub(super) fn seen(&self) -> Vec<SeenRequest> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// The same, and forgets them.
    pub(super) fn take(&self) -> Vec<SeenRequest> {
        std::mem::take(&mut *self.shared.seen.lock().unwrap())
    }
}

impl Drop for FaultyServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The server may have ended.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// All certificates of a text in PEM. That of the API server is followed by the one that signed it.
fn certificates(pem: &[u8]) -> Result<Vec<Vec<u8>>> {
    use base64::Engine as _;
    let mut all = Vec::new();
    for block in std::str::from_utf8(pem)?.split("-----BEGIN CERTIFICATE-----").skip(1) {
        let (body, _) =
            block.split_once("-----END CERTIFICATE-----").context("a certificate without an end")?;
        let body: String = body.split_whitespace().collect();
        all.push(base64::engine::general_purpose::STANDARD.decode(body)?);
    }
    ensure!(!all.is_empty(), "no certificate");
    Ok(all)
}

async fn serve(listener: TcpListener, config: Config, shared: Arc<Shared>) {
    let client = Client::try_from(config).expect("the config has a certificate");
    let listener = tokio::net::TcpListener::from_std(listener).expect("the listener does not block");
    while let Ok((stream, _)) = listener.accept().await {
        let (client, shared) = (client.clone(), Arc::clone(&shared));
        let mut cuts = shared.cuts.subscribe();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(client.clone(), Arc::clone(&shared), request));
            let connection = hyper::server::conn::http1::Builder::new();
            tokio::select! {
                // A connection that the client or a fault ends is an error here.
                _ = connection.serve_connection(TokioIo::new(stream), service) => {}
                _ = cuts.changed() => {}
            }
        });
    }
}

async fn answer(
    client: Client,
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> io::Result<Response<Body>> {
    let fault = *shared.fault.lock().unwrap();
    let uri = request.uri().to_string();
    let user = request.headers().get("impersonate-user").and_then(|user| user.to_str().ok());
    let mut seen =
        SeenRequest { line: format!("{} {uri}", request.method()), user: user.map(str::to_owned), code: 0 };
    let answer = match fault {
        Fault::None => forward(&client, request).await,
        Fault::Gone | Fault::EndedWatch if !uri.contains("watch=true") => forward(&client, request).await,
        Fault::Gone => {
            let status = json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old" });
            Ok(said(200, &json!({ "type": "ERROR", "object": status }).to_string()))
        }
        Fault::EndedWatch => Ok(said(200, "")),
        Fault::Code(code) => {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Fault",
                "message": "a fault of the test", "details": { "retryAfterSeconds": 1 },
            });
            Ok(said(code, &status.to_string()))
        }
        Fault::Cut => Err(cut()),
        Fault::LostAnswer => forward(&client, request).await.and(Err(cut())),
        Fault::Late => {
            tokio::time::sleep(LATE).await;
            forward(&client, request).await
        }
        Fault::Silence => {
            shared.seen.lock().unwrap().push(seen);
            return std::future::pending().await;
        }
    };
    seen.code = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
    shared.seen.lock().unwrap().push(seen);
    answer
}

fn cut() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

/// An answer of this server.
fn said(code: u16, body: &str) -> Response<Body> {
    let mut answer = Response::new(Body::from(body.as_bytes().to_vec()));
    *answer.status_mut() = code.try_into().expect("a code of the test");
    answer
}

/// The API server's answer.
async fn forward(client: &Client, request: Request<Incoming>) -> io::Result<Response<Body>> {
    let (mut head, body) = request.into_parts();
    head.headers.remove(hyper::header::HOST);
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let request = Request::from_parts(head, Body::from(body.to_vec()));
    let answer = client.send(request).await;
    // The client sees a connection that ends, and not why.
    answer
        .inspect_err(|error| eprintln!("the API server did not answer: {error:?}"))
        .map_err(io::Error::other)
}
