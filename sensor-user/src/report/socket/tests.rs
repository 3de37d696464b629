//! The server, over a real socket.

mod orders;

use super::peer::PeerCheck;
use super::*;
use crate::clock::{Clock, SystemClock};
use crate::report::forensic::{self, ForensicLog, LogLimits, NewestEntry};
use crate::report::http::{Pages, Readiness};
use crate::report::metrics::BuildInfo;
use jiff::Timestamp;
use nix::unistd::{getegid, getuid};
use sensor_model::chain;
use sensor_model::record::RecordKind;
use sensor_model::socket::{LogCheckpoint, SocketError, SocketErrorReason};
use serde::de::DeserializeOwned;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// A clock that a test sets.
#[derive(Debug)]
struct SetClock(AtomicU64);

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn boot_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A check with one result for all peers.
#[derive(Debug)]
struct Everybody(bool);

impl PeerCheck for Everybody {
    fn check(&self, _: &UnixStream) -> Result<(), PeerRefusal> {
        if self.0 { Ok(()) } else { Err(PeerRefusal::User(7)) }
    }
}

struct Served {
    directory: TempDir,
    publisher: StatusPublisher,
    log: ForensicLog,
    metrics: Arc<Metrics>,
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<io::Result<()>>,
}

/// One answer.
#[derive(Debug)]
struct Got {
    code: u16,
    head: String,
    body: String,
}

impl Got {
    fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    fn reason(&self) -> SocketErrorReason {
        self.json::<SocketError>().reason
    }
}

impl Served {
    fn new() -> Self {
        Self::with(&Everybody(true), LogLimits::default())
    }

    fn with(check: &'static Everybody, limits: LogLimits) -> Self {
        Self::serving(check, limits, ReporterOrders::default())
    }

    fn serving(check: &'static Everybody, limits: LogLimits, orders: ReporterOrders) -> Self {
        let build = BuildInfo {
            version: "1".to_owned(),
            commit: "c".to_owned(),
            object: "o".to_owned(),
            kernel: "k".to_owned(),
        };
        let metrics = Arc::new(Metrics::new(build, Timestamp::UNIX_EPOCH));
        let directory = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let path = directory.path().join("log");
        let mut log =
            ForensicLog::open(&path, limits, Arc::clone(&clock), "boot".to_owned(), Arc::clone(&metrics))
                .unwrap();
        let (publisher, view) = channel(clock, Duration::from_secs(10));
        let (sender, newest) = watch::channel::<NewestEntry>(None);
        log.announce_to(sender);
        let pages = Pages { metrics: Arc::clone(&metrics), readiness: Readiness::default() };
        let answers = Answers { published: view, newest, log: path, pages };
        let listener = bind(directory.path(), getegid().as_raw()).unwrap();
        let listener = UnixListener::from_std(listener).unwrap();
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(serve(listener, check, answers, orders, stopped));
        Self { directory, publisher, log, metrics, stop, task }
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(path(self.directory.path())).await.unwrap()
    }

    /// An answer that does not borrow, so that the test can go on meanwhile.
    fn ask(&self, request: &str, headers: &str) -> impl Future<Output = Got> + use<> {
        self.send(request, headers, "")
    }

    /// The same with a body.
    fn send(&self, request: &str, headers: &str, body: &str) -> impl Future<Output = Got> + use<> {
        let text = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n{body}");
        let socket = path(self.directory.path());
        async move {
            let mut stream = UnixStream::connect(socket).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            // The server resets the connection if it did not read all of the request.
            let _ = stream.read_to_end(&mut answer).await;
            let answer = String::from_utf8(answer).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
            let code = head.split(' ').nth(1).unwrap().parse().unwrap();
            Got { code, head: head.replace('\r', ""), body: body.to_owned() }
        }
    }

    async fn get(&self, path: &str) -> Got {
        self.ask(&format!("GET {path}"), "").await
    }

    fn write(&mut self, count: usize) {
        let records: Vec<_> = (0..count).map(|_| self.log.record(RecordKind::Start)).collect();
        self.log.append(&records);
    }

    async fn numbers(&self, first: u64) -> Vec<u64> {
        let got = self.get(&format!("/v1/records?from={first}")).await;
        assert_eq!((got.code, got.header("content-type")), (200, Some("application/jsonl")), "{got:?}");
        got.body.lines().map(|line| chain::open(line.as_bytes()).unwrap().seq).collect()
    }
}

#[tokio::test]
async fn a_status_has_a_tag_and_the_next_one_ends_a_wait() {
    let mut served = Served::new();
    assert_eq!(served.get("/v1/status").await.reason(), SocketErrorReason::NotReady);
    served.publisher.publish(b"{\"n\":1}\n".to_vec());
    let first = served.get("/v1/status").await;
    assert_eq!((first.code, &*first.body), (200, "{\"n\":1}\n"));
    let tag = first.header("etag").unwrap();
    let known = format!("if-none-match: {tag}\r\n");
    let unchanged = served.ask("GET /v1/status", &known).await;
    assert_eq!((unchanged.code, unchanged.header("etag"), &*unchanged.body), (304, Some(tag), ""));
    let waits = format!("{known}prefer: wait=60\r\n");
    let waiting = served.ask("GET /v1/status", &waits);
    let mut waiting = pin!(waiting);
    assert!(timeout(Duration::from_millis(100), &mut waiting).await.is_err(), "nothing is new");
    served.publisher.publish(b"{\"n\":2}\n".to_vec());
    let second = waiting.await;
    assert_eq!((second.code, &*second.body), (200, "{\"n\":2}\n"));
    assert_ne!(second.header("etag"), Some(tag));
}

