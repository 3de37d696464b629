//! Requests to the pages of a node's reporter.
//!
//! In: connections to the reporter, and the header with the caller's token. Out: answers of the node's sensor, as its socket gives
//! them. The reporter ends a connection after ten minutes, and earlier if it is idle. So a connection is used again only while it is
//! young, and a request that fails on such a connection is sent once more on a new one, with a new token.

use super::error::PluginError;
use crate::secure::CONNECTION_TIMEOUT;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use sensor_model::socket::{PREFER, RECORDS_BYTES, STATUS_BYTES, SocketError, prefer_wait};
use std::fmt::Display;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};

/// The name of the reporter in requests and in the TLS handshake. Its certificate need not have it.
pub(super) const NAME: &str = "holdfast";
/// Longest time until an answer is here, without the time that the request asks to wait.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of an answer: those of the longest one, with one entry of the log beyond its limit.
const ANSWER_BYTES: usize = STATUS_BYTES + RECORDS_BYTES;

/// An answer of the reporter: the body of a success, or why there is none.
pub(super) type NodeAnswer = Result<Bytes, SocketError>;

/// The reporter of a node, as the caller reaches it.
pub(super) trait Reporter {
    /// A connection to it.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The header with a token of the caller.
    async fn authorization(&self) -> Result<HeaderValue, PluginError>;

    /// A new connection.
    async fn connect(&mut self) -> Result<Self::Stream, PluginError>;

    /// The error about a connection that failed for this reason.
    fn failed(&self, reason: &dyn Display) -> PluginError;
}

/// The pages of one node.
pub(super) struct NodePages<R> {
    reporter: R,
    connection: Option<Connection>,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// The token of a service account lives as long as a connection, and other tokens may expire, too. So each connection has its own.
    authorization: HeaderValue,
    opened_at: Instant,
}

impl Connection {
    /// Whether it lasts until the answer to a request that asks the reporter to wait for so long.
    fn outlasts(&self, wait: Duration) -> bool {
        !self.sender.is_closed() && self.opened_at.elapsed() + wait + TIMEOUT < CONNECTION_TIMEOUT
    }
}

impl<R: Reporter> NodePages<R> {
    /// Nothing is asked yet.
    pub(super) const fn of(reporter: R) -> Self {
        Self { reporter, connection: None }
    }

    /// The answer to a request, which the reporter may delay by `wait` until there is news.
    pub(super) async fn get(&mut self, target: &str, wait: Duration) -> Result<NodeAnswer, PluginError> {
        let mut answer = None;
        if let Some(kept) = self.connection.take().filter(|kept| kept.outlasts(wait)) {
            // The reporter may have ended it since: while a pager takes no more lines, nothing here notices. A `GET` may be sent twice.
            let repeated = self.ask(kept, target, wait).await;
            answer = repeated.ok().filter(|(status, _)| *status != StatusCode::UNAUTHORIZED);
        }
        let (status, body) = if let Some(answer) = answer {
            answer
        } else {
            let new = self.open().await?;
            self.ask(new, target, wait).await?
        };
        if status == StatusCode::OK {
            return Ok(Ok(body));
        }
        // Errors of the reporter itself have reasons that the sensor does not have.
        serde_json::from_slice::<SocketError>(&body)
            .map(Err)
            .map_err(|_| self.reporter.failed(&refusal(status, &body)))
    }

    /// Opens a connection, with a token of its own.
    async fn open(&mut self) -> Result<Connection, PluginError> {
        let authorization = self.reporter.authorization().await?;
        let opened_at = Instant::now();
        let connected = timeout(TIMEOUT, self.reporter.connect()).await;
        let stream = connected.map_err(|_| self.reporter.failed(&silence(TIMEOUT)))??;
        let connected = handshake(TokioIo::new(stream)).await;
        let (sender, connection) = connected.map_err(|error| self.reporter.failed(&error))?;
        // It ends with the sender. Its errors reach the requests.
        tokio::spawn(connection);
        Ok(Connection { sender, authorization, opened_at })
    }

    /// The code and the body of the answer on this connection, which is kept for the next request.
    async fn ask(
        &mut self,
        mut connection: Connection,
        target: &str,
        wait: Duration,
    ) -> Result<(StatusCode, Bytes), PluginError> {
        let failed = |reason: &dyn Display| self.reporter.failed(reason);
        let request = Request::get(target)
            .header(HOST, NAME)
            .header(AUTHORIZATION, connection.authorization.clone())
            .header(PREFER, prefer_wait(wait.as_secs()))
            .body(Full::default())
            .map_err(|error| failed(&error))?;
        let sender = &mut connection.sender;
        let answer = async {
            sender.ready().await.map_err(|error| failed(&error))?;
            let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES).collect().await;
            Ok::<_, PluginError>((head.status, body.map_err(|error| failed(&error))?.to_bytes()))
        };
        let time = wait + TIMEOUT;
        let answer = timeout(time, answer).await.map_err(|_| failed(&silence(time)))??;
        self.connection = Some(connection);
        Ok(answer)
    }
}

