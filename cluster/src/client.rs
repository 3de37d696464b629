//! The reporter's connections to the API server.
//!
//! In: a config. Out: a client. The token of a file is read again every minute by the monotonic clock, and before the next request
//! after the API server has refused it: a clock that is set to another time keeps no old token. A pause that the API server asks for
//! in a header becomes a part of its Status, where the callers look for it. Nothing is sent twice here.

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use kube::client::{Body, ClientBuilder, DynBody};
use kube::{Client, Config};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fs, io};
use thiserror::Error;
use tokio::time::Instant;
use tower::layer::layer_fn;
use tower::{BoxError, Service};

/// Time after which the token's file is read again.
const TOKEN_AGE: Duration = Duration::from_mins(1);
/// Most bytes of an answer with a pause that are kept as its text.
const TEXT_BYTES: usize = 200;

/// Why there is no client.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The token cannot be used.
    #[error("cannot read the token in {path}", path = path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// The config cannot be used.
    #[error("cannot make a client of the API server")]
    Kube(#[source] Box<kube::Error>),
}

/// A client with this config.
///
/// # Errors
/// Why there is none.
pub fn client(mut config: Config) -> Result<Client, ClientError> {
    let file = match (&config.auth_info.token, config.auth_info.token_file.take()) {
        // A token in the config is used first.
        (Some(_), _) | (None, None) => None,
        (None, Some(path)) => {
            let path = PathBuf::from(path);
            Some(TokenFile::open(&path).map_err(|error| ClientError::Token { path, error })?)
        }
    };
    let builder = ClientBuilder::try_from(config).map_err(|error| ClientError::Kube(Box::new(error)))?;
    let layer = layer_fn(move |inner| Connection { inner, token: file.clone() });
    Ok(builder.with_layer(&layer).build())
}

/// The token of a file.
#[derive(Debug, Clone)]
struct TokenFile(Arc<Mutex<HeldToken>>);

#[derive(Debug)]
struct HeldToken {
    path: PathBuf,
    header: HeaderValue,
    /// When the file was read; `None` if the API server has refused the token since.
    read_at: Option<Instant>,
}

impl TokenFile {
    fn open(path: &Path) -> io::Result<Self> {
        let header = read_token(path)?;
        let held = HeldToken { path: path.to_owned(), header, read_at: Some(Instant::now()) };
        Ok(Self(Arc::new(Mutex::new(held))))
    }

    /// The header of a request. The last token stays if the file cannot be read.
    fn header(&self) -> HeaderValue {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.read_at.is_none_or(|at| at.elapsed() >= TOKEN_AGE) {
            match read_token(&held.path) {
                Ok(header) => held.header = header,
                Err(error) => {
                    tracing::debug!(%error, "the token's file cannot be read; the last token stays");
                }
            }
            held.read_at = Some(Instant::now());
        }
        held.header.clone()
    }

    /// The API server has refused the token of a request.
    fn refused(&self, header: &HeaderValue) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.header == *header {
            held.read_at = None;
        }
    }
}

/// The header with the token in a file.
fn read_token(path: &Path) -> io::Result<HeaderValue> {
    let token = fs::read_to_string(path)?;
    let mut header = HeaderValue::try_from(format!("Bearer {}", token.trim()))
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    header.set_sensitive(true);
    Ok(header)
}

/// A client's service with the token of a file, and with pauses where callers look for them.
#[derive(Debug, Clone)]
struct Connection<S> {
    inner: S,
    token: Option<TokenFile>,
}

impl<S> Service<Request<Body>> for Connection<S>
where
    S: Service<Request<Body>, Response = Response<Box<DynBody>>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = Response<Box<DynBody>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let sent = self.token.clone().map(|token| {
            let header = token.header();
            request.headers_mut().insert(AUTHORIZATION, header.clone());
            (token, header)
        });
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await.map_err(Into::<BoxError>::into)?;
            if answer.status() == StatusCode::UNAUTHORIZED
                && let Some((token, header)) = &sent
            {
                token.refused(header);
            }
            with_pause(answer).await
        })
    }
}

