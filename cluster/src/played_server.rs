//! An API server for tests: it answers each request by a function, and keeps what it was asked.

use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use std::sync::{Arc, Mutex};

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
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
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
            let body = Body::from(serde_json::to_vec(&value).unwrap());
            send.send_response(Response::builder().status(code).body(body).unwrap());
        }
    });
    (Client::new(service, "default"), log)
}
