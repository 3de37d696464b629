//! Whether the log is sound: every entry is what was written, and none is missing.
//!
//! In: what the check of the chain found, and the note of the log's last entry. Out: why entries may be missing or false. If
//! the newest entries are cut off, the chain is still whole; only the note shows that.

use super::{ChainCheck, EndNoteError, LogFault, NotedEnd, ReadError};
use std::io;

/// Why a log is not sound, by its chain, and by the note of its last entry if this user may read the note.
///
/// # Errors
/// The log cannot be read.
pub(super) fn unsound(end: NotedEnd, found: &ChainCheck) -> Result<Option<String>, ReadError> {
    match found.doubt() {
        None => missing_entries(end, found.last_seq.unwrap_or_default()),
        doubt => Ok(doubt),
    }
}

/// Why the newest entries of a log that ends with entry `last` may be missing.
///
/// # Errors
/// The log cannot be read.
pub(super) fn missing_entries(end: NotedEnd, last: u64) -> Result<Option<String>, ReadError> {
    match end.compare(last) {
        Ok(shortfall) => Ok(shortfall.map(|shortfall| shortfall.to_string())),
        Err(error) if error.is_forbidden() => Ok(None),
        Err(error @ EndNoteError::Note { .. }) => Ok(Some(error.to_string())),
        Err(EndNoteError::Log(error)) => Err(error),
    }
}

impl EndNoteError {
    /// Whether this user may not read the note.
    fn is_forbidden(&self) -> bool {
        matches!(self, Self::Note { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl ChainCheck {
    /// Adds what the note of the log's last entry shows, if the chain itself has no fault. A copy of a log can be checked
    /// without rights on the node's note.
    ///
    /// # Errors
    /// The log or the note cannot be read.
    pub(super) fn compare_with_note(&mut self, end: NotedEnd, is_copy: bool) -> Result<(), EndNoteError> {
        if self.fault.is_some() {
            return Ok(());
        }
        let shortfall = match end.compare(self.last_seq.unwrap_or_default()) {
            Err(error) if is_copy && error.is_forbidden() => return Ok(()),
            compared => compared?,
        };
        self.fault = shortfall.map(|shortfall| LogFault {
            file: shortfall.file,
            line: None,
            seq: shortfall.note.map(|note| note.seq),
            reason: shortfall.reason,
        });
        Ok(())
    }
}
