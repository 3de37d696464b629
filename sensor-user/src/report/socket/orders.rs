//! The requests that change something: drift policies, a config, and the order to apply it.
//!
//! In: a request with its body, and implementations of [`PolicyOrders`] and [`ConfigOrders`]. Out: an answer as
//! [`sensor_model::socket`] describes it. A mode without an implementation refuses the requests that need it.

use super::answers::{Answer, Patience, body, json, refused};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, ETAG, HeaderValue, IF_NONE_MATCH};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use sensor_model::socket::{
    APPLY, ApplyOrder, ApplyProgress, CONFIG, CONFIG_BYTES, HEADER_SECONDS, JSON, POLICIES, POLICIES_BYTES,
    PlannedConfig, SocketError, SocketErrorReason, TakenPolicies,
};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Most bytes of an order.
const ORDER_BYTES: usize = 1 << 10;

/// Most bytes of a body that are read and thrown away.
const UNUSED_BYTES: usize = 4 * CONFIG_BYTES;

/// Longest time until a peer has sent a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(2 * HEADER_SECONDS);

/// Most orders, and most questions, that are worked on at once. A peer that closes its connection ends neither the thread of its request nor
/// the memory of its body, so without a limit one peer could fill the node's memory.
const WORKING: usize = 4;

/// The pause between two questions about the progress, for a request that waits.
const PAUSE: Duration = Duration::from_millis(500);

/// Takes the drift policies of the cluster, in the modes `observe` and `manage`.
pub trait PolicyOrders: Debug + Send + Sync {
    /// Checks a [`sensor_model::socket::ClusterPolicies`], and puts it in force in place of the one before.
    ///
    /// # Errors
    /// Why it is refused. The one before stays in force.
    fn take(&self, policies: &[u8]) -> Result<TakenPolicies, SocketError>;
}

/// What the daemon's mode lets a reporter order.
#[derive(Debug, Clone, Default)]
pub struct ReporterOrders {
    /// In the modes `observe` and `manage`.
    pub policies: Option<Arc<dyn PolicyOrders>>,
    /// In the mode `manage`.
    pub configs: Option<Arc<dyn ConfigOrders>>,
}

/// The requests that are worked on. Questions have places of their own: while a config is planned, questions wait for the end of that, and
/// must not delay the other requests of the reporter.
#[derive(Debug, Clone)]
pub(super) struct Working {
    orders: Arc<Semaphore>,
    questions: Arc<Semaphore>,
}

/// What a request does.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// It hands something in, or orders an apply.
    Order,
    /// It asks for the plan or the progress.
    Question,
}

impl Default for Working {
    fn default() -> Self {
        let places = || Arc::new(Semaphore::new(WORKING));
        Self { orders: places(), questions: places() }
    }
}

impl Working {
    /// Works in another thread, once there is a place. A request that waits for one ends with its connection.
    async fn work<T: Serialize + Send + 'static>(
        &self,
        kind: Work,
        status: StatusCode,
        work: impl FnOnce() -> Result<T, SocketError> + Send + 'static,
    ) -> Answer {
        let places = match kind {
            Work::Order => &self.orders,
            Work::Question => &self.questions,
        };
        let place = Arc::clone(places).acquire_owned().await;
        let done = spawn_blocking(move || {
            let done = work();
            drop(place);
            done
        });
        match done.await {
            Ok(Ok(value)) => json(status, &value),
            Ok(Err(error)) => refused(error.reason, error.error),
            Err(error) => {
                tracing::error!(%error, "The thread of a request of the reporter ended early.");
                refused(SocketErrorReason::NotReady, "the daemon could not work on the request".to_owned())
            }
        }
    }
}

/// What a reporter may ask for in the mode `manage`. Each call may take seconds.
pub trait ConfigOrders: Debug + Send + Sync {
    /// Checks and keeps a [`sensor_model::socket::DesiredConfig`], and plans the way to it.
    ///
    /// # Errors
    /// Why it is refused.
    fn plan(&self, config: &[u8]) -> Result<PlannedConfig, SocketError>;

    /// The plan of the newest config that has one, also after its apply.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    fn newest_plan(&self) -> Result<PlannedConfig, SocketError>;

    /// Begins the apply of the newest planned config.
    ///
    /// # Errors
    /// Why it does not begin.
    fn begin(&self, order: &ApplyOrder) -> Result<ApplyProgress, SocketError>;

    /// The progress of the newest order. An apply whose process ended early is continued.
    fn progress(&self) -> ApplyProgress;
}

/// Whether a request is one of these.
pub(super) fn is_order(path: &str) -> bool {
    [POLICIES, CONFIG, APPLY].contains(&path)
}

/// The answer to a request. One that waits gets its answer early when the value of `stop` is `true`.
pub(super) async fn answer(
    orders: ReporterOrders,
    working: &Working,
    request: &Parts,
    mut content: Incoming,
    stop: watch::Receiver<bool>,
) -> Answer {
    let answer = answer_to(orders, working, request, &mut content, stop).await;
    // A peer that cannot send the rest of a body takes the connection for broken, and never reads why it was refused.
    throw_away(content).await;
    answer
}

