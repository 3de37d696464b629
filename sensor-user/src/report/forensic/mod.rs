//! The forensic log: append-only, hash-chained entries.
//!
//! In: groups of records. Out: a line for each in `forensic.jsonl`. [`ForensicLog::append`] returns [`Durability::Written`] when
//! they are on the disk. A full file is put aside, and the first record of the next file links to it. If the disk refuses a
//! write, the newest records wait in memory, up to a limit, and are written later, once and in order. A reader finds the first
//! entry that was changed. The log never rewrites an entry and never holds file contents.
//!
//! `mod` and `segment` write, `writer` does so in another thread, `end_note` and `note_end` note the last entry. `read`,
//! `by_sequence`, `newest`, `soundness` and `answers` read. `announce` gives other threads the newest entry.

mod announce;
mod answers;
mod by_sequence;
mod changes;
mod end_note;
mod newest;
mod note_end;
mod read;
mod segment;
mod soundness;
mod writer;

#[cfg(test)]
mod tests;

use crate::{
    clock::{Clock, rfc3339},
    report::metrics::Metrics,
};
use newest::{newest, newest_about};
use nix::errno::Errno;
use read::RemovedFiles;
use segment::{CURRENT, Segment, Tail, open_directory};
use sensor_model::{
    chain::{ChainPlace, seal},
    fit::{LONGEST_ENTRY, fitted},
    record::{Record, RecordKind},
};
use serde_json::{Map, Value, json};
use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use announce::NewestEntry;
pub use answers::{LastChange, LogAnswer, LogCheck, LogPlace, LogReport, LogState};
pub use by_sequence::{EntriesFrom, entries_from};
pub use changes::{PathChange, WhoReport};
pub use end_note::{EndNote, EndNoteError, NOTE, NotedEnd, Shortfall};
pub use newest::{Follower, canonical, last_actor};
pub use read::{
    ChainCheck, Filter, LogFault, LoggedDrift, ReadError, files, is_log_file, open_drifts, show,
    show_checked, tail, verify,
};
pub use sensor_model::chain::LogEntry;
pub use writer::LogWriter;

use soundness::{missing_entries, unsound};

/// The directory of the log on a node.
pub const DIRECTORY: &str = "/var/log/holdfast";

/// First pause after a failed write; it doubles up to [`MAXIMUM_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(250);

/// Longest pause between two attempts to write.
const MAXIMUM_BACKOFF: Duration = Duration::from_secs(30);

/// Limits of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Size at which a file is rotated.
    pub file_bytes: u64,
    /// Rotated files kept, besides the current one.
    pub files: usize,
    /// Bytes of records that wait in memory while they cannot be written.
    pub memory_bytes: usize,
    /// Entries from one checkpoint to the next.
    pub checkpoint_every: u64,
    /// Time from one checkpoint to the next, also if there is nothing else to write.
    pub checkpoint_after: Duration,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            file_bytes: 64 << 20,
            files: 8,
            memory_bytes: 4 << 20,
            checkpoint_every: 1000,
            checkpoint_after: Duration::from_mins(30),
        }
    }
}

/// The log cannot be used, now or later.
#[derive(Debug, thiserror::Error)]
pub enum ForensicError {
    /// Something else is at the path of the directory.
    #[error("the forensic log's directory {} cannot be used: {}", path.display(), errno.desc())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        errno: Errno,
    },
    /// Another daemon writes it.
    #[error("the forensic log {} is written by another process", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
}

/// Where a group of records is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// On the disk, like all groups before it.
    Written,
    /// In memory, until the disk accepts it.
    Pending,
}

/// Records that wait, the oldest first.
#[derive(Debug, Default)]
struct Pending {
    records: VecDeque<Record>,
    /// Bytes of the records that were measured.
    bytes: usize,
    /// How many records, from the oldest on, were measured.
    measured: usize,
    /// How many records were dropped since the last write.
    dropped: u64,
    /// The times of the first and the last dropped record.
    dropped_between: Option<(String, String)>,
}

/// A failed write, and when the next attempt is due.
#[derive(Debug)]
struct Refusal {
    reason: String,
    backoff: Duration,
    /// Boot-time nanoseconds of the next attempt.
    retry_ns: u64,
}

/// A file that was put aside, for the first entry of the next one.
#[derive(Debug)]
struct Rotation {
    name: String,
    bytes: u64,
}

