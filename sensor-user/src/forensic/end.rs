//! Where the log ends, noted in a place of its own.
//!
//! In: the place of the chain after each write. Out: a small file in the state directory that names the last entry, and
//! at the next start what the log lacks of it. The chain alone cannot show that its newest entries were cut off.
//! It never changes the log.

use super::{
    CURRENT, ForensicLog, detail,
    read::{self, Filter},
    show,
};
use crate::clock::rfc3339;
use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sys::stat::Mode,
};
use sensor_model::{chain::Place, record::RecordKind};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

/// Name of the note in the state directory.
pub const NOTE: &str = "forensic-end.json";

/// The value of [`Note::schema`].
const SCHEMA: &str = "holdfast.forensic-end/v1";

/// Shortest time between two notes while entries are written.
const PAUSE: Duration = Duration::from_mins(1);

/// A note has about 300 bytes; a path may have 4096.
const MAXIMUM_BYTES: u64 = 16 << 10;

/// What the note says: this entry was on the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    schema: String,
    /// The log's directory: a note about another log says nothing of this one.
    log: PathBuf,
    /// Number of the last entry.
    pub seq: u64,
    /// Its hash.
    pub hash: String,
    /// When the note was written, RFC 3339.
    pub time: String,
}

impl Note {
    /// A note about the last entry before `place`; `None` for a log without entries.
    fn of(log: &Path, place: &Place, time: String) -> Option<Self> {
        let seq = place.seq.checked_sub(1).filter(|seq| *seq > 0)?;
        Some(Self { schema: SCHEMA.to_owned(), log: real(log), seq, hash: place.previous_hash.clone(), time })
    }

    /// Reads the note about a log; `None` where there is none, or where it is about another log.
    ///
    /// # Errors
    /// The note cannot be read, or is none.
    pub fn read(state: &Path, log: &Path) -> io::Result<Option<Self>> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match open(&state.join(NOTE), flags, Mode::empty()) {
            Err(Errno::ENOENT) => return Ok(None),
            other => File::from(other?),
        };
        let mut text = Vec::new();
        file.take(MAXIMUM_BYTES).read_to_end(&mut text)?;
        let note: Self = serde_json::from_slice(&text)?;
        Ok((note.log == real(log)).then_some(note))
    }

    /// Replaces the note; it is on the disk when this returns.
    fn write(&self, state: &Path) -> io::Result<()> {
        let temporary = state.join(format!(".{NOTE}.new"));
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        let mut file = File::create(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&temporary, state.join(NOTE))?;
        File::open(state)?.sync_all()
    }

    /// What a log that ends with entry `last` lacks of what the note names.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn compare(self, log: &Path, last: u64) -> Result<Option<Shortfall>, read::ReadError> {
        if last < self.seq {
            let missing = self.seq - last;
            let reason = format!(
                "the log ends with entry {last}, but entry {} was on the disk at {}",
                self.seq, self.time
            );
            return Ok(Some(Shortfall { missing, reason, note: self }));
        }
        let mut found = None;
        show(log, &Filter::default(), &mut |entry| {
            if entry.seq == self.seq {
                found = Some(entry.hash);
            }
        })?;
        Ok((found.as_ref() != Some(&self.hash)).then(|| {
            let reason = format!(
                "entry {} has the hash {}, but had {} on the disk at {}",
                self.seq,
                found.as_deref().unwrap_or("of no entry"),
                self.hash,
                self.time
            );
            Shortfall { missing: 1, reason, note: self }
        }))
    }
}

/// The log's directory by one name, however it was named.
fn real(log: &Path) -> PathBuf {
    fs::canonicalize(log).unwrap_or_else(|_| log.to_owned())
}

/// What a log lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// Entries that are not there any more, or not what they were.
    pub missing: u64,
    /// What is wrong, for people.
    pub reason: String,
    /// What was noted.
    pub note: Note,
}

/// Keeps the note while the log is written.
#[derive(Debug)]
pub(super) struct Keeper {
    state: PathBuf,
    /// Number of the last entry that is noted.
    noted: u64,
    /// Boot-time nanoseconds before which no further note is written.
    due_ns: u64,
}

impl Keeper {
    pub(super) fn new(state: &Path) -> Self {
        Self { state: state.to_owned(), noted: 0, due_ns: 0 }
    }

    /// How long after now a note is due; `None` while the last one still names the last entry.
    pub(super) fn due_in(&self, place: &Place, now_ns: u64) -> Option<Duration> {
        (place.seq.saturating_sub(1) != self.noted)
            .then(|| Duration::from_nanos(self.due_ns.saturating_sub(now_ns)))
    }

    /// Writes the note, to the disk and to the daemon's own log, which systemd keeps in the host's journal.
    pub(super) fn write(&mut self, log: &Path, place: &Place, now_ns: u64, time: String) {
        self.due_ns = now_ns.saturating_add(u64::try_from(PAUSE.as_nanos()).unwrap_or(u64::MAX));
        let Some(note) = Note::of(log, place, time) else { return };
        self.noted = note.seq;
        if let Err(error) = note.write(&self.state) {
            let path = self.state.join(NOTE);
            tracing::error!(path = %path.display(), %error, "Cannot note where the forensic log ends.");
        }
        tracing::info!(seq = note.seq, hash = note.hash, "The forensic log ends with this entry.");
    }
}

impl ForensicLog {
    /// Notes from now on in the state directory where the log ends. Gives what the log lacks of the last note, of which
    /// the log gets a record.
    pub fn note_end(&mut self, state: &Path) -> Option<Shortfall> {
        self.end = Some(Keeper::new(state));
        let last = self.place.as_ref().map_or(0, |place| place.seq.saturating_sub(1));
        let noted = match Note::read(state, &self.path) {
            Ok(noted) => noted?,
            Err(error) => {
                let mut record = self.record(RecordKind::Tamper);
                record.detail = detail(json!({ "file": state.join(NOTE), "reason": error.to_string() }));
                self.append(&[record]);
                return None;
            }
        };
        let shortfall = match noted.compare(&self.path, last) {
            Ok(shortfall) => shortfall?,
            Err(error) => {
                tracing::error!(%error, "Cannot compare the forensic log with the note of its end.");
                return None;
            }
        };
        tracing::error!(reason = shortfall.reason, "Entries of the forensic log are missing.");
        self.telemetry.forensic_missing(shortfall.missing);
        let mut record = self.record(RecordKind::Tamper);
        record.detail = detail(json!({
            "file": CURRENT,
            "reason": shortfall.reason,
            "missing": shortfall.missing,
            "noted_seq": shortfall.note.seq,
            "noted_hash": shortfall.note.hash,
            "noted_at": shortfall.note.time,
        }));
        self.append(&[record]);
        Some(shortfall)
    }

    /// Notes where the log ends, whenever it was noted last: the daemon stops.
    pub fn close(&mut self) {
        if self.end_due_in().is_some() {
            self.write_end();
        }
    }

    /// How long after now a note of the end is due, if one is.
    pub(super) fn end_due_in(&self) -> Option<Duration> {
        self.end.as_ref()?.due_in(self.place.as_ref()?, self.clock.boot_ns())
    }

    pub(super) fn write_end(&mut self) {
        let (now, time) = (self.clock.boot_ns(), rfc3339(self.clock.now()));
        if let (Some(end), Some(place)) = (&mut self.end, &self.place) {
            end.write(&self.path, place, now, time);
        }
    }
}
