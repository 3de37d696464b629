//! The client of the sensor's socket.
//!
//! In: the socket's path, policies, and in mode `manage` configs and orders. Out: the node's status, the log's newest entry, its entries from a
//! number on, a plan and the progress of an apply, or why there is no answer. The client makes a connection when it needs one, and
//! limits the time and the size of every answer. Pauses between attempts are the caller's.

mod error;
#[cfg(test)]
mod tests;

pub use error::SensorError;

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http1::{SendRequest, handshake},
    header::{CONTENT_TYPE, ETAG, HOST, HeaderValue, IF_NONE_MATCH},
};
use hyper_util::rt::TokioIo;
use sensor_model::{
    socket::{
        self as contract, ApplyOrder, ApplyProgress, ClusterPolicies, DesiredConfig, LogCheckpoint,
        PlannedConfig, SocketErrorReason, TakenPolicies,
    },
    status::{self, NodeStatus},
};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::{net::UnixStream, task::JoinHandle, time::timeout};

/// Most bytes of an error or a log checkpoint.
const SMALL_BYTES: usize = 64 << 10;

/// Longest time until the whole answer is here, without the time that the request asks to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time in which the sensor makes a plan.
const PLAN_TIMEOUT: Duration = Duration::from_mins(1);

/// Most bytes of a planned config: a change may name each of the config's things.
const PLAN_BYTES: usize = 8 << 20;

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
        let tag = tag(&answer);
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

    /// Hands the drift policies of the cluster to the sensor, in place of those before.
    ///
    /// # Errors
    /// Why they are not in force.
    pub async fn put_policies(&mut self, policies: &ClusterPolicies) -> Result<TakenPolicies, SensorError> {
        let body = sent(contract::POLICIES, policies)?;
        if body.len() > contract::POLICIES_BYTES {
            let what = format!("the {} policies that select this node", policies.policies.len());
            return Err(SensorError::too_large(contract::POLICIES, &what, &body, contract::POLICIES_BYTES));
        }
        let asked = Asked { method: Method::PUT, body, ..Asked::get(contract::POLICIES, SMALL_BYTES) };
        let taken: TakenPolicies = parsed(contract::POLICIES, self.ask(asked).await?.body())?;
        if taken.schema != contract::TAKEN_POLICIES_SCHEMA {
            return Err(SensorError::Schema { request: contract::POLICIES, schema: taken.schema });
        }
        Ok(taken)
    }

    /// Hands a config to the sensor. Nothing on the host changes. Gives its plan.
    ///
    /// # Errors
    /// Why there is no plan.
    pub async fn put_config(&mut self, config: &DesiredConfig) -> Result<PlannedConfig, SensorError> {
        let body = sent(contract::CONFIG, config)?;
        if body.len() > contract::CONFIG_BYTES {
            let what = "the MachineConfig with the node disruption policy";
            return Err(SensorError::too_large(contract::CONFIG, what, &body, contract::CONFIG_BYTES));
        }
        let asked = Asked {
            method: Method::PUT,
            body,
            time: PLAN_TIMEOUT,
            ..Asked::get(contract::CONFIG, PLAN_BYTES)
        };
        let planned: PlannedConfig = parsed(contract::CONFIG, self.ask(asked).await?.body())?;
        if planned.schema != contract::PLANNED_CONFIG_SCHEMA {
            return Err(SensorError::Schema { request: contract::CONFIG, schema: planned.schema });
        }
        Ok(planned)
    }

    /// Orders the apply of the newest config that the sensor got, by its id.
    ///
    /// # Errors
    /// Why the sensor does not apply it.
    pub async fn apply(&mut self, id: &str) -> Result<ApplyProgress, SensorError> {
        let body = sent(contract::APPLY, &ApplyOrder { id: id.to_owned() })?;
        let asked = Asked { method: Method::POST, body, ..Asked::get(contract::APPLY, SMALL_BYTES) };
        progress(&self.ask(asked).await?)
    }

    /// The progress of the newest order. With the tag of an earlier answer: the progress as soon as it differs, or `None` if it is
    /// still the same after the wait.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn progress(
        &mut self,
        known: Option<&str>,
        wait: Duration,
    ) -> Result<Option<Tagged<ApplyProgress>>, SensorError> {
        let answer = self.get(contract::APPLY, known, wait, SMALL_BYTES).await?;
        if answer.status() == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        Ok(Some(Tagged { body: progress(&answer)?, tag: tag(&answer) }))
    }

    /// The sensor's answer to a request of another client, as it is: its head and its bytes.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn pass(
        &mut self,
        target: &str,
        known: Option<&str>,
        wait: Duration,
    ) -> Result<Response<Bytes>, SensorError> {
        let mut answer = self.get(target, known, wait, contract::STATUS_BYTES).await?;
        // Headers about the connection are not the next one's.
        let kept =
            [ETAG, CONTENT_TYPE].map(|name| answer.headers_mut().remove(&name).map(|value| (name, value)));
        *answer.headers_mut() = kept.into_iter().flatten().collect();
        Ok(answer)
    }

    /// One answer with a status code of success, or `304 Not Modified`.
    async fn get(
        &mut self,
        target: &str,
        known: Option<&str>,
        wait: Duration,
        limit: usize,
    ) -> Result<Response<Bytes>, SensorError> {
        self.ask(Asked { known, wait, ..Asked::get(target, limit) }).await
    }

    async fn ask(&mut self, asked: Asked<'_>) -> Result<Response<Bytes>, SensorError> {
        let limited = timeout(asked.wait + asked.time, self.ask_on_any(&asked)).await;
        let answer = limited.unwrap_or(Err(SensorError::NoAnswer { path: self.path.clone() }));
        // Whatever is left of this answer must not become the beginning of the next one.
        if !matches!(answer, Ok(_) | Err(SensorError::Refused { .. })) {
            self.connection = None;
        }
        answer
    }

    /// One answer on the present connection. The sensor may have closed it meanwhile: then on a new one.
    async fn ask_on_any(&mut self, asked: &Asked<'_>) -> Result<Response<Bytes>, SensorError> {
        if let Some(connection) = self.connection.as_mut().filter(|connection| !connection.sender.is_closed())
        {
            match exchange(connection, asked).await {
                Err(SensorError::Broken { .. }) => {}
                answer => return answer,
            }
        }
        let connection = self.connection.insert(Connection::open(&self.path).await?);
        exchange(connection, asked).await
    }
}

