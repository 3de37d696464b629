//! The forensic log: an append-only, hash-chained file of what happened.
//!
//! In: groups of records. Out: one line each in `forensic.jsonl`, on the disk when `append` says so,
//! rotated by size with a record that links the files' chains; and a reader that finds the first entry
//! that is not what was written. When the disk refuses, the newest records are kept in memory up to a
//! bound and written later, in order, once. It never rewrites an entry and never holds file contents.

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
    report::metrics::Telemetry,
};
use nix::errno::Errno;
use read::Removed;
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

pub use end_note::{End, EndError, NOTE, Note, Shortfall};
pub use newest::{Follower, canonical, newest, newest_about};
pub use read::{
    Fault, Filter, OpenDrift, ReadError, Verification, files, open_drifts, show, show_checked, tail, verify,
};
pub use sensor_model::chain::LogEntry;
pub use soundness::{cut, doubt};
pub use writer::Writer;

/// First pause after a failed write; it doubles up to [`MAXIMUM_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(250);

/// Longest pause between two attempts to write.
const MAXIMUM_BACKOFF: Duration = Duration::from_secs(30);

/// How much is kept where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Size at which a file is rotated.
    pub file_bytes: u64,
    /// Rotated files kept, besides the current one.
    pub files: usize,
    /// Bytes of records kept in memory while they cannot be written.
    pub memory_bytes: usize,
    /// Entries from one checkpoint to the next.
    pub checkpoint_every: u64,
    /// Time from one checkpoint to the next, also when there is nothing else to be written.
    pub checkpoint_after: Duration,
}

impl Default for Limits {
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

/// The log cannot be used at all, now or later.
#[derive(Debug, thiserror::Error)]
pub enum ForensicError {
    /// The place of the directory is taken by something else.
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

/// What became of a group of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It is on the disk, and so is all that came before it.
    Written,
    /// It waits in memory for a disk that takes it.
    Pending,
}

/// Records that wait, the oldest first.
#[derive(Debug, Default)]
struct Pending {
    records: VecDeque<Record>,
    /// Bytes that the first so many of them take; the rest is not measured yet.
    bytes: usize,
    measured: usize,
    /// Dropped since the disk last took something, and the times of the first and last of them.
    dropped: u64,
    dropped_between: Option<(String, String)>,
}

/// Why and until when nothing is written.
#[derive(Debug)]
struct Refusal {
    reason: String,
    backoff: Duration,
    /// Boot-time nanoseconds of the next attempt.
    retry_ns: u64,
}

/// What the first entry after a rotation says.
#[derive(Debug)]
struct Rotation {
    name: String,
    bytes: u64,
}

/// The log, open for appending.
#[derive(Debug)]
pub struct ForensicLog {
    path: PathBuf,
    limits: Limits,
    clock: Arc<dyn Clock>,
    boot_id: String,
    telemetry: Arc<Telemetry>,
    open: Option<(OwnedFd, Segment)>,
    /// Where the chain stands; `None` until the files were read once.
    place: Option<ChainPlace>,
    /// Length of the file before an append that failed, of which remains may be there.
    in_doubt: Option<u64>,
    pending: Pending,
    refusal: Option<Refusal>,
    /// The file was put aside, and no record says so yet.
    rotation: Option<Rotation>,
    /// Boot-time nanoseconds of the newest checkpoint, or of the start.
    checkpoint_ns: u64,
    /// Notes where the log ends, once it is asked to.
    end: Option<end_note::Keeper>,
}

impl ForensicLog {
    /// Opens the log in a directory, which is made when only it is missing. A torn tail is cut off and
    /// that is recorded. A disk that refuses is no error: the log is then degraded from the start.
    pub fn open(
        path: &Path,
        limits: Limits,
        clock: Arc<dyn Clock>,
        boot_id: String,
        telemetry: Arc<Telemetry>,
    ) -> Result<Self, ForensicError> {
        let mut log = Self {
            path: path.to_owned(),
            limits,
            clock,
            boot_id,
            telemetry,
            open: None,
            place: None,
            in_doubt: None,
            pending: Pending::default(),
            refusal: None,
            rotation: None,
            checkpoint_ns: 0,
            end: None,
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

    /// A record with the time, the boot and the schema filled in and nothing else.
    pub fn record(&self, kind: RecordKind) -> Record {
        Record::new(kind, rfc3339(self.clock.now()), self.boot_id.clone(), self.clock.boot_ns())
    }

    /// Appends a group of records, all or none of them, and waits until the disk has them. What the
    /// disk does not take is kept and written with a later group; an empty group only tries again.
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

    /// Why the log cannot be written, while that is so.
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

    /// Drops the oldest records until what waits fits into memory.
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
        self.telemetry.forensic(self.degraded(), self.pending.records.len(), dropped);
    }

    /// Puts a record of the log's own before those that wait.
    fn tell_first(&mut self, record: Record) {
        self.pending.bytes += if self.pending.measured > 0 { memory_of(&record) } else { 0 };
        self.pending.measured += usize::from(self.pending.measured > 0);
        self.pending.records.push_front(record);
    }

    /// Tries to write all that waits.
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
                // A record that cannot be written must not keep all later ones from being written.
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
            // Whether the file is as it was is known only after it is opened again.
            self.open = None;
            self.in_doubt = Some(length);
            return Err(error);
        }
        self.place = Some(lines.place);
        self.pending = Pending::default();
        for (kind, bytes) in lines.sizes {
            self.telemetry.recorded(kind, bytes);
            if kind == RecordKind::Checkpoint {
                self.telemetry.checkpoint(self.clock.now());
                self.checkpoint_ns = self.clock.boot_ns();
            }
        }
        Ok(())
    }

