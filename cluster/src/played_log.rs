//! A forensic log for tests, which answers as the sensor does.

use crate::api::ReportedLogEntry;
use crate::reports::entry;
use sensor_model::chain::{ChainPlace, open, seal};
use sensor_model::record::{Actor, Record, RecordKind, SCHEMA};
use sensor_model::socket::{
    FROM, LOG, LOG_CHECKPOINT_SCHEMA, LogCheckpoint, RECORDS, SocketError, SocketErrorReason,
};
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// The time of each entry.
const TIME: &str = "2026-11-24T11:00:00.000000000Z";

/// The entries of a log.
#[derive(Debug, Clone)]
pub(crate) struct PlayedForensicLog {
    /// The lines, from number 1 on.
    pub(crate) lines: Vec<String>,
    /// The number of the oldest entry that rotation left.
    pub(crate) oldest: u64,
}

impl PlayedForensicLog {
    /// A log with a drift of each of these paths.
    pub(crate) fn new(paths: &[&str]) -> Self {
        Self::of(paths.iter().map(|path| drift(path)))
    }

    /// A log of these records.
    pub(crate) fn of(records: impl Iterator<Item = Record>) -> Self {
        let (mut place, mut lines) = (ChainPlace::default(), Vec::new());
        for record in records {
            let (line, next) = seal(&place, &record).unwrap();
            lines.push(line);
            place = next;
        }
        Self { lines, oldest: 1 }
    }

    /// The newest entry, as a report keeps it.
    pub(crate) fn kept(&self) -> ReportedLogEntry {
        entry(&self.newest().unwrap())
    }

    /// The newest entry.
    pub(crate) fn newest(&self) -> Option<LogCheckpoint> {
        let newest: serde_json::Value = serde_json::from_str(self.lines.last()?).unwrap();
        Some(LogCheckpoint {
            schema: LOG_CHECKPOINT_SCHEMA.to_owned(),
            sequence: newest["seq"].as_u64().unwrap(),
            hash: newest["hash"].as_str().unwrap().to_owned(),
            time: TIME.to_owned(),
        })
    }

    /// The entries from a number on.
    pub(crate) fn records(&self, first: u64) -> Result<Vec<String>, SocketError> {
        let last = u64::try_from(self.lines.len()).unwrap();
        let gone = |oldest| {
            let error = format!("the log ends at entry {last}, or does not have entry {first} any more");
            SocketError { reason: SocketErrorReason::Gone, error, oldest: Some(oldest) }
        };
        if first > last + 1 {
            return Err(gone(self.oldest));
        }
        if first < self.oldest {
            return Err(gone(self.oldest));
        }
        Ok(self.lines.iter().skip(usize::try_from(first - 1).unwrap()).cloned().collect())
    }

    /// The body of the answer to a request.
    pub(crate) fn answer(&self, target: &str) -> Result<String, SocketError> {
        if target == LOG {
            let none = SocketError {
                reason: SocketErrorReason::NoEntry,
                error: "the forensic log has no entry yet".to_owned(),
                oldest: None,
            };
            let newest = self.newest().ok_or(none)?;
            return Ok(serde_json::to_string(&newest).unwrap());
        }
        let from = target.strip_prefix(&format!("{RECORDS}?{FROM}=")).expect("a request of the log");
        let lines = self.records(from.parse().unwrap())?;
        Ok(lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect())
    }
}

/// A log that a test may replace.
pub(crate) type SharedLog = Arc<Mutex<PlayedForensicLog>>;

/// A sensor that answers about its log at this path, for as long as the test runs.
pub(crate) fn serve(path: &Path, log: SharedLog) {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(connection(stream, Arc::clone(&log)));
        }
    });
}

async fn connection(mut stream: UnixStream, log: SharedLog) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            head.push(byte);
        }
        let head = String::from_utf8(head).unwrap();
        let answer = log.lock().unwrap().answer(head.split(' ').nth(1).unwrap());
        let (code, body) = match answer {
            Ok(body) => (200, body),
            Err(error) => (error.reason.status_code(), serde_json::to_string(&error).unwrap()),
        };
        let answer = format!("HTTP/1.1 {code} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The record of a drift of this path.
pub(crate) fn drift(path: &str) -> Record {
    let record = json!({
        "schema": SCHEMA, "kind": "drift", "time": TIME, "boot_id": "b", "monotonic_ns": 1,
        "path": path, "thing": "file", "operation": "write", "actors": [], "differences": [
            {"kind": "content", "expected": "a", "found": "b", "text": "content mismatch"}],
        "actor": Actor { pid: 7, login_user: Some("alice".to_owned()), exe: Some("/usr/bin/vi".to_owned()), ..Actor::default() },
        "verdict": "drifted", "source": "99-worker", "before": null, "after": null, "diff": null, "detail": {},
    });
    let record: Record = serde_json::from_value(record).unwrap();
    assert_eq!(record.kind, RecordKind::Drift);
    record
}

#[test]
fn the_lines_are_entries_of_one_chain() {
    let log = PlayedForensicLog::new(&["/a", "/b"]);
    let entries: Vec<_> = log.lines.iter().map(|line| open(line.as_bytes()).unwrap()).collect();
    assert_eq!(entries[1].previous_hash, entries[0].hash);
}