/// Reads the rest of a body that nothing needs, up to a limit.
async fn throw_away(mut content: Incoming) {
    let all = async {
        let mut read = 0;
        while let Some(Ok(frame)) = content.frame().await {
            read += frame.data_ref().map_or(0, Bytes::len);
            if read > UNUSED_BYTES {
                return;
            }
        }
    };
    if timeout(BODY_TIMEOUT, all).await.is_err() {
        tracing::debug!("the rest of a body of the reporter did not come in time");
    }
}

async fn answer_to(
    orders: ReporterOrders,
    working: &Working,
    request: &Parts,
    content: &mut Incoming,
    stop: watch::Receiver<bool>,
) -> Answer {
    if request.uri.path() == POLICIES {
        return policies(orders.policies, working, request, content).await;
    }
    let patience = Patience::of(&request.headers, stop);
    let Some(orders) = orders.configs else {
        let error = "the daemon does not run with `--mode manage`".to_owned();
        return refused(SocketErrorReason::NotManaged, error);
    };
    match (request.uri.path(), &request.method) {
        (CONFIG, &Method::PUT) => match read(content, CONFIG_BYTES).await {
            Ok(config) => working.work(Work::Order, StatusCode::OK, move || orders.plan(&config)).await,
            Err(refusal) => refusal,
        },
        (CONFIG, &(Method::GET | Method::HEAD)) => {
            working.work(Work::Question, StatusCode::OK, move || orders.newest_plan()).await
        }
        (APPLY, &Method::POST) => match read(content, ORDER_BYTES).await {
            Ok(order) => match serde_json::from_slice::<ApplyOrder>(&order) {
                Ok(order) => {
                    working.work(Work::Order, StatusCode::ACCEPTED, move || orders.begin(&order)).await
                }
                Err(_) => refused(SocketErrorReason::InvalidRequest, "the body has no field `id`".to_owned()),
            },
            Err(refusal) => refusal,
        },
        (APPLY, &(Method::GET | Method::HEAD)) => progress(orders, working, request, patience).await,
        (CONFIG, _) => only("GET, HEAD, PUT"),
        _ => only("GET, HEAD, POST"),
    }
}

async fn policies(
    orders: Option<Arc<dyn PolicyOrders>>,
    working: &Working,
    request: &Parts,
    content: &mut Incoming,
) -> Answer {
    let Some(orders) = orders else {
        let error = "the daemon's mode takes no policies: start it with `--mode observe` or `--mode manage`";
        return refused(SocketErrorReason::NotManaged, error.to_owned());
    };
    if request.method != Method::PUT {
        return only("PUT");
    }
    match read(content, POLICIES_BYTES).await {
        Ok(policies) => working.work(Work::Order, StatusCode::OK, move || orders.take(&policies)).await,
        Err(refusal) => refusal,
    }
}

/// The answer to a method that the path does not have.
fn only(allowed: &'static str) -> Answer {
    let mut answer = refused(SocketErrorReason::MethodNotAllowed, format!("only {allowed}"));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

/// The whole body, if it is not too large and comes in time.
async fn read(content: &mut Incoming, limit: usize) -> Result<Bytes, Answer> {
    match timeout(BODY_TIMEOUT, Limited::new(content, limit).collect()).await {
        Ok(Ok(read)) => Ok(read.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(refused(SocketErrorReason::TooLarge, format!("the body has more than {limit} bytes")))
        }
        Ok(Err(_)) => Err(refused(SocketErrorReason::InvalidRequest, "the body ended early".to_owned())),
        Err(_) => Err(refused(SocketErrorReason::InvalidRequest, "the body did not come in time".to_owned())),
    }
}

/// The progress as soon as it differs from what the peer knows.
async fn progress(
    orders: Arc<dyn ConfigOrders>,
    working: &Working,
    request: &Parts,
    mut patience: Patience,
) -> Answer {
    let known = request.headers.get(IF_NONE_MATCH).and_then(|tag| tag.to_str().ok()).unwrap_or_default();
    loop {
        let asked = Arc::clone(&orders);
        let answer = working.work(Work::Question, StatusCode::OK, move || Ok(asked.progress())).await;
        if answer.status() != StatusCode::OK {
            return answer;
        }
        let content = match answer.into_body().collect().await {
            Ok(content) => content.to_bytes(),
            Err(never) => match never {},
        };
        let tag = format!("\"{}\"", hex::encode(&Sha256::digest(&content)[..8]));
        let is_known = known.split(',').any(|known| known.trim() == tag);
        if is_known && patience.pause(PAUSE).await {
            continue;
        }
        let mut answer = if is_known {
            body(StatusCode::NOT_MODIFIED, None, Bytes::new())
        } else {
            body(StatusCode::OK, Some(JSON), content)
        };
        answer.headers_mut().extend(HeaderValue::try_from(tag).ok().map(|tag| (ETAG, tag)));
        return answer;
    }
}
