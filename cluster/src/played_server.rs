//! An API server for tests: it answers each request by a function, and keeps what it was asked.

use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;

/// The body of an answer.
type PlayedBody = UnsyncBoxBody<Bytes, Infallible>;

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct PlayedRequest {
    pub(crate) method: String,
    pub(crate) uri: String,
    pub(crate) body: Value,
}

impl PlayedRequest {
    /// The request's method and path.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.uri.split('?').next().unwrap())
    }
}

/// One answer.
#[derive(Debug, Clone)]
pub(crate) enum PlayedAnswer {
    /// An object.
    Json(Value),
    /// A status with this code and nothing else.
    Code(u16),
    /// A status.
    Status(Value),
    /// The object that was sent.
    Echo,
    /// None.
    Never,
    /// A watch without an event. It ends after the time that the request names.
    Watch,
}

/// What a played server was asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct PlayedLog(Arc<Mutex<Vec<PlayedRequest>>>);

impl PlayedLog {
    /// The requests since the last call.
    pub(crate) fn take(&self) -> Vec<PlayedRequest> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Their methods and paths.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.take().iter().map(PlayedRequest::line).collect()
    }
}

/// A client of a server that answers by this function.
pub(crate) fn played(
    mut answer: impl FnMut(&PlayedRequest) -> PlayedAnswer + Send + 'static,
) -> (Client, PlayedLog) {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<PlayedBody>>();
    let log = PlayedLog::default();
    let kept = log.clone();
    tokio::spawn(async move {
        let mut unanswered = Vec::new();
        while let Some((request, send)) = handle.next_request().await {
            let (head, body) = request.into_parts();
            let bytes = body.collect_bytes().await.unwrap();
            let asked = PlayedRequest {
                method: head.method.to_string(),
                uri: head.uri.to_string(),
                body: serde_json::from_slice(&bytes).unwrap_or_default(),
            };
            kept.0.lock().unwrap().push(asked.clone());
            let (code, value) = match answer(&asked) {
                PlayedAnswer::Watch => {
                    send.send_response(Response::new(silence(&asked)));
                    continue;
                }
                PlayedAnswer::Json(value) => (200, value),
                PlayedAnswer::Echo => (200, asked.body),
                PlayedAnswer::Code(code) => (
                    code,
                    serde_json::json!({"kind": "Status", "code": code, "message": "no", "reason": "No"}),
                ),
                PlayedAnswer::Status(value) => (value["code"].as_u64().unwrap().try_into().unwrap(), value),
                PlayedAnswer::Never => {
                    unanswered.push(send);
                    continue;
                }
            };
            let body = Full::from(serde_json::to_vec(&value).unwrap()).boxed_unsync();
            send.send_response(Response::builder().status(code).body(body).unwrap());
        }
    });
    (Client::new(service, "default"), log)
}

/// The body of an answer to a watch without an event.
fn silence(asked: &PlayedRequest) -> PlayedBody {
    let mut parameters = asked.uri.split(['?', '&']);
    let seconds = parameters.find_map(|parameter| parameter.strip_prefix("timeoutSeconds=")).unwrap();
    let end = sleep(Duration::from_secs(seconds.parse().unwrap()));
    let frames = stream::once(async move {
        end.await;
        Ok::<_, Infallible>(Frame::data(Bytes::new()))
    });
    StreamBody::new(frames).boxed_unsync()
}
