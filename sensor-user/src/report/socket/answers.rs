//! The answers to the reporter's requests.
//!
//! In: a request, the newest status, the newest entry of the log, the pages. Out: an answer as [`sensor_model::socket`] describes
//! it. A request that waits holds no resource but its connection. Nothing here changes anything; `orders` does.

use super::published::{Published, StatusVersion};
use crate::report::forensic::{EntriesFrom, NewestEntry, ReadError, entries_from};
use crate::report::http::{self, Pages};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use sensor_model::socket::{
    APPLY, CONFIG, FROM, HEALTH, JSON, JSON_LINES, LOG, LONGEST_WAIT_SECONDS, METRICS, PREFER, READY,
    RECORDS, RECORDS_BYTES, STATUS, SocketError, SocketErrorReason, wait_of,
};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// An answer, whole in memory.
pub(super) type Answer = Response<Full<Bytes>>;

/// What the answers are made of.
#[derive(Debug, Clone)]
pub(in crate::report) struct Answers {
    /// The newest status.
    pub(in crate::report) published: Published,
    /// The newest entry of the log.
    pub(in crate::report) newest: watch::Receiver<NewestEntry>,
    /// The directory of the log.
    pub(in crate::report) log: PathBuf,
    /// The pages that a daemon with an address shows, too.
    pub(in crate::report) pages: Pages,
}

/// When a request stops waiting: at its time, or when the daemon ends.
pub(super) struct Patience {
    until: Instant,
    stop: watch::Receiver<bool>,
}

impl Patience {
    /// As long as a request prefers to wait.
    pub(super) fn of(headers: &HeaderMap, stop: watch::Receiver<bool>) -> Self {
        let mut preferences = headers.get_all(PREFER).iter();
        let wait = preferences.find_map(|value| wait_of(value.to_str().ok()?)).unwrap_or(0);
        Self { until: Instant::now() + Duration::from_secs(wait), stop }
    }

    /// Waits for a new value, at most this long. Gives `false` if none came and the request waits no more.
    async fn changed<T>(&mut self, receiver: &mut watch::Receiver<T>, at_most: Duration) -> bool {
        let Self { until, stop } = self;
        let end = (*until).min(Instant::now() + at_most);
        let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
        tokio::select! {
            biased;
            () = stopped => false,
            changed = receiver.changed() => changed.is_ok(),
            () = sleep_until(end) => end < *until,
        }
    }

    /// Waits this long. Gives `false` if the request waits no more.
    pub(super) async fn pause(&mut self, time: Duration) -> bool {
        let Self { until, stop } = self;
        let end = (*until).min(Instant::now() + time);
        let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
        tokio::select! {
            biased;
            () = stopped => false,
            () = sleep_until(end) => end < *until,
        }
    }
}