/// The log, open for appending.
#[derive(Debug)]
pub struct ForensicLog {
    path: PathBuf,
    limits: LogLimits,
    clock: Arc<dyn Clock>,
    boot_id: String,
    metrics: Arc<Metrics>,
    open: Option<(OwnedFd, Segment)>,
    /// The end of the chain; `None` before the files were read.
    place: Option<ChainPlace>,
    /// Length of the file before an append that failed. Part of that append may be in the file.
    in_doubt: Option<u64>,
    pending: Pending,
    refusal: Option<Refusal>,
    /// The file was put aside, and no record of that was written yet.
    rotation: Option<Rotation>,
    /// Boot-time nanoseconds of the newest checkpoint, or of the start.
    checkpoint_ns: u64,
    /// Writes the note of the last entry, after [`ForensicLog::note_end`].
    end: Option<end_note::EndNoteWriter>,
    /// Where the newest entry is announced, after [`ForensicLog::announce_to`].
    newest: Option<tokio::sync::watch::Sender<NewestEntry>>,
}

impl ForensicLog {
    /// Opens the log in a directory. A missing directory is made, but not its parents. A torn tail is cut off, with a record of
    /// that. If the disk refuses, the log is degraded from the start, and that is no error.
    pub fn open(
        path: &Path,
        limits: LogLimits,
        clock: Arc<dyn Clock>,
        boot_id: String,
        metrics: Arc<Metrics>,
    ) -> Result<Self, ForensicError> {
        let mut log = Self {
            path: path.to_owned(),
            limits,
            clock,
            boot_id,
            metrics,
            open: None,
            place: None,
            in_doubt: None,
            pending: Pending::default(),
            refusal: None,
            rotation: None,
            checkpoint_ns: 0,
            end: None,
            newest: None,
        };
        log.checkpoint_ns = log.clock.boot_ns();
        if let Err(error) = log.reopen(None) {
            match error.raw_os_error().map(Errno::from_raw) {
                Some(errno @ (Errno::ENOTDIR | Errno::ELOOP)) => {
                    return Err(ForensicError::Directory { path: path.to_owned(), errno });
                }
                Some(Errno::EWOULDBLOCK) => return Err(ForensicError::Busy { path: path.join(CURRENT) }),
                _ => log.refuse(&error),
            }
        }
        log.flush();
        log.report();
        Ok(log)
    }

    /// A record with schema, time and boot, and nothing else.
    pub fn record(&self, kind: RecordKind) -> Record {
        Record::new(kind, rfc3339(self.clock.now()), self.boot_id.clone(), self.clock.boot_ns())
    }

    /// Appends a group of records, all or none of them, and waits until the disk has them. A group that the disk refuses is
    /// written with a later one. An empty group only repeats the attempt.
    pub fn append(&mut self, group: &[Record]) -> Durability {
        let group: Vec<Record> = group.iter().cloned().map(|record| self.marked(record)).collect();
        self.pending.records.extend(group);
        let due = self.refusal.as_ref().is_none_or(|refusal| self.clock.boot_ns() >= refusal.retry_ns);
        if due {
            self.flush();
        }
        if self.refusal.is_some() {
            self.keep_within_bounds();
        }
        self.report();
        if self.pending.records.is_empty() { Durability::Written } else { Durability::Pending }
    }

    /// Why the log cannot be written now.
    pub fn degraded(&self) -> Option<&str> {
        self.refusal.as_ref().map(|refusal| refusal.reason.as_str())
    }

    /// How long after now the next attempt is due, while the log is degraded.
    pub fn retry_in(&self) -> Option<Duration> {
        let refusal = self.refusal.as_ref()?;
        Some(Duration::from_nanos(refusal.retry_ns.saturating_sub(self.clock.boot_ns())))
    }

    /// Records that wait in memory, oldest first.
    pub fn pending(&self) -> impl Iterator<Item = &Record> {
        self.pending.records.iter()
    }

    /// Drops the oldest records until the others fit into memory.
    fn keep_within_bounds(&mut self) {
        let pending = &mut self.pending;
        pending.bytes += pending.records.iter().skip(pending.measured).map(memory_of).sum::<usize>();
        pending.measured = pending.records.len();
        let mut dropped = 0;
        while pending.bytes > self.limits.memory_bytes && pending.records.len() > 1 {
            let Some(oldest) = pending.records.pop_front() else { break };
            pending.measured -= 1;
            pending.bytes -= memory_of(&oldest);
            dropped += 1;
            let between = pending.dropped_between.get_or_insert_with(|| (oldest.time.clone(), String::new()));
            between.1 = oldest.time;
        }
        pending.dropped += dropped;
        self.metrics.forensic(self.degraded(), self.pending.records.len(), dropped);
    }

