//! The health pages for the kubelet, over plain HTTP.
//!
//! In: a listening socket and the readiness. Out: `/healthz` and `/readyz`. The server answers `GET` and `HEAD` only and reads
//! nothing of a request but the path. It runs on the reporter's only thread, so `/healthz` answers only while that thread works.

use crate::connections::{self, Answered};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Most connections at once. The kubelet makes one for each probe, and other peers may have idle ones.
const CONNECTIONS: usize = 64;

/// Longest time of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves the pages for as long as it is polled. `not_ready` gives the reason why the program is not ready; none if it is.
pub async fn serve(
    listener: TcpListener,
    not_ready: impl Fn() -> Option<&'static str> + Clone + Send + 'static,
) {
    let served = |stream, answered| {
        let not_ready = not_ready.clone();
        async move {
            // A client that is too slow loses its connection.
            drop(timeout(CONNECTION_TIMEOUT, connection(stream, answered, not_ready)).await);
        }
    };
    connections::serve(listener, CONNECTIONS, served).await;
}

async fn connection(stream: TcpStream, answered: Answered, not_ready: impl Fn() -> Option<&'static str>) {
    let service = service_fn(move |request: Request<Incoming>| {
        answered.note();
        let response = respond(request.method(), request.uri().path(), not_ready());
        async move { Ok::<_, Infallible>(response) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = serving.await {
        tracing::debug!(%error, "a connection to the health pages ended");
    }
}

fn respond(method: &Method, path: &str, not_ready: Option<&'static str>) -> Response<Full<Bytes>> {
    let (status, text) = match (method, path, not_ready) {
        (&Method::GET | &Method::HEAD, "/healthz", _) => (StatusCode::OK, "ok"),
        (&Method::GET | &Method::HEAD, "/readyz", None) => (StatusCode::OK, "ready"),
        (&Method::GET | &Method::HEAD, "/readyz", Some(reason)) => (StatusCode::SERVICE_UNAVAILABLE, reason),
        (&Method::GET | &Method::HEAD, ..) => (StatusCode::NOT_FOUND, "the pages are /healthz and /readyz"),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD"),
    };
    let mut response = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reporter_is_alive_while_it_is_not_ready() {
        let code = |method, path, reason| respond(&method, path, reason).status().as_u16();
        let reason = Some("the sensor has not answered yet");
        assert_eq!(code(Method::GET, "/healthz", reason), 200);
        assert_eq!(code(Method::GET, "/readyz", reason), 503);
        assert_eq!(code(Method::HEAD, "/readyz", None), 200);
        assert_eq!(code(Method::GET, "/metrics", None), 404);
        assert_eq!(code(Method::POST, "/healthz", None), 405);
    }
}