#[tokio::test]
async fn a_wait_without_news_ends_at_its_time() {
    let mut served = Served::new();
    served.publisher.publish(b"{}\n".to_vec());
    served.write(1);
    let tag = served.get("/v1/status").await.header("etag").unwrap().to_owned();
    let headers = format!("if-none-match: \"1\", {tag}\r\nprefer: wait=1\r\n");
    assert_eq!(served.ask("GET /v1/status", &headers).await.code, 304);
    let records = served.ask("GET /v1/records?from=2", "prefer: wait=1\r\n").await;
    assert_eq!((records.code, &*records.body), (200, ""));
}

#[tokio::test]
async fn a_loop_that_hangs_ends_a_wait_and_its_status_is_not_given() {
    const LONGEST: u64 = 15_000_000_000;
    let clock = Arc::new(SetClock(AtomicU64::new(0)));
    let (mut sender, published) = channel(Arc::clone(&clock) as Arc<dyn Clock>, Duration::from_secs(5));
    sender.publish(b"{}\n".to_vec());
    let served = Served::new();
    let pages = Pages { metrics: Arc::clone(&served.metrics), readiness: Readiness::default() };
    let (_sender, newest) = watch::channel::<NewestEntry>(None);
    let answers = Answers { published, newest, log: served.directory.path().join("log"), pages };
    let request = Request::get("/v1/status").header("if-none-match", "\"1\"").header("prefer", "wait=60");
    let request = request.body(()).unwrap().into_parts().0;
    let stop = served.stop.subscribe();
    clock.0.store(LONGEST, Ordering::Relaxed);
    let waiting = answers.answer(&request, stop.clone());
    let hang = async { clock.0.store(LONGEST + 1, Ordering::Relaxed) };
    let (answer, ()) = timeout(Duration::from_secs(30), async { tokio::join!(waiting, hang) }).await.unwrap();
    assert_eq!(answer.status().as_u16(), 503, "within the wait");
    assert_eq!(answers.answer(&request, stop.clone()).await.status().as_u16(), 503);
    sender.beat();
    let request = Request::get("/v1/status").body(()).unwrap().into_parts().0;
    assert_eq!(answers.answer(&request, stop).await.status().as_u16(), 200);
}

#[tokio::test]
async fn records_come_from_a_number_on_and_as_they_are_in_the_log() {
    let mut served = Served::new();
    assert_eq!(served.get("/v1/log").await.reason(), SocketErrorReason::NoEntry);
    assert!(served.numbers(1).await.is_empty());
    served.write(3);
    assert_eq!(served.numbers(1).await, [1, 2, 3]);
    assert_eq!(served.numbers(3).await, [3]);
    assert!(served.numbers(4).await.is_empty());
    let file = std::fs::read_to_string(served.directory.path().join("log/forensic.jsonl")).unwrap();
    assert_eq!(served.get("/v1/records?from=1").await.body, file);
    let newest: LogCheckpoint = served.get("/v1/log").await.json();
    let last = chain::open(file.lines().last().unwrap().as_bytes()).unwrap();
    assert_eq!((newest.sequence, newest.hash, newest.time), (3, last.hash, last.record.time));
}

#[tokio::test]
async fn the_next_record_ends_a_wait() {
    let mut served = Served::new();
    served.write(1);
    let waiting = served.ask("GET /v1/records?from=2", "prefer: wait=60\r\n");
    let mut waiting = pin!(waiting);
    assert!(timeout(Duration::from_millis(100), &mut waiting).await.is_err(), "there is no entry 2");
    served.write(1);
    let got = waiting.await;
    assert!(got.body.contains("\"seq\":2"), "{got:?}");
}

#[tokio::test]
async fn an_entry_that_rotation_removed_is_gone_and_the_oldest_is_named() {
    let limits = LogLimits { file_bytes: 1, files: 2, ..LogLimits::default() };
    let mut served = Served::with(&Everybody(true), limits);
    for _ in 0..5 {
        served.write(1);
    }
    let gone = served.get("/v1/records?from=1").await;
    let error: SocketError = gone.json();
    assert_eq!((gone.code, error.reason), (410, SocketErrorReason::Gone));
    let oldest = error.oldest.unwrap();
    let numbers = served.numbers(oldest).await;
    let newest: LogCheckpoint = served.get("/v1/log").await.json();
    assert!(oldest > 1 && numbers == (oldest..=newest.sequence).collect::<Vec<_>>(), "{oldest} {numbers:?}");
    assert!(forensic::files(&served.directory.path().join("log")).unwrap().len() > 1);
}