    /// How long after now something is to be written though nothing new came: a checkpoint or a note of the end.
    fn upkeep_in(&self) -> Duration {
        self.end_due_in().map_or_else(|| self.checkpoint_in(), |due| due.min(self.checkpoint_in()))
    }

    /// How long after now the next checkpoint is due, whatever comes until then.
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

    /// Opens directory and file, takes the chain up where it stands, and queues records of what is wrong:
    /// a tail that was cut off, and entries that are not as they were written.
    fn reopen(&mut self, interference: Option<String>) -> io::Result<()> {
        let directory = open_directory(&self.path)?;
        let (segment, Tail { place, cut, broken }) = Segment::open(&directory, self.in_doubt)?;
        // In a new file the chain goes on from the newest rotated one.
        let found = place.or_else(|| read::last_place(&self.path)).unwrap_or_default();
        let place = self.place.get_or_insert_with(|| found.clone());
        // While this daemon runs no other process writes: it knows where the chain stands.
        let differs = (found != *place).then(|| {
            format!(
                "the last entry should be number {}, but is {}",
                place.seq.saturating_sub(1),
                found.seq.saturating_sub(1)
            )
        });
        self.in_doubt = None;
        self.open = Some((directory, segment));
        for reason in [interference.or(differs), broken].into_iter().flatten() {
            let mut record = self.record(RecordKind::Tamper);
            record.detail = detail(json!({ "file": CURRENT, "reason": reason }));
            self.tell_first(record);
        }
        if let Some((bytes, sha256)) = cut {
            let mut record = self.record(RecordKind::Repaired);
            record.detail = detail(json!({ "file": CURRENT, "cut_bytes": bytes, "cut_sha256": sha256 }));
            self.tell_first(record);
        }
        Ok(())
    }

    /// Puts a full file aside and begins the next one with a record that links to it. Where it fails in the middle, it is
    /// gone on with at the next attempt.
    fn rotate_when_full(&mut self) -> io::Result<()> {
        let place = self.place.clone().unwrap_or_default();
        if let Some((directory, segment)) = self.open.as_ref().filter(|_| self.rotation.is_none()) {
            let bytes = segment.length();
            if bytes < self.limits.file_bytes.max(1) {
                return Ok(());
            }
            let name = read::put_aside(directory, place.seq.saturating_sub(1))?;
            self.rotation = Some(Rotation { name, bytes });
            // What is open is the file that was put aside.
            self.open = None;
        }
        if self.open.is_none() {
            self.reopen(None)?;
        }
        let Some(rotation) = self.rotation.take() else { return Ok(()) };
        let Removed { removed, not_removed } = read::remove_oldest(&self.path, self.limits.files);
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
        self.tell_first(record);
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
        self.telemetry.forensic(self.degraded(), self.pending.records.len(), 0);
    }
}

/// Lines to be written in one go.
#[derive(Debug, Default)]
struct Lines {
    text: String,
    /// Place after the last of them.
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

/// About what a record takes in memory: as much again as its line.
fn memory_of(record: &Record) -> usize {
    size_of::<Record>() + serde_json::to_string(record).map_or(0, |line| line.len())
}

fn detail(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
