//! The pages over TLS: metrics, and for `kubectl holdfast` the sensor's status and log.
//!
//! In: a listening socket, a certificate, the API server's client and the sensor's socket. Out: answers to callers whose token the
//! API server knows, and who have the right to them. The number of connections, their time and the size of a request are
//! limited. No token is kept or logged.

mod authorizer;
mod certificate;
mod error;
mod pages;
#[cfg(test)]
mod tests;

pub use authorizer::{Access, Authorizer};
pub use certificate::{CertificateFiles, Certificates};
pub use error::SecureError;
pub use pages::Pages;

use crate::connections::{self, Answered};
use hyper::{Request, StatusCode, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Most connections at once.
const CONNECTIONS: usize = 64;

/// Longest time of a TLS handshake, and longest time until a request's head is complete.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time of a connection. A client then makes a new one.
pub(crate) const CONNECTION_TIMEOUT: Duration = Duration::from_mins(10);

/// Most bytes of a request's head: a token has up to a few KiB.
const HEAD_BYTES: usize = 16 << 10;

/// Serves the pages for as long as it is polled.
pub async fn serve(listener: TcpListener, mut certificates: Certificates, pages: Pages) {
    let pages = Arc::new(pages);
    let served = |stream, answered| {
        let acceptor = TlsAcceptor::from(certificates.current());
        let pages = Arc::clone(&pages);
        async move {
            // A client that is too slow loses its connection.
            drop(timeout(CONNECTION_TIMEOUT, connection(stream, answered, acceptor, pages)).await);
        }
    };
    connections::serve(listener, CONNECTIONS, served).await;
}

async fn connection(stream: TcpStream, answered: Answered, acceptor: TlsAcceptor, pages: Arc<Pages>) {
    let stream = match timeout(HEAD_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake failed");
            return;
        }
        Err(_) => return,
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let (pages, answered) = (Arc::clone(&pages), answered.clone());
        // The body of a request is not read.
        let (head, _) = request.into_parts();
        async move {
            let answer = pages.answer(&head).await;
            // Everybody may ask without a right.
            if !matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                answered.note();
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = serving.await {
        tracing::debug!(%error, "a connection to the TLS port ended");
    }
}