    /// Puts a record of the log itself before those that wait.
    fn put_first(&mut self, record: Record) {
        self.pending.bytes += if self.pending.measured > 0 { memory_of(&record) } else { 0 };
        self.pending.measured += usize::from(self.pending.measured > 0);
        self.pending.records.push_front(record);
    }

    /// Tries to write all records that wait.
    fn flush(&mut self) {
        if !self.pending.records.is_empty() || self.refusal.is_some() || self.checkpoint_is_due() {
            match self.write_pending() {
                Ok(()) => self.refusal = None,
                Err(error) => self.refuse(&error),
            }
        }
        if self.end_due_in().is_some_and(|due| due.is_zero()) {
            self.write_end();
        }
    }

    fn write_pending(&mut self) -> io::Result<()> {
        match &self.open {
            Some((directory, segment)) => {
                if let Some(reason) = segment.interference(directory)? {
                    // The lock on the old file must go before the file is opened again.
                    self.open = None;
                    self.reopen(Some(reason))?;
                }
            }
            None => self.reopen(None)?,
        }
        self.rotate_when_full()?;
        let mut lines = Lines { place: self.place.clone().unwrap_or_default(), ..Lines::default() };
        let lost = self.lost();
        for record in lost.iter().chain(&self.pending.records) {
            if let Err(error) = lines.add(record) {
                // A record without a canonical form must not block all later ones.
                let mut stripped = self.record(record.kind);
                stripped.path.clone_from(&record.path);
                stripped.actor.clone_from(&record.actor);
                stripped.actors.clone_from(&record.actors);
                stripped.detail = detail(json!({ "unwritable": error.to_string() }));
                lines.add(&stripped)?;
            }
            if lines.place.seq.is_multiple_of(self.limits.checkpoint_every) {
                lines.add(&self.checkpoint(&lines.place))?;
            }
        }
        if self.checkpoint_is_due() {
            lines.add(&self.checkpoint(&lines.place))?;
        }
        let Some((_, segment)) = &mut self.open else { return Err(io::Error::from(Errno::EBADF)) };
        let length = segment.length();
        if let Err(error) = segment.append(lines.text.as_bytes()) {
            // The failed append may have changed the file, so it is opened and checked again.
            self.open = None;
            self.in_doubt = Some(length);
            return Err(error);
        }
        self.place = Some(lines.place);
        self.announce(&lines.text);
        self.pending = Pending::default();
        for (kind, bytes) in lines.sizes {
            self.metrics.recorded(kind, bytes);
            if kind == RecordKind::Checkpoint {
                self.metrics.checkpoint(self.clock.now());
                self.checkpoint_ns = self.clock.boot_ns();
            }
        }
        Ok(())
    }

    /// How long after now a checkpoint or a note is due, if no record comes before.
    fn upkeep_in(&self) -> Duration {
        self.end_due_in().map_or_else(|| self.checkpoint_in(), |due| due.min(self.checkpoint_in()))
    }

    /// How long after now the next checkpoint is due.
    fn checkpoint_in(&self) -> Duration {
        let since = self.clock.boot_ns().saturating_sub(self.checkpoint_ns);
        self.limits.checkpoint_after.saturating_sub(Duration::from_nanos(since))
    }

    fn checkpoint_is_due(&self) -> bool {
        self.checkpoint_in().is_zero()
    }

    fn checkpoint(&self, place: &ChainPlace) -> Record {
        let mut record = self.record(RecordKind::Checkpoint);
        record.detail.insert("entries".to_owned(), place.seq.into());
        self.marked(record)
    }

    /// The record that counts dropped ones.
    fn lost(&self) -> Option<Record> {
        let (first, last) = self.pending.dropped_between.as_ref()?;
        let mut record = self.record(RecordKind::Gap);
        record.detail = detail(json!({
            "reason": "forensic-log-unwritable",
            "error": self.degraded(),
            "dropped": self.pending.dropped,
            "since": first,
            "until": last,
        }));
        Some(record)
    }