/// The answer with the pause of its header in its Status. The API server's own limit of requests sends no Status.
async fn with_pause(answer: Response<Box<DynBody>>) -> Result<Response<Box<DynBody>>, BoxError> {
    let pause = answer.headers().get(RETRY_AFTER).and_then(|pause| pause.to_str().ok()?.parse::<u32>().ok());
    let (Some(pause), true) = (pause, answer.status().is_client_error() || answer.status().is_server_error())
    else {
        return Ok(answer);
    };
    let (mut head, body) = answer.into_parts();
    let text = body.collect().await?.to_bytes();
    let status = match serde_json::from_slice::<Value>(&text) {
        Ok(mut status) if status["kind"] == "Status" => {
            let known = status["details"]["retryAfterSeconds"].as_u64().unwrap_or_default();
            status["details"]["retryAfterSeconds"] = known.max(pause.into()).into();
            status
        }
        _ => {
            let text = String::from_utf8_lossy(&text);
            json!({
                "apiVersion": "v1",
                "kind": "Status",
                "status": "Failure",
                "code": head.status.as_u16(),
                "reason": head.status.canonical_reason().unwrap_or_default(),
                "message": crate::text::fit(text.trim(), TEXT_BYTES),
                "details": { "retryAfterSeconds": pause },
            })
        }
    };
    head.headers.remove(CONTENT_LENGTH);
    head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(Response::from_parts(head, whole(serde_json::to_vec(&status)?.into())))
}

/// A body of these bytes.
fn whole(bytes: Bytes) -> Box<DynBody> {
    Box::new(Full::new(bytes).map_err(|never| -> BoxError { match never {} }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Node;
    use kube::api::Api;
    use std::collections::VecDeque;
    use tower::service_fn;

    const NODE: &str = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}"#;

    /// A client whose requests have these answers, and the tokens that were sent.
    fn played(
        token: &TokenFile,
        answers: &[(u16, &'static str)],
    ) -> (Api<Node>, Arc<Mutex<Vec<HeaderValue>>>) {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&sent);
        let answers = Arc::new(Mutex::new(answers.iter().copied().collect::<VecDeque<_>>()));
        let inner = service_fn(move |request: Request<Body>| {
            kept.lock().unwrap().push(request.headers()[AUTHORIZATION].clone());
            let (code, body) = answers.lock().unwrap().pop_front().unwrap_or((200, NODE));
            let mut answer = Response::builder().status(code);
            if code == 429 {
                answer = answer.header(RETRY_AFTER, "7");
            }
            std::future::ready(answer.body(whole(Bytes::from(body))))
        });
        let connection = Connection { inner, token: Some(token.clone()) };
        (Api::all(Client::new(connection, "default")), sent)
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_read_again_after_a_minute_and_before_the_request_that_follows_a_refusal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let write = |token: &str| fs::write(&path, token).unwrap();
        write("first\n");
        let token = TokenFile::open(&path).unwrap();
        let (nodes, sent) = played(&token, &[(200, NODE), (401, "no"), (401, "no")]);
        nodes.get("n1").await.unwrap();
        write("second");
        nodes.get("n1").await.unwrap_err();
        nodes.get("n1").await.unwrap_err();
        // The file is away for a moment.
        fs::remove_file(&path).unwrap();
        nodes.get("n1").await.unwrap();
        write("third");
        nodes.get("n1").await.unwrap();
        tokio::time::advance(TOKEN_AGE).await;
        nodes.get("n1").await.unwrap();
        let sent: Vec<String> =
            sent.lock().unwrap().iter().map(|header| header.to_str().unwrap().to_owned()).collect();
        let bearer =
            ["first", "first", "second", "second", "second", "third"].map(|token| format!("Bearer {token}"));
        assert_eq!(sent, bearer);
        assert!(token.header().is_sensitive());
    }

    #[tokio::test]
    async fn a_pause_that_is_asked_for_in_a_header_is_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "token").unwrap();
        let token = TokenFile::open(&path).unwrap();
        let longer = r#"{"kind":"Status","code":429,"details":{"retryAfterSeconds":40}}"#;
        let (nodes, _) =
            played(&token, &[(429, "Too many requests, please try again later."), (429, longer)]);
        for wanted in [7, 40] {
            let kube::Error::Api(status) = nodes.get("n1").await.unwrap_err() else { panic!("no Status") };
            assert_eq!(status.code, 429);
            assert_eq!(status.details.as_ref().unwrap().retry_after_seconds, wanted);
        }
    }

    #[test]
    fn a_token_that_cannot_be_a_header_is_an_error_without_the_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "secret\nsecret").unwrap();
        let error = TokenFile::open(&path).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
