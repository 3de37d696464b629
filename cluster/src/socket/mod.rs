//! The client of the sensor's socket.
//!
//! In: the socket's path. Out: the node's status, the log's newest entry and its entries from a number on, or why there is no
//! answer. The client makes a connection when it needs one, limits the time and the size of every answer, and changes nothing on
//! the host. Pauses between attempts are the caller's.

mod error;
#[cfg(test)]
mod tests;

pub use error::SensorError;

use http_body_util::{BodyExt as _, Empty};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http1::{SendRequest, handshake},
    header::{ETAG, HOST, HeaderValue, IF_NONE_MATCH},
};
use hyper_util::rt::TokioIo;
use sensor_model::{
    socket::{self as contract, LogCheckpoint, SocketErrorReason},
    status::{self, NodeStatus},
};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::{net::UnixStream, task::JoinHandle, time::timeout};

/// Most bytes of an error or a log checkpoint.
const SMALL_BYTES: usize = 64 << 10;

/// Longest time until the whole answer is here, without the time that the request asks to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The sensor's socket.
#[derive(Debug)]
pub struct SensorSocket {
    path: PathBuf,
    connection: Option<Connection>,
}

/// An answer with its tag, which changes with the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Tagged<T> {
    /// The answer.
    pub body: T,
    /// Its tag, for the next request.
    pub tag: String,
}

impl SensorSocket {
    /// The socket at a path. Nothing is connected yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), connection: None }
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The node's status. With the tag of an earlier answer: the status as soon as it differs, or `None` if it is still the same
    /// after the wait.
    ///
    /// # Errors
    /// Why there is no status.
    pub async fn status(
        &mut self,
        known: Option<&str>,
        wait: Duration,
    ) -> Result<Option<Tagged<NodeStatus>>, SensorError> {
        let answer = self.get(contract::STATUS, known, wait, contract::STATUS_BYTES).await?;
        if answer.status() == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        let tag = answer.headers().get(ETAG).and_then(|tag| tag.to_str().ok()).unwrap_or_default().to_owned();
        let body: NodeStatus = parsed(contract::STATUS, answer.body())?;
        if body.schema != status::SCHEMA {
            return Err(SensorError::Schema { request: contract::STATUS, schema: body.schema });
        }
        Ok(Some(Tagged { body, tag }))
    }

    /// The newest entry of the forensic log; `None` if the log has none.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn log(&mut self) -> Result<Option<LogCheckpoint>, SensorError> {
        let answer = match self.get(contract::LOG, None, Duration::ZERO, SMALL_BYTES).await {
            Err(SensorError::Refused { error, .. }) if error.reason == SocketErrorReason::NoEntry => {
                return Ok(None);
            }
            answer => answer?,
        };
        let checkpoint: LogCheckpoint = parsed(contract::LOG, answer.body())?;
        if checkpoint.schema != contract::LOG_CHECKPOINT_SCHEMA {
            return Err(SensorError::Schema { request: contract::LOG, schema: checkpoint.schema });
        }
        Ok(Some(checkpoint))
    }

    /// The entries of the forensic log from this number on, as they stand in the log; as many as one answer has. Waits for the
    /// first one.
    ///
    /// # Errors
    /// Why there is no answer. The reason `Gone` has the number of the oldest entry.
    pub async fn records(&mut self, from: u64, wait: Duration) -> Result<Vec<String>, SensorError> {
        let target = format!("{}?{}={from}", contract::RECORDS, contract::FROM);
        // One entry may be longer than the answer's limit.
        let answer = self.get(&target, None, wait, contract::RECORDS_BYTES + SMALL_BYTES).await?;
        let text = std::str::from_utf8(answer.body())
            .map_err(|error| SensorError::NoText { request: contract::RECORDS, error })?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// One answer with a status code of success, or `304 Not Modified`.
    async fn get(
        &mut self,
        target: &str,
        known: Option<&str>,
        wait: Duration,
        limit: usize,
    ) -> Result<Response<Bytes>, SensorError> {
        let limited = timeout(wait + ANSWER_TIMEOUT, self.get_on_any(target, known, wait, limit)).await;
        let answer = limited.unwrap_or(Err(SensorError::NoAnswer { path: self.path.clone() }));
        // Whatever is left of this answer must not become the beginning of the next one.
        if !matches!(answer, Ok(_) | Err(SensorError::Refused { .. })) {
            self.connection = None;
        }
        answer
    }

    /// One answer on the present connection. The sensor may have closed it meanwhile: then on a new one.
    async fn get_on_any(
        &mut self,
        target: &str,
        known: Option<&str>,
        wait: Duration,
        limit: usize,
    ) -> Result<Response<Bytes>, SensorError> {
        if let Some(connection) = self.connection.as_mut().filter(|connection| !connection.sender.is_closed())
        {
            match exchange(connection, target, known, wait, limit).await {
                Err(SensorError::Broken { .. }) => {}
                answer => return answer,
            }
        }
        let connection = self.connection.insert(Connection::open(&self.path).await?);
        exchange(connection, target, known, wait, limit).await
    }
}

/// An open connection, and the task that moves its bytes.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    driver: JoinHandle<()>,
}

impl Connection {
    async fn open(path: &Path) -> Result<Self, SensorError> {
        let connected = UnixStream::connect(path).await;
        let stream = connected.map_err(|error| SensorError::Connect { path: path.to_path_buf(), error })?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(async move {
            // The request that is under way reports the error.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the sensor ended");
            }
        });
        Ok(Self { sender, driver })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// One request and its whole answer.
async fn exchange(
    connection: &mut Connection,
    target: &str,
    known: Option<&str>,
    wait: Duration,
    limit: usize,
) -> Result<Response<Bytes>, SensorError> {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = target.parse().map_err(|_| SensorError::Tag)?;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_static("holdfast"));
    if let Some(tag) = known {
        headers.insert(IF_NONE_MATCH, HeaderValue::from_str(tag).map_err(|_| SensorError::Tag)?);
    }
    if wait > Duration::ZERO {
        let prefer = contract::prefer_wait(wait.as_secs());
        headers.insert(contract::PREFER, HeaderValue::from_str(&prefer).map_err(|_| SensorError::Tag)?);
    }
    connection.sender.ready().await?;
    let (head, body) = connection.sender.send_request(request).await?.into_parts();
    let is_answer = head.status.is_success() || head.status == StatusCode::NOT_MODIFIED;
    let bytes = bounded(body, target, if is_answer { limit } else { SMALL_BYTES }).await?;
    if is_answer {
        return Ok(Response::from_parts(head, bytes));
    }
    Err(match serde_json::from_slice(&bytes) {
        Ok(error) => SensorError::Refused { request: target.to_owned(), error },
        Err(_) => SensorError::Code { request: target.to_owned(), code: head.status.as_u16() },
    })
}

/// A body of at most this many bytes.
async fn bounded(mut body: Incoming, request: &str, limit: usize) -> Result<Bytes, SensorError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame?.data_ref() {
            if bytes.len() + data.len() > limit {
                return Err(SensorError::TooLong { request: request.to_owned(), limit });
            }
            bytes.extend_from_slice(data);
        }
    }
    Ok(bytes.into())
}

fn parsed<T: serde::de::DeserializeOwned>(request: &'static str, body: &[u8]) -> Result<T, SensorError> {
    serde_json::from_slice(body).map_err(|error| SensorError::Invalid { request, error })
}
