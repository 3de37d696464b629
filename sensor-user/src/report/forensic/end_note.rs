//! Where the log ends, noted in a place of its own.
//!
//! In: the place of the chain after each write. Out: a small file in the state directory that names the last entry, and
//! at the next start what the log lacks of it. The chain alone cannot show that its newest entries were cut off.
//! It never changes the log.

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
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

/// Name of the note in the state directory.
pub const NOTE: &str = "forensic-end.json";

/// The value of [`Note::schema`].
const SCHEMA: &str = "holdfast.forensic-end/v1";

/// The field in the detail of `start` and `checkpoint` that names the log and the note of its end. By it a note that was
/// removed is missed; in logs of versions that kept none it is not there.
pub(super) const NOTED: &str = "end_noted";

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
    /// Number of the last entry; 0 for a log without entries.
    pub seq: u64,
    /// Its hash.
    pub hash: String,
    /// When the note was written, RFC 3339.
    pub time: String,
}

impl Note {
    /// A note about the last entry before `place`.
    fn of(log: &Path, place: &ChainPlace, time: String) -> Self {
        let seq = place.seq.saturating_sub(1);
        Self { schema: SCHEMA.to_owned(), log: real(log), seq, hash: place.previous_hash.clone(), time }
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

    /// What a log that ends with entry `last` lacks of what the note in `file` names.
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

/// A directory by one name, however it was named.
fn real(directory: &Path) -> PathBuf {
    fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned())
}

/// The field that names a log and the note of its end.
pub(super) fn mark(state: &Path, log: &Path) -> Value {
    json!({ "log": real(log).to_string_lossy(), "note": real(state).join(NOTE).to_string_lossy() })
}

/// What is noted of a log's end.
#[derive(Debug)]
pub struct End {
    state: PathBuf,
    log: PathBuf,
    noted: io::Result<Option<Note>>,
}

/// A log could not be compared with the note of its end.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
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

impl End {
    /// Reads the note. The caller reads the log after it: a daemon may write both in between, the note last.
    pub fn read(state: &Path, log: &Path) -> Self {
        Self { state: state.to_owned(), log: log.to_owned(), noted: Note::read(state, log) }
    }

    /// What a log that ends with entry `last` (0 for none) lacks of what was noted. A note that is not there although the log
    /// names it, or is not what was written, is a shortfall, too: it may have been removed to hide a cut.
    ///
    /// # Errors
    /// The note or the log cannot be read.
    pub fn compare(self, last: u64) -> Result<Option<Shortfall>, EndError> {
        let file = self.state.join(NOTE);
        let reason = match self.noted {
            Ok(Some(note)) => return Ok(note.compare(file, &self.log, last)?),
            Ok(None) => match named_by(&self.state, &self.log)? {
                // The first note of all is written before the entry that names it, and may be newer than the first look.
                Some(seq) if !matches!(Note::read(&self.state, &self.log), Ok(Some(_))) => format!(
                    "entry {seq} names this note of the log's end, and there is none about this log: somebody removed it, and \
                     may have cut off the log's newest entries"
                ),
                _ => return Ok(None),
            },
            // What a parser says, as an error of input and output.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                format!(
                    "the note of the log's end is not what was written, and the log's newest entries may have been cut off: \
                     {error}"
                )
            }
            Err(source) => return Err(EndError::Note { file, source }),
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

/// What a log lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// Entries that are not there any more, or not what they were; 1 where their number is not known.
    pub missing: u64,
    /// What is wrong, for people.
    pub reason: String,
    /// The note's file.
    pub file: PathBuf,
    /// What was noted, where that can still be read.
    pub note: Option<Note>,
}

impl Shortfall {
    /// The note's file and what is wrong.
    pub fn told(&self) -> String {
        format!("{}: {}", self.file.display(), self.reason)
    }
}

/// Keeps the note while the log is written.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) state: PathBuf,
    /// Number of the last entry that is noted.
    noted: u64,
    /// Boot-time nanoseconds before which no further note is written.
    due_ns: u64,
    /// There is a note about the log, so entries may say so.
    pub(super) is_kept: bool,
}

impl Keeper {
    pub(super) fn new(state: &Path) -> Self {
        Self { state: state.to_owned(), noted: 0, due_ns: 0, is_kept: false }
    }

    /// How long after now a note is due; `None` while the last one still names the last entry.
    pub(super) fn due_in(&self, place: &ChainPlace, now_ns: u64) -> Option<Duration> {
        (place.seq.saturating_sub(1) != self.noted)
            .then(|| Duration::from_nanos(self.due_ns.saturating_sub(now_ns)))
    }

    /// Writes the note, to the disk and to the daemon's own log, which systemd keeps in the host's journal.
    pub(super) fn write(&mut self, log: &Path, place: &ChainPlace, now_ns: u64, time: String) {
        self.due_ns = now_ns.saturating_add(u64::try_from(PAUSE.as_nanos()).unwrap_or(u64::MAX));
        let note = Note::of(log, place, time);
        self.noted = note.seq;
        self.put(&note);
        tracing::info!(seq = note.seq, hash = note.hash, "The forensic log ends with this entry.");
    }

    /// Makes sure that there is a note before an entry says so: one that was never written would be missed as one that was
    /// removed.
    pub(super) fn begin(&mut self, log: &Path, place: &ChainPlace, time: String) {
        if !self.is_kept && !matches!(Note::read(&self.state, log), Ok(Some(_))) {
            self.put(&Note::of(log, place, time));
        } else {
            self.is_kept = true;
        }
    }

    fn put(&mut self, note: &Note) {
        match note.write(&self.state) {
            Ok(()) => self.is_kept = true,
            Err(error) => {
                let path = self.state.join(NOTE);
                tracing::error!(path = %path.display(), %error, "Cannot note where the forensic log ends.");
            }
        }
    }
}