impl Answers {
    /// The answer to a request that changes nothing. A request that waits gets its answer early when the value of `stop` is `true`.
    pub(super) async fn answer(&self, request: &Parts, stop: watch::Receiver<bool>) -> Answer {
        let path = request.uri.path();
        if [METRICS, HEALTH, READY].contains(&path) {
            return http::respond(&request.method, path, &self.pages);
        }
        if ![STATUS, RECORDS, LOG].contains(&path) {
            return refused(
                SocketErrorReason::NotFound,
                format!(
                    "the paths are {STATUS}, {RECORDS}, {LOG}, {CONFIG}, {APPLY}, {METRICS}, {HEALTH} and {READY}"
                ),
            );
        }
        if !matches!(request.method, Method::GET | Method::HEAD) {
            let mut answer = refused(SocketErrorReason::MethodNotAllowed, "only GET and HEAD".to_owned());
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        let patience = Patience::of(&request.headers, stop);
        match path {
            STATUS => self.status(&request.headers, patience).await,
            RECORDS => match first_of(request.uri.query().unwrap_or_default()) {
                Some(first) => self.records(first, patience).await,
                None => refused(
                    SocketErrorReason::InvalidRequest,
                    format!("the query needs `{FROM}` once, with the number of an entry from 1 on"),
                ),
            },
            _ => self.log(),
        }
    }

    async fn status(&self, headers: &HeaderMap, mut patience: Patience) -> Answer {
        let mut status = self.published.status.clone();
        loop {
            let newest = status.borrow_and_update().clone();
            if let Some(age) = self.published.outdated_for() {
                let error = format!("the daemon's loop has not worked for {} seconds", age.as_secs());
                return refused(SocketErrorReason::NotReady, error);
            }
            let is_known = newest.as_ref().is_some_and(|newest| is_known(headers, newest));
            let is_news = newest.is_some() && !is_known;
            // A loop that stops working ends the wait, too.
            if !is_news && patience.changed(&mut status, self.published.current_for()).await {
                continue;
            }
            let Some(newest) = newest else {
                return refused(SocketErrorReason::NotReady, "the daemon has no status yet".to_owned());
            };
            let tag = etag(&newest);
            let mut answer = if is_known {
                body(StatusCode::NOT_MODIFIED, None, Bytes::new())
            } else {
                body(StatusCode::OK, Some(JSON), newest.text)
            };
            answer.headers_mut().extend(HeaderValue::try_from(tag).ok().map(|tag| (ETAG, tag)));
            return answer;
        }
    }

    async fn records(&self, first: u64, mut patience: Patience) -> Answer {
        let mut newest = self.newest.clone();
        loop {
            let last = newest.borrow_and_update().as_ref().map_or(0, |entry| entry.sequence);
            if first <= last {
                return self.lines(first, last);
            }
            if first > last.saturating_add(1) {
                let error = format!(
                    "the log ends at entry {last}: it is not the one in which entry {first} comes next"
                );
                return gone(error, self.oldest(last));
            }
            if !patience.changed(&mut newest, Duration::from_secs(LONGEST_WAIT_SECONDS)).await {
                return body(StatusCode::OK, Some(JSON_LINES), Bytes::new());
            }
        }
    }

    /// The entries from one number to another. The file system is asked in this thread, whose only other work is other answers.
    fn lines(&self, first: u64, last: u64) -> Answer {
        match entries_from(&self.log, first, last, RECORDS_BYTES) {
            // The entry was synced to the disk, and another process removed it.
            Ok(EntriesFrom::Lines(lines)) if lines.is_empty() => {
                gone(format!("the log has no entry from {first} to {last} any more"), last + 1)
            }
            Ok(EntriesFrom::Lines(lines)) => body(StatusCode::OK, Some(JSON_LINES), lines.into()),
            Ok(EntriesFrom::Gone(oldest)) => {
                gone(format!("the log does not have entry {first} any more"), oldest)
            }
            Err(error) => unreadable(&error),
        }
    }

    /// The number of the oldest entry; of the next one if there is none.
    fn oldest(&self, last: u64) -> u64 {
        match entries_from(&self.log, 1, last, 1) {
            Ok(EntriesFrom::Gone(oldest)) => oldest,
            Ok(EntriesFrom::Lines(lines)) if !lines.is_empty() => 1,
            _ => last + 1,
        }
    }

    fn log(&self) -> Answer {
        let newest = self.newest.borrow().clone();
        match newest {
            Some(entry) => json(StatusCode::OK, &entry),
            None => refused(SocketErrorReason::NoEntry, "the forensic log has no entry yet".to_owned()),
        }
    }
}

/// The number in a query `from=NUMBER`. Other fields are ignored.
fn first_of(query: &str) -> Option<u64> {
    let mut values =
        query.split('&').filter_map(|field| field.split_once('=')).filter(|(name, _)| *name == FROM);
    let (_, value) = values.next()?;
    let first: u64 = value.parse().ok()?;
    (values.next().is_none() && first > 0 && first < u64::MAX).then_some(first)
}

fn etag(status: &StatusVersion) -> String {
    format!("\"{}\"", status.number)
}

/// Whether the peer has this status.
fn is_known(headers: &HeaderMap, status: &StatusVersion) -> bool {
    let tag = etag(status);
    let values = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|known| known.trim() == tag)
}

pub(super) fn body(status: StatusCode, media_type: Option<&'static str>, bytes: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(bytes));
    *answer.status_mut() = status;
    answer.headers_mut().extend(media_type.map(|media| (CONTENT_TYPE, HeaderValue::from_static(media))));
    answer
}

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    let text = serde_json::to_vec(value).expect("an answer has only strings and numbers");
    body(status, Some(JSON), text.into())
}

pub(super) fn refused(reason: SocketErrorReason, error: String) -> Answer {
    error_of(&SocketError { reason, error, oldest: None })
}

fn gone(error: String, oldest: u64) -> Answer {
    error_of(&SocketError { reason: SocketErrorReason::Gone, error, oldest: Some(oldest) })
}

fn unreadable(error: &ReadError) -> Answer {
    tracing::warn!(%error, "Cannot give entries of the forensic log to the reporter.");
    refused(SocketErrorReason::Unreadable, error.to_string())
}

fn error_of(error: &SocketError) -> Answer {
    let status = StatusCode::from_u16(error.reason.status_code());
    json(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), error)
}