#[tokio::test]
async fn a_log_that_ends_before_the_entry_is_another_one() {
    let mut served = Served::new();
    served.write(2);
    let gone = served.get("/v1/records?from=9").await;
    let error: SocketError = gone.json();
    assert_eq!((gone.code, error.oldest), (410, Some(1)));
    assert!(error.error.contains("ends at entry 2"), "{}", error.error);
}

#[tokio::test]
async fn an_answer_has_whole_lines_up_to_its_limit() {
    let mut served = Served::new();
    served.write(1500);
    let (mut next, mut answers) = (1, 0);
    loop {
        let got = served.get(&format!("/v1/records?from={next}")).await;
        assert!(got.body.len() <= sensor_model::socket::RECORDS_BYTES && got.body.ends_with('\n'));
        for line in got.body.lines() {
            assert_eq!(chain::open(line.as_bytes()).unwrap().seq, next);
            next += 1;
        }
        answers += 1;
        let newest: LogCheckpoint = served.get("/v1/log").await.json();
        if next > newest.sequence {
            break;
        }
    }
    assert!(answers > 1 && next > 1500);
}

#[tokio::test]
async fn bad_requests_get_an_error_with_a_reason() {
    let served = Served::new();
    for query in ["", "?", "?from", "?from=", "?from=0", "?from=x", "?from=-1", "?from=1&from=2"] {
        let got = served.get(&format!("/v1/records{query}")).await;
        assert_eq!((got.code, got.reason()), (400, SocketErrorReason::InvalidRequest), "{query}");
    }
    let got = served.get("/v1/other").await;
    assert_eq!((got.code, got.reason()), (404, SocketErrorReason::NotFound));
    let got = served.ask("PUT /v1/status", "").await;
    assert_eq!((got.code, got.reason()), (405, SocketErrorReason::MethodNotAllowed));
    assert_eq!(got.header("allow"), Some("GET, HEAD"));
    let long = format!("x: {}\r\n", "y".repeat(REQUEST_HEAD_BYTES));
    assert_eq!(served.ask("GET /v1/log", &long).await.code, 431);
}

#[tokio::test]
async fn the_pages_are_those_of_the_metrics_page() {
    let served = Served::new();
    let metrics = served.get("/metrics").await;
    assert!(metrics.code == 200 && metrics.body.ends_with("# EOF\n"), "{metrics:?}");
    assert_eq!(served.get("/healthz").await.body, "ok\n");
    assert_eq!(served.get("/readyz").await.code, 200);
}

#[tokio::test]
async fn a_peer_that_is_not_the_reporter_gets_no_answer_and_is_counted() {
    let served = Served::with(&Everybody(false), LogLimits::default());
    for _ in 0..3 {
        let mut stream = served.connect().await;
        // The server may have closed the connection already.
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        let mut answer = Vec::new();
        assert!(matches!(stream.read_to_end(&mut answer).await, Ok(0) | Err(_)));
    }
    let page = served.metrics.page().unwrap();
    assert!(page.contains("holdfast_reporter_refused_total{reason=\"user\"} 3\n"), "{page}");
    assert!(page.contains("holdfast_reporter_refused_total{reason=\"pod\"} 0\n"), "{page}");
}

#[tokio::test]
async fn one_connection_too_many_is_closed_and_its_place_is_free_later() {
    let served = Served::new();
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = served.connect().await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert!(stream.read(&mut [0; 512]).await.unwrap() > 0);
        open.push(stream);
    }
    let mut more = served.connect().await;
    assert!(matches!(more.read(&mut [0]).await, Ok(0) | Err(_)));
    open.pop();
    while !served.metrics.page().unwrap().contains("{reason=\"connections\"} 1\n") {
        tokio::task::yield_now().await;
    }
    loop {
        let mut stream = served.connect().await;
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        if stream.read(&mut [0; 512]).await.is_ok_and(|count| count > 0) {
            break;
        }
    }
}

#[tokio::test]
async fn a_shutdown_ends_a_wait_with_an_answer() {
    let mut served = Served::new();
    served.publisher.publish(b"{}\n".to_vec());
    let tag = served.get("/v1/status").await.header("etag").unwrap().to_owned();
    let headers = format!("if-none-match: {tag}\r\nprefer: wait=60\r\n");
    let waiting = served.ask("GET /v1/status", &headers);
    let mut waiting = pin!(waiting);
    assert!(timeout(Duration::from_millis(100), &mut waiting).await.is_err());
    served.stop.send_replace(true);
    assert_eq!(waiting.await.code, 304);
    served.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_socket_replaces_that_of_an_earlier_daemon_and_is_closed_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let group = getegid().as_raw();
    let _first = bind(directory.path(), group).unwrap();
    std::fs::write(directory.path().join(TEMPORARY), "left").unwrap();
    let second = UnixListener::from_std(bind(directory.path(), group).unwrap()).unwrap();
    let (connected, accepted) = tokio::join!(UnixStream::connect(path(directory.path())), second.accept());
    let peer = accepted.unwrap().0;
    connected.unwrap();
    assert_eq!(peer.peer_cred().unwrap().uid(), getuid().as_raw());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path(directory.path())), mode(directory.path())), (0o660, 0o711));
}
