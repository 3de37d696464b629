//! The answers of the TLS port.
//!
//! In: the head of a request. Out: the page of metrics, or an answer of the sensor, if the caller has the right to it. Only `GET` and
//! `HEAD` are answered. Requests to the sensor are limited in number, and their answers in size.

use super::authorizer::{Access, Authorizer, Denial};
use crate::metrics::{CONTENT_TYPE as METRICS_TYPE, END, ReporterMetrics};
use crate::socket::{SensorError, SensorSocket};
use http_body_util::Full;
use hyper::{
    Method, Response, StatusCode, Uri,
    body::Bytes,
    header::{
        AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, IF_NONE_MATCH, WWW_AUTHENTICATE,
    },
    http::request::Parts,
};
use sensor_model::socket::{
    self as contract, APPLY, CONFIG, FROM, JSON, LOG, METRICS, RECORDS, STATUS, wait_of,
};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Most requests for metrics that are with the sensor at once.
const SCRAPES: usize = 2;
/// Most other requests that are with the sensor at once. They may wait for news.
const QUESTIONS: usize = 4;
/// The reporter's own connections: for the status, the policies, the log, and in the mode `manage` the progress and the orders.
const OWN: usize = 5;

// Callers must not take the reporter's own connections.
const _: () = assert!(SCRAPES + QUESTIONS + OWN < contract::CONNECTIONS);

/// The pages of a node.
#[derive(Debug)]
pub struct Pages {
    authorizer: Authorizer,
    metrics: ReporterMetrics,
    socket: PathBuf,
    scrapes: Semaphore,
    questions: Semaphore,
}

impl Pages {
    /// Pages from the sensor at this socket.
    pub fn new(authorizer: Authorizer, metrics: ReporterMetrics, socket: PathBuf) -> Self {
        Self {
            authorizer,
            metrics,
            socket,
            scrapes: Semaphore::new(SCRAPES),
            questions: Semaphore::new(QUESTIONS),
        }
    }

    /// The answer to one request.
    pub(crate) async fn answer(&self, head: &Parts) -> Response<Full<Bytes>> {
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return refusal(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "only GET and HEAD");
        }
        // An unknown path is not worth a question to the API server, and tells nothing about the node.
        let access = match head.uri.path() {
            METRICS => Access::Metrics,
            // With `GET` the sensor gives the newest plan and its progress. No caller hands in a config or orders an apply.
            STATUS | RECORDS | LOG | CONFIG | APPLY => Access::Log,
            _ => {
                let text =
                    "the pages are /metrics, /v1/status, /v1/records, /v1/log, /v1/config and /v1/apply";
                return refusal(StatusCode::NOT_FOUND, "NotFound", text);
            }
        };
        let Some(token) = bearer(&head.headers) else {
            let text = "the request has no bearer token in its header `Authorization`";
            return unauthenticated(text);
        };
        if let Err(denial) = self.authorizer.decide(token, access).await {
            let text = denial.to_string();
            return match denial {
                Denial::Unauthenticated => unauthenticated(&text),
                Denial::NoMetrics | Denial::NoLog => refusal(StatusCode::FORBIDDEN, "Forbidden", &text),
                Denial::Undecided => refusal(StatusCode::SERVICE_UNAVAILABLE, "Undecided", &text),
            };
        }
        match access {
            Access::Metrics => self.metrics_page().await,
            Access::Log => self.pass(&head.uri, &head.headers).await,
        }
    }

    /// The sensor's metrics and the reporter's. Without the sensor only the reporter's, which say so.
    async fn metrics_page(&self) -> Response<Full<Bytes>> {
        let Ok(_slot) = self.scrapes.acquire().await else { return busy() };
        let own = self.metrics.page();
        let page = match SensorSocket::new(&self.socket).pass(METRICS, None, Duration::ZERO).await {
            Ok(answer) => joined(&String::from_utf8_lossy(answer.body()), &own),
            Err(error) => {
                tracing::debug!(%error, "the sensor gives no metrics");
                own
            }
        };
        let mut response = Response::new(Full::new(Bytes::from(page)));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(METRICS_TYPE));
        response
    }

    /// The sensor's answer to the same request.
    async fn pass(&self, uri: &Uri, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let Ok(_slot) = self.questions.try_acquire() else { return busy() };
        // Only what the contract knows reaches the sensor.
        let target = match (uri.path(), from(uri)) {
            (RECORDS, Some(from)) => format!("{RECORDS}?{FROM}={from}"),
            (path, _) => path.to_owned(),
        };
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let known = text(IF_NONE_MATCH.as_str());
        let wait = text(contract::PREFER).and_then(wait_of).unwrap_or_default();
        let answer = SensorSocket::new(&self.socket).pass(&target, known, Duration::from_secs(wait)).await;
        match answer {
            Ok(answer) => no_store(answer.map(Full::new)),
            Err(SensorError::Refused { error, .. }) => {
                let code = StatusCode::from_u16(error.reason.status_code());
                let body = serde_json::to_vec(&error).unwrap_or_default();
                json_response(code.unwrap_or(StatusCode::BAD_GATEWAY), body)
            }
            Err(error) => {
                tracing::debug!(%error, "the sensor does not answer a caller");
                let text = "the node's sensor gives no usable answer; see the log of the reporter";
                refusal(StatusCode::BAD_GATEWAY, "SensorSilent", text)
            }
        }
    }
}

/// The number in the query of a request for entries.
fn from(uri: &Uri) -> Option<u64> {
    let query = uri.query()?;
    let value = query.split('&').find_map(|pair| pair.strip_prefix(FROM)?.strip_prefix('='))?;
    value.parse().ok()
}

/// The token of the header `Authorization`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Two pages as one: only the last line may be [`END`].
fn joined(first: &str, second: &str) -> String {
    let mut page = first.strip_suffix(END).unwrap_or(first).to_owned();
    if !page.is_empty() && !page.ends_with('\n') {
        page.push('\n');
    }
    page.push_str(second);
    page
}

fn busy() -> Response<Full<Bytes>> {
    refusal(StatusCode::SERVICE_UNAVAILABLE, "Busy", "too many requests are with the sensor; try again")
}

fn unauthenticated(text: &str) -> Response<Full<Bytes>> {
    let mut response = refusal(StatusCode::UNAUTHORIZED, "Unauthenticated", text);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// An error in the form of the sensor's: a reason for programs and one for people.
fn refusal(code: StatusCode, reason: &str, text: &str) -> Response<Full<Bytes>> {
    json_response(code, json!({ "reason": reason, "error": text }).to_string())
}

fn json_response(code: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    no_store(response)
}

fn no_store(mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_pages_of_metrics_end_once() {
        assert_eq!(joined("a 1\n# EOF\n", "b 2\n# EOF\n"), "a 1\nb 2\n# EOF\n");
        assert_eq!(joined("", "b 2\n# EOF\n"), "b 2\n# EOF\n");
        assert_eq!(joined("a 1", "b 2\n# EOF\n"), "a 1\nb 2\n# EOF\n");
    }

    #[test]
    fn only_a_bearer_token_is_one() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(of("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(of("bearer  abc").as_deref(), Some("abc"));
        for other in ["Bearer ", "Bearer", "Basic abc", "abc"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn the_number_of_the_first_entry_is_read_from_the_query() {
        let of = |uri: &str| from(&uri.parse().unwrap());
        assert_eq!(of("/v1/records?from=7"), Some(7));
        assert_eq!(of("/v1/records?x=1&from=7"), Some(7));
        for other in ["/v1/records", "/v1/records?from=", "/v1/records?from=-1", "/v1/records?fromage=1"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