    /// Opens directory and file, continues the chain, and queues records of faults: a tail that was cut off, and entries that
    /// were changed.
    fn reopen(&mut self, interference: Option<String>) -> io::Result<()> {
        let directory = open_directory(&self.path)?;
        let (segment, Tail { place, cut, broken }) = Segment::open(&directory, self.in_doubt)?;
        // In a new file the chain continues that of the newest rotated one.
        let found = place.or_else(|| read::last_place(&self.path)).unwrap_or_default();
        let place = self.place.get_or_insert_with(|| found.clone());
        // This daemon holds the lock, so the end of the chain that it knows is the right one.
        let differs = (found != *place).then(|| {
            format!(
                "the last entry should be number {}, but is {}",
                place.seq.saturating_sub(1),
                found.seq.saturating_sub(1)
            )
        });
        self.in_doubt = None;
        self.open = Some((directory, segment));
        self.compare_end_once();
        for reason in [interference.or(differs), broken].into_iter().flatten() {
            let mut record = self.record(RecordKind::Tamper);
            record.detail = detail(json!({ "file": CURRENT, "reason": reason }));
            self.put_first(record);
        }
        if let Some((bytes, sha256)) = cut {
            let mut record = self.record(RecordKind::Repaired);
            record.detail = detail(json!({ "file": CURRENT, "cut_bytes": bytes, "cut_sha256": sha256 }));
            self.put_first(record);
        }
        Ok(())
    }

    /// Puts a full file aside and begins the next one with a record that links to it. The next attempt continues a rotation that
    /// failed halfway.
    fn rotate_when_full(&mut self) -> io::Result<()> {
        let place = self.place.clone().unwrap_or_default();
        if let Some((directory, segment)) = self.open.as_ref().filter(|_| self.rotation.is_none()) {
            let bytes = segment.length();
            if bytes < self.limits.file_bytes.max(1) {
                return Ok(());
            }
            let name = read::put_aside(directory, place.seq.saturating_sub(1))?;
            self.rotation = Some(Rotation { name, bytes });
            // The open file is the one that was put aside.
            self.open = None;
        }
        if self.open.is_none() {
            self.reopen(None)?;
        }
        let Some(rotation) = self.rotation.take() else { return Ok(()) };
        let RemovedFiles { removed, not_removed } = read::remove_oldest(&self.path, self.limits.files);
        let mut record = self.record(RecordKind::Rotation);
        record.detail = detail(json!({
            "previous_file": rotation.name,
            "previous_bytes": rotation.bytes,
            "last_seq": place.seq.saturating_sub(1),
            "last_hash": place.previous_hash,
            "removed": removed,
        }));
        if !not_removed.is_empty() {
            record.detail.insert("not_removed".to_owned(), json!(not_removed));
        }
        self.put_first(record);
        Ok(())
    }

    fn refuse(&mut self, error: &io::Error) {
        let backoff =
            self.refusal.as_ref().map_or(FIRST_BACKOFF, |refusal| refusal.backoff.saturating_mul(2));
        let backoff = backoff.min(MAXIMUM_BACKOFF);
        let pause = u64::try_from(backoff.as_nanos()).unwrap_or(u64::MAX);
        let retry_ns = self.clock.boot_ns().saturating_add(pause);
        self.refusal = Some(Refusal { reason: error.to_string(), backoff, retry_ns });
    }

    fn report(&self) {
        self.metrics.forensic(self.degraded(), self.pending.records.len(), 0);
    }
}

/// Lines for one write.
#[derive(Debug, Default)]
struct Lines {
    text: String,
    /// The end of the chain after them.
    place: ChainPlace,
    sizes: Vec<(RecordKind, usize)>,
}

impl Lines {
    fn add(&mut self, record: &Record) -> io::Result<()> {
        let (mut line, mut next) = seal(&self.place, record)?;
        if line.len() >= LONGEST_ENTRY {
            (line, next) = seal(&self.place, &fitted(record))?;
        }
        self.sizes.push((record.kind, line.len() + 1));
        self.text.push_str(&line);
        self.text.push('\n');
        self.place = next;
        Ok(())
    }
}

/// The approximate size of a record in memory. Its strings take about as much as its line.
fn memory_of(record: &Record) -> usize {
    size_of::<Record>() + serde_json::to_string(record).map_or(0, |line| line.len())
}

fn detail(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
