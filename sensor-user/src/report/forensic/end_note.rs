//! The note of the log's last entry, a small file in the state directory.
//!
//! In: the end of the chain after each write. Out: the note, and at the next start the entries that the log lacks by it. The
//! chain alone cannot show that its newest entries were cut off. This module never changes the log.

use super::read::{self, Filter, show};
use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sys::stat::Mode,
};
use sensor_model::{chain::ChainPlace, record::RecordKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    fmt,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

/// Name of the note in the state directory.
pub const NOTE: &str = "forensic-end.json";

/// The value of [`EndNote::schema`].
const SCHEMA: &str = "holdfast.forensic-end/v1";

/// The field in the detail of `start` and `checkpoint` that names the log and its note. It shows that a note was removed. Logs
/// of versions without notes do not have it.
pub(super) const NOTED: &str = "end_noted";

/// Shortest time between two notes while entries are written.
const PAUSE: Duration = Duration::from_mins(1);

/// A note has about 300 bytes; a path may have 4096.
const MAXIMUM_BYTES: u64 = 16 << 10;

/// The last entry that was on the disk when the note was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndNote {
    schema: String,
    /// The log's directory. A note about another log does not count.
    log: PathBuf,
    /// Number of the last entry; 0 for a log without entries.
    pub seq: u64,
    /// Its hash.
    pub hash: String,
    /// When the note was written, RFC 3339.
    pub time: String,
}

impl EndNote {
    /// A note about the last entry before `place`.
    fn of(log: &Path, place: &ChainPlace, time: String) -> Self {
        let seq = place.seq.saturating_sub(1);
        Self { schema: SCHEMA.to_owned(), log: real(log), seq, hash: place.previous_hash.clone(), time }
    }

    /// Reads the note about a log; `None` if there is none, or if it is about another log.
    ///
    /// # Errors
    /// The note cannot be read, or is damaged.
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

    /// Replaces the note, and returns when it is on the disk.
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

    /// Compares a log that ends with entry `last` with the note in `file`.
    fn compare(self, file: PathBuf, log: &Path, last: u64) -> Result<Option<Shortfall>, read::ReadError> {
        if self.seq == 0 {
            return Ok(None);
        }
        if last < self.seq {
            let missing = self.seq - last;
            let reason = format!(
                "the log ends with entry {last}, but entry {} was on the disk at {}",
                self.seq, self.time
            );
            return Ok(Some(Shortfall { missing, reason, file, note: Some(self) }));
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
            Shortfall { missing: 1, reason, file, note: Some(self) }
        }))
    }
}

/// A directory without links and `..` in its path, so that each has one name.
fn real(directory: &Path) -> PathBuf {
    fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned())
}

/// The value of [`NOTED`].
pub(super) fn mark(state: &Path, log: &Path) -> Value {
    json!({ "log": real(log).to_string_lossy(), "note": real(state).join(NOTE).to_string_lossy() })
}

/// The note of a log, if there is one, as it was before the log was read.
#[derive(Debug)]
pub struct NotedEnd {
    state: PathBuf,
    log: PathBuf,
    noted: io::Result<Option<EndNote>>,
}

/// A log cannot be compared with its note.
#[derive(Debug, thiserror::Error)]
pub enum EndNoteError {
    /// The note cannot be read.
    #[error(
        "{}: the note of the log's last entry cannot be read, so a cut end would not show: {source}",
        file.display()
    )]
    Note {
        /// The note.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] read::ReadError),
}

impl NotedEnd {
    /// Reads the note. The caller reads the log after it: a daemon may write both in between, the note last.
    pub fn read(state: &Path, log: &Path) -> Self {
        Self { state: state.to_owned(), log: log.to_owned(), noted: EndNote::read(state, log) }
    }

