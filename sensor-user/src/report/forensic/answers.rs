//! Answers from the log, each with the reasons for which it may be incomplete or false.
//!
//! In: the log and the note of its last entry. Out: entries, changes of a path, or the result of a check. The note is read
//! before the log: a daemon may write both in between, the note last.

use super::{
    ChainCheck, DIRECTORY, EndNoteError, Filter, Follower, LogEntry, LogFault, NotedEnd, PathChange,
    ReadError, WhoReport, missing_entries, newest, newest_about, show_checked, unsound, verify,
};
use crate::desired::STATE;
use serde::Serialize;
use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Duration,
};

/// The value of [`LogReport::schema`].
const SCHEMA: &str = "holdfast.log-verify/v1";

/// Time between two reads of a log that is followed.
const PAUSE: Duration = Duration::from_millis(250);

/// Where a log is, and the note of its last entry.
#[derive(Debug, Clone)]
pub struct LogPlace {
    /// The directory of the log.
    pub log: PathBuf,
    /// The state directory, which has the note.
    pub state: PathBuf,
}

/// An answer from a log.
#[derive(Debug)]
pub struct LogAnswer<T> {
    /// What the log has.
    pub found: T,
    /// Why the answer may be incomplete or false; `None` if the log is sound.
    pub doubt: Option<String>,
}

/// The last change of a path.
#[derive(Debug)]
pub struct LastChange {
    /// The change, if the log has one.
    pub change: Option<PathChange>,
    /// Why a newer one may be missing, or why the log cannot be read.
    pub doubt: Result<Option<String>, ReadError>,
}

/// The result of a check of the whole log.
#[derive(Debug)]
pub struct LogCheck {
    /// What the check found.
    pub found: ChainCheck,
    /// What that means.
    pub state: LogState,
}

/// Whether a log is what its daemon wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// Every entry is what was written, and none is missing.
    Sound,
    /// An entry was changed or is missing.
    Broken,
    /// There is no entry.
    Empty,
}

impl LogPlace {
    /// A log, and the state directory with the note of its last entry.
    pub fn new(log: &Path, state: &Path) -> Self {
        Self { log: log.to_owned(), state: state.to_owned() }
    }

    /// A log of this machine. Without a named state directory, the note is in that of this machine, also if a command reads
    /// another host root.
    pub fn of_this_machine(log: &Path, state: Option<&Path>) -> Self {
        Self::new(log, state.unwrap_or(Path::new(STATE)))
    }

    /// The newest entries, the oldest of them first.
    ///
    /// # Errors
    /// A log that cannot be read.
    pub fn newest(&self, number: usize) -> Result<LogAnswer<Vec<LogEntry>>, ReadError> {
        self.answer(|log| newest(log, number))
    }

    /// Calls `sink` with the newest entries, and then with those that are added, until `sink` breaks off. It is called also if
    /// none were added, so that it notices that its reader left. Gives why the log was not sound at the beginning.
    ///
    /// # Errors
    /// A log that cannot be read.
    pub fn follow(
        &self,
        number: usize,
        sink: &mut dyn FnMut(&[LogEntry]) -> ControlFlow<()>,
    ) -> Result<Option<String>, ReadError> {
        let LogAnswer { found: entries, doubt } = self.newest(number)?;
        // It begins before `sink` runs, so it also sees entries that the daemon writes meanwhile.
        let follower = Follower::after(&self.log, &entries);
        let left = sink(&entries).is_break();
        let mut follower = follower?;
        if left {
            return Ok(doubt);
        }
        loop {
            #[expect(clippy::disallowed_methods, reason = "the command has nothing else to do meanwhile")]
            std::thread::sleep(PAUSE);
            if sink(&follower.added()?).is_break() {
                return Ok(doubt);
            }
        }
    }

    /// Calls `sink` with each entry that the filter matches. Gives why the log is not sound.
    ///
    /// # Errors
    /// A log that cannot be read.
    pub fn show(&self, filter: &Filter, sink: &mut dyn FnMut(LogEntry)) -> Result<Option<String>, ReadError> {
        Ok(self.answer(|log| Ok(((), show_checked(log, filter, sink)?)))?.doubt)
    }