/// Why there is no answer after a time.
fn silence(time: Duration) -> String {
    format!("no answer in {} seconds", time.as_secs())
}

/// What a refusal of the reporter says.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let text = parsed.as_ref().and_then(|body| body["error"].as_str()).unwrap_or("no reason given");
    format!("{status}: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::sleep_until;

    /// What a connection does with one request.
    #[derive(Debug, Clone, Copy)]
    enum Turn {
        /// Answers with this code.
        Answer(u16),
        /// Ends after a part of the answer.
        End,
    }

    use Turn::{Answer, End};

    /// A reporter with connections that have these turns. Each token has the number of those before it.
    struct Played {
        connections: std::vec::IntoIter<Vec<Turn>>,
        tokens: Arc<Mutex<usize>>,
        /// The tokens of the requests.
        seen: Arc<Mutex<Vec<String>>>,
    }

    impl Reporter for Played {
        type Stream = DuplexStream;

        async fn authorization(&self) -> Result<HeaderValue, PluginError> {
            let mut tokens = self.tokens.lock().unwrap();
            *tokens += 1;
            Ok(HeaderValue::try_from(format!("Bearer {tokens}")).unwrap())
        }

        async fn connect(&mut self) -> Result<DuplexStream, PluginError> {
            let turns = self.connections.next().ok_or_else(|| self.failed(&"no further connection"))?;
            let (here, there) = duplex(1 << 16);
            tokio::spawn(connection(there, turns, Arc::clone(&self.seen)));
            Ok(here)
        }

        fn failed(&self, reason: &dyn Display) -> PluginError {
            PluginError::Format(reason.to_string())
        }
    }

    async fn connection(mut stream: DuplexStream, turns: Vec<Turn>, seen: Arc<Mutex<Vec<String>>>) {
        for turn in turns {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let Ok(byte) = stream.read_u8().await else { return };
                head.push(byte);
            }
            let head = String::from_utf8(head).unwrap();
            let token = head.lines().find_map(|line| line.strip_prefix("authorization: Bearer "));
            seen.lock().unwrap().push(token.unwrap().to_owned());
            let answer = match turn {
                Answer(code) => format!("HTTP/1.1 {code} X\r\nContent-Length: 2\r\n\r\n{{}}"),
                End => "HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\n{".to_owned(),
            };
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    /// The pages of that reporter, and the tokens of its requests.
    fn pages(connections: Vec<Vec<Turn>>) -> (NodePages<Played>, Arc<Mutex<Vec<String>>>) {
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let played =
            Played { connections: connections.into_iter(), tokens: Arc::default(), seen: Arc::clone(&seen) };
        (NodePages::of(played), seen)
    }

    async fn asked(pages: &mut NodePages<Played>, wait: Duration) -> bool {
        pages.get("/v1/log", wait).await.is_ok_and(|answer| answer.is_ok())
    }

    #[tokio::test]
    async fn a_request_that_fails_on_a_kept_connection_is_sent_once_more_on_a_new_one() {
        for second in [vec![Answer(200), End], vec![Answer(200)], vec![Answer(200), Answer(401)]] {
            let requests = second.len();
            let (mut pages, seen) = pages(vec![second, vec![Answer(200), Answer(200)]]);
            for _ in 0..3 {
                assert!(asked(&mut pages, Duration::ZERO).await, "{:?}", seen.lock().unwrap());
            }
            let tokens = [vec!["1"; requests], vec!["2"; 2]].concat();
            assert_eq!(*seen.lock().unwrap(), tokens, "each connection has a token of its own");
        }
    }

    #[tokio::test]
    async fn a_request_that_fails_on_a_new_connection_is_an_error() {
        let (mut first, seen) = pages(vec![vec![End], vec![Answer(200)]]);
        assert!(!asked(&mut first, Duration::ZERO).await);
        assert_eq!(*seen.lock().unwrap(), ["1"]);
        let (mut later, seen) = pages(vec![vec![Answer(200), End], vec![End], vec![Answer(200)]]);
        assert!(asked(&mut later, Duration::ZERO).await);
        assert!(!asked(&mut later, Duration::ZERO).await);
        assert_eq!(*seen.lock().unwrap(), ["1", "1", "2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_the_reporter_would_end_before_the_answer_is_not_used_again() {
        let (mut pages, seen) = pages(vec![vec![Answer(200); 9]; 9]);
        let wait = Duration::from_mins(1);
        let begin = Instant::now();
        // The reporter ends it after ten minutes. A minute is the wait, and half of one the time of the answer.
        for (minutes, token) in [(0, "1"), (8, "1"), (9, "2"), (17, "2"), (18, "3")] {
            sleep_until(begin + Duration::from_mins(minutes)).await;
            assert!(asked(&mut pages, wait).await);
            assert_eq!(seen.lock().unwrap().last().unwrap(), token, "after {minutes} minutes");
        }
        sleep_until(begin + Duration::from_mins(27)).await;
        assert!(asked(&mut pages, Duration::ZERO).await);
        assert_eq!(seen.lock().unwrap().last().unwrap(), "3", "a request without a wait needs less time");
    }
}