/// One request.
#[derive(Debug, Clone)]
struct Asked<'a> {
    method: Method,
    target: &'a str,
    body: Bytes,
    /// The tag of an earlier answer.
    known: Option<&'a str>,
    /// The time that the request asks the sensor to wait.
    wait: Duration,
    /// The longest time of the answer, without the wait.
    time: Duration,
    /// Most bytes of the answer.
    limit: usize,
}

impl<'a> Asked<'a> {
    fn get(target: &'a str, limit: usize) -> Self {
        Self {
            method: Method::GET,
            target,
            body: Bytes::new(),
            known: None,
            wait: Duration::ZERO,
            time: ANSWER_TIMEOUT,
            limit,
        }
    }
}

/// An open connection, and the task that moves its bytes.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
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
async fn exchange(connection: &mut Connection, asked: &Asked<'_>) -> Result<Response<Bytes>, SensorError> {
    let &Asked { target, known, wait, limit, .. } = asked;
    let mut request = Request::new(Full::new(asked.body.clone()));
    request.method_mut().clone_from(&asked.method);
    *request.uri_mut() = target.parse().map_err(|_| SensorError::Tag)?;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_static("holdfast"));
    if !asked.body.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(contract::JSON));
    }
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

/// The body of a request.
fn sent<T: serde::Serialize>(request: &'static str, body: &T) -> Result<Bytes, SensorError> {
    let body = serde_json::to_vec(body).map_err(|error| SensorError::Invalid { request, error })?;
    Ok(body.into())
}

fn tag(answer: &Response<Bytes>) -> String {
    answer.headers().get(ETAG).and_then(|tag| tag.to_str().ok()).unwrap_or_default().to_owned()
}

fn progress(answer: &Response<Bytes>) -> Result<ApplyProgress, SensorError> {
    let progress: ApplyProgress = parsed(contract::APPLY, answer.body())?;
    if progress.schema != contract::APPLY_PROGRESS_SCHEMA {
        return Err(SensorError::Schema { request: contract::APPLY, schema: progress.schema });
    }
    Ok(progress)
}

fn parsed<T: serde::de::DeserializeOwned>(request: &'static str, body: &[u8]) -> Result<T, SensorError> {
    serde_json::from_slice(body).map_err(|error| SensorError::Invalid { request, error })
}
