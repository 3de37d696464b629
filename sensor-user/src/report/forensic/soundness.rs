//! Whether an answer from the log can be relied on.
//!
//! In: what the check of the chain found, and the note of the log's end. Out: why entries may be missing or false. A whole chain
//! may lack its newest entries; only the note shows that.

use super::{End, EndError, Fault, ReadError, Verification};
use std::io;

/// Why a log that was read is not sound, by its chain, and by the note of its end where this user may read that.
///
/// # Errors
/// The log cannot be read.
pub fn doubt(end: End, found: &Verification) -> Result<Option<String>, ReadError> {
    match found.doubt() {
        None => cut(end, found.last_seq.unwrap_or_default()),
        doubt => Ok(doubt),
    }
}

/// Why a log that ends with entry `last` may lack its newest entries.
///
/// # Errors
/// The log cannot be read.
pub fn cut(end: End, last: u64) -> Result<Option<String>, ReadError> {
    match end.compare(last) {
        Ok(shortfall) => Ok(shortfall.map(|shortfall| shortfall.told())),
        Err(error) if error.is_forbidden() => Ok(None),
        Err(error @ EndError::Note { .. }) => Ok(Some(error.to_string())),
        Err(EndError::Log(error)) => Err(error),
    }
}

impl EndError {
    /// Whether this user may not read the note.
    fn is_forbidden(&self) -> bool {
        matches!(self, Self::Note { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl Verification {
    /// Adds what the note of the log's end shows, where the chain itself has no fault. A copy of a log can be checked without
    /// rights on the node's note.
    ///
    /// # Errors
    /// The log or the note cannot be read.
    pub fn compare_with_note(&mut self, end: End, is_copy: bool) -> Result<(), EndError> {
        if self.fault.is_some() {
            return Ok(());
        }
        let shortfall = match end.compare(self.last_seq.unwrap_or_default()) {
            Err(error) if is_copy && error.is_forbidden() => return Ok(()),
            compared => compared?,
        };
        self.fault = shortfall.map(|shortfall| Fault {
            file: shortfall.file,
            line: None,
            seq: shortfall.note.map(|note| note.seq),
            reason: shortfall.reason,
        });
        Ok(())
    }
}
