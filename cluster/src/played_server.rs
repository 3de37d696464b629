//! An API server for tests: it answers each request by a function, and keeps what it was asked.

use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use std::sync::{Arc, Mutex};

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) uri: String,
    pub(crate) body: Value,
}

impl Asked {
    /// The request's method and path.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.uri.split('?').next().unwrap())
    }
}

/// One answer.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
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
pub(crate) struct Log(Arc<Mutex<Vec<Asked>>>);

impl Log {
    /// The requests since the last call.
    pub(crate) fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Their methods and paths.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.take().iter().map(Asked::line).collect()
    }
}

/// A client of a server that answers by this function.
pub(crate) fn played(mut answer: impl FnMut(&Asked) -> Answer + Send + 'static) -> (Client, Log) {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let log = Log::default();
    let kept = log.clone();
    tokio::spawn(async move {
        let mut unanswered = Vec::new();
        while let Some((request, send)) = handle.next_request().await {
            let (head, body) = request.into_parts();
            let bytes = body.collect_bytes().await.unwrap();
            let asked = Asked {
                method: head.method.to_string(),
                uri: head.uri.to_string(),
                body: serde_json::from_slice(&bytes).unwrap_or_default(),
            };
            kept.0.lock().unwrap().push(asked.clone());
            let (code, value) = match answer(&asked) {
                Answer::Json(value) => (200, value),
                Answer::Echo => (200, asked.body),
                Answer::Code(code) => (
                    code,
                    serde_json::json!({"kind": "Status", "code": code, "message": "no", "reason": "No"}),
                ),
                Answer::Status(value) => (value["code"].as_u64().unwrap().try_into().unwrap(), value),
                Answer::Never => {
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