    /// Compares a log that ends with entry `last` (0 for none) with its note. A missing note that the log names is a shortfall,
    /// and so is a damaged one. A process may have removed it to hide a cut.
    ///
    /// # Errors
    /// The note or the log cannot be read.
    pub fn compare(self, last: u64) -> Result<Option<Shortfall>, EndNoteError> {
        let file = self.state.join(NOTE);
        let reason = match self.noted {
            Ok(Some(note)) => return Ok(note.compare(file, &self.log, last)?),
            Ok(None) => match named_by(&self.state, &self.log)? {
                // The first note is written before the entry that names it. It may be newer than the read of the note above.
                Some(seq) if !matches!(EndNote::read(&self.state, &self.log), Ok(Some(_))) => format!(
                    "entry {seq} names this note of the log's end, and there is none about this log: it was removed, and the \
                     log's newest entries may be cut off"
                ),
                _ => return Ok(None),
            },
            // These are the errors of the parser.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                format!(
                    "the note of the log's end is not what was written, and the log's newest entries may have been cut off: \
                     {error}"
                )
            }
            Err(source) => return Err(EndNoteError::Note { file, source }),
        };
        Ok(Some(Shortfall { missing: 1, reason, file, note: None }))
    }
}

/// The newest entry of a log that names the note of its end in this state directory.
fn named_by(state: &Path, log: &Path) -> Result<Option<u64>, read::ReadError> {
    let mark = mark(state, log);
    let mut newest = None;
    let kinds = vec![RecordKind::Start, RecordKind::Checkpoint];
    let read = show(log, &Filter { kinds, ..Filter::default() }, &mut |entry| {
        if entry.record.detail.get(NOTED) == Some(&mark) {
            newest = Some(entry.seq);
        }
    });
    match read {
        Err(error) if error.source.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(newest),
    }
}

/// What a log lacks by its note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// How many entries are missing or changed; 1 if the number is not known.
    pub missing: u64,
    /// What is wrong.
    pub reason: String,
    /// The note's file.
    pub file: PathBuf,
    /// The note, if it can be read.
    pub note: Option<EndNote>,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.reason)
    }
}

/// Writes the note while the log grows.
#[derive(Debug)]
pub(super) struct EndNoteWriter {
    pub(super) state: PathBuf,
    /// Number of the last entry that is noted.
    noted: u64,
    /// Boot-time nanoseconds before which no further note is written.
    due_ns: u64,
    /// There is a note about the log, so entries may name it.
    pub(super) is_kept: bool,
    /// The log that this daemon opened was compared with the note.
    pub(super) is_compared: bool,
}

impl EndNoteWriter {
    pub(super) fn new(state: &Path) -> Self {
        Self { state: state.to_owned(), noted: 0, due_ns: 0, is_kept: false, is_compared: false }
    }

    /// How long after now a note is due; `None` while the last note names the last entry.
    pub(super) fn due_in(&self, place: &ChainPlace, now_ns: u64) -> Option<Duration> {
        (place.seq.saturating_sub(1) != self.noted)
            .then(|| Duration::from_nanos(self.due_ns.saturating_sub(now_ns)))
    }

    /// Writes the note, to the disk and to the daemon's own log, which systemd keeps in the host's journal.
    pub(super) fn write(&mut self, log: &Path, place: &ChainPlace, now_ns: u64, time: String) {
        self.due_ns = now_ns.saturating_add(u64::try_from(PAUSE.as_nanos()).unwrap_or(u64::MAX));
        let note = EndNote::of(log, place, time);
        self.noted = note.seq;
        self.put(&note);
        tracing::info!(seq = note.seq, hash = note.hash, "The forensic log ends with this entry.");
    }

    /// Writes a note before an entry names it. Otherwise a note that was never written would count as removed.
    pub(super) fn begin(&mut self, log: &Path, place: &ChainPlace, time: String) {
        if !self.is_kept && !matches!(EndNote::read(&self.state, log), Ok(Some(_))) {
            self.put(&EndNote::of(log, place, time));
        } else {
            self.is_kept = true;
        }
    }

    fn put(&mut self, note: &EndNote) {
        match note.write(&self.state) {
            Ok(()) => self.is_kept = true,
            Err(error) => {
                let path = self.state.join(NOTE);
                tracing::error!(path = %path.display(), %error, "Cannot note where the forensic log ends.");
            }
        }
    }
}