    /// The newest changes of exactly this path, the newest first.
    ///
    /// # Errors
    /// A log that cannot be read.
    pub fn changes(&self, path: &Path, number: usize) -> Result<LogAnswer<Vec<PathChange>>, ReadError> {
        let LogAnswer { found, doubt } = self.answer(|log| newest_about(log, path, number))?;
        Ok(LogAnswer { found: found.into_iter().map(PathChange::from).collect(), doubt })
    }

    /// The report of the newest changes of exactly this path.
    ///
    /// # Errors
    /// A log that cannot be read.
    pub fn who(&self, path: &Path, number: usize) -> Result<LogAnswer<WhoReport>, ReadError> {
        let LogAnswer { found, doubt } = self.changes(path, number)?;
        Ok(LogAnswer { found: WhoReport::new(path, found), doubt })
    }

    /// The last change of a path. A node without a log has none, unless the note names entries of a log.
    pub fn last_change(&self, path: &Path) -> LastChange {
        match self.changes(path, 1) {
            Ok(LogAnswer { found, doubt }) => {
                LastChange { change: found.into_iter().next(), doubt: Ok(doubt) }
            }
            Err(error) if error.is_missing() => {
                LastChange { change: None, doubt: missing_entries(self.end(), 0) }
            }
            Err(error) => LastChange { change: None, doubt: Err(error) },
        }
    }

    /// Checks the whole log. A copy of a log can be checked without rights on the node's note.
    ///
    /// # Errors
    /// The log or the note cannot be read.
    pub fn check(&self) -> Result<LogCheck, EndNoteError> {
        // A log in another directory than the node's own is a copy.
        let is_copy = self.log != Path::new(DIRECTORY);
        let end = self.end();
        let mut found = verify(&self.log)?;
        // The note of an emptied log names a missing entry, too.
        let is_empty = found.fault.is_none() && found.doubt().is_some();
        found.compare_with_note(end, is_copy)?;
        let state = match &found.fault {
            _ if is_empty => LogState::Empty,
            Some(_) => LogState::Broken,
            None => LogState::Sound,
        };
        Ok(LogCheck { found, state })
    }

    fn end(&self) -> NotedEnd {
        NotedEnd::read(&self.state, &self.log)
    }

    fn answer<T>(
        &self,
        read: impl FnOnce(&Path) -> Result<(T, ChainCheck), ReadError>,
    ) -> Result<LogAnswer<T>, ReadError> {
        let end = self.end();
        let (found, checked) = read(&self.log)?;
        Ok(LogAnswer { found, doubt: unsound(end, &checked)? })
    }
}

/// What a check of the log found, as `holdfast log verify` reports it.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct LogReport<'a> {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    schema: &'static str,
    /// Whether the log is intact.
    sound: bool,
    /// Why it is not intact.
    #[serde(skip_serializing_if = "Option::is_none")]
    doubt: Option<String>,
    /// How many files were read.
    files: usize,
    /// How many entries are intact, up to the first that is not.
    entries: u64,
    /// Number of the first entry; more than 1 after a rotation that removed older entries.
    first_seq: Option<u64>,
    /// Number of the last entry.
    last_seq: Option<u64>,
    /// Hash of the last entry, to compare with a checkpoint that is kept elsewhere.
    last_hash: Option<&'a str>,
    /// Bytes of an unfinished line at the very end.
    unfinished: usize,
    /// The first entry that was changed or is missing; null if there is none.
    fault: Option<ReportedFault<'a>>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct ReportedFault<'a> {
    /// The file.
    file: &'a Path,
    /// The line in it, from 1.
    line: Option<u64>,
    /// Number of the entry.
    seq: Option<u64>,
    /// What is wrong with it.
    reason: &'a str,
}

impl<'a> From<&'a ChainCheck> for LogReport<'a> {
    fn from(found: &'a ChainCheck) -> Self {
        Self {
            schema: SCHEMA,
            sound: found.doubt().is_none(),
            doubt: found.doubt(),
            files: found.files,
            entries: found.entries,
            first_seq: found.first_seq,
            last_seq: found.last_seq,
            last_hash: found.last_hash.as_deref(),
            unfinished: found.unfinished,
            fault: found.fault.as_ref().map(|fault: &LogFault| ReportedFault {
                file: &fault.file,
                line: fault.line,
                seq: fault.seq,
                reason: &fault.reason,
            }),
        }
    }
}
