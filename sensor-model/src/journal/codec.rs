//! The journal's text: one line for each record, with a digest that is chained to the line before.
//!
//! In: the bytes of the file. Out: the complete records, and their length in bytes. The file is renamed to its final name only
//! after its first record is complete. A kill leaves an unfinished last line. Any other invalid line is an error with its number,
//! and the journal is then not used.

use super::{Action, Begin, JournalRecord, PathState};
use crate::path::{NameError, PathError, check_absolute};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;

/// Largest journal that is read: 100,000 targets and more.
pub const MAXIMUM_BYTES: usize = 256 << 20;

const DIGEST: usize = 64;

/// Why a journal cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("apply journal, line {line}: {reason}")]
pub struct JournalError {
    /// From 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: LineError,
}

/// What is wrong with a line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The whole journal is larger than [`MAXIMUM_BYTES`].
    #[error("the journal has {0} bytes, more than {MAXIMUM_BYTES}")]
    TooLarge(usize),
    /// The journal has no record.
    #[error("it is empty")]
    Empty,
    /// The line has no end.
    #[error("unfinished")]
    Unfinished,
    /// The line does not begin with a digest.
    #[error("no digest at its beginning")]
    NoDigest,
    /// The digest is that of another text, or of another line before it.
    #[error("its digest is another: it was changed after it was written")]
    Digest,
    /// The text is not JSON of a record.
    #[error("no record: {0}")]
    NoRecord(String),
    /// The record cannot be written as JSON.
    #[error("{0}")]
    Unwritable(String),
    /// The record cannot follow the one before it.
    #[error("a record that cannot come after the one before it")]
    Order,
    /// A field of the first record has a value that Holdfast does not write.
    #[error("{field}: {reason}")]
    Field {
        /// The field.
        field: String,
        /// What is wrong with its value.
        reason: BeginFault,
    },
}

/// What is wrong with a field of the first record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BeginFault {
    /// The path has not the form of declared paths.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The name is not one component of a path.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The path is the root, or another target has the same one.
    #[error("{0}: the root, or one path twice")]
    Twice(String),
    /// An apply does not run the action after the files are written.
    #[error("{} is not done after the files are written", _0.as_str())]
    NotAnAct(Action),
    /// The digest does not name a file of the store.
    #[error("64 hexadecimal digits are needed")]
    Digest,
}

impl LineError {
    fn field(field: &str, reason: impl Into<BeginFault>) -> Self {
        Self::Field { field: field.to_owned(), reason: reason.into() }
    }

    /// The same below a field.
    fn below(self, parent: &str) -> Self {
        match self {
            Self::Field { field, reason } => Self::Field { field: format!("{parent}: {field}"), reason },
            other => other,
        }
    }
}

/// A journal that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedJournal {
    /// The first record's content.
    pub begin: Begin,
    /// All records, the first one included.
    pub records: Vec<JournalRecord>,
    /// Bytes up to the end of the last complete record.
    pub sound: usize,
    /// Digest of the last complete record, to which the next one is chained.
    pub digest: String,
    /// Bytes of an unfinished record after it.
    pub torn: usize,
}

/// A record as a line, and its digest.
///
/// # Errors
/// A path that is not UTF-8, which JSON cannot represent.
pub fn line(previous: &str, record: &JournalRecord) -> Result<(String, String), JournalError> {
    let json = serde_json::to_string(record)
        .map_err(|error| JournalError { line: 0, reason: LineError::Unwritable(error.to_string()) })?;
    let digest = digest(previous, json.as_bytes());
    Ok((format!("{digest} {json}\n"), digest))
}

fn digest(previous: &str, json: &[u8]) -> String {
    let mut hasher = Sha256::new();
    hasher.update(previous.as_bytes());
    hasher.update(b"\n");
    hasher.update(json);
    hex::encode(hasher.finalize())
}

/// Reads a journal.
///
/// # Errors
/// A changed or invalid line; an unfinished last line after others is no error. Records in an impossible order. A path or digest
/// that Holdfast does not write.
pub fn parse(bytes: &[u8]) -> Result<ParsedJournal, JournalError> {
    let error = |line: usize, reason: LineError| JournalError { line, reason };
    if bytes.len() > MAXIMUM_BYTES {
        return Err(error(1, LineError::TooLarge(bytes.len())));
    }
    let (mut begin, mut records, mut previous, mut sound) = (None, Vec::new(), String::new(), 0);
    let mut rest = bytes;
    let mut number = 0;
    while !rest.is_empty() {
        number += 1;
        let (line, is_last, is_whole) = match rest.iter().position(|byte| *byte == b'\n') {
            Some(end) => (&rest[..end], end + 1 == rest.len(), true),
            None => (rest, true, false),
        };
        let record = if is_whole { one(&previous, line) } else { Err(LineError::Unfinished) };
        match record {
            Ok((record, digest)) => {
                follows(records.last(), &record).map_err(|reason| error(number, reason))?;
                if let JournalRecord::Begin(first) = &record {
                    check(first).map_err(|reason| error(number, reason))?;
                    begin = Some((**first).clone());
                }
                records.push(record);
                previous = digest;
                sound += line.len() + 1;
                rest = &rest[line.len() + 1..];
            }
            // The line is cut, or one of its blocks was never written and reads as zeros.
            Err(_) if is_last && number > 1 && (!is_whole || line.contains(&0)) => break,
            Err(reason) => return Err(error(number, reason)),
        }
    }
    let begin = begin.ok_or_else(|| error(1, LineError::Empty))?;
    Ok(ParsedJournal { begin, records, sound, digest: previous, torn: rest.len() })
}

fn one(previous: &str, line: &[u8]) -> Result<(JournalRecord, String), LineError> {
    let Some((written, [b' ', json @ ..])) = line.split_at_checked(DIGEST) else {
        return Err(LineError::NoDigest);
    };
    let digest = digest(previous, json);
    if written != digest.as_bytes() {
        return Err(LineError::Digest);
    }
    let record = serde_json::from_slice(json).map_err(|error| LineError::NoRecord(error.to_string()))?;
    Ok((record, digest))
}

/// Whether a record may follow the one before it.
#[expect(clippy::match_same_arms, reason = "one arm for each record that came before")]
fn follows(before: Option<&JournalRecord>, record: &JournalRecord) -> Result<(), LineError> {
    use JournalRecord::{
        Begin, Done, Failed, Finished, RebootRequested, ReturnRequested, RolledBack, RollingBack, Started,
        Written,
    };
    let fits = match (before, record) {
        (None, Begin(_)) => true,
        (None, _) | (Some(_), Begin(_)) => false,
        (Some(Begin(_)), Written | RollingBack { .. } | RolledBack { .. }) => true,
        (Some(Written), Started { act: 0 }) => true,
        (Some(Started { act }), Started { act: again }) => act == again,
        (Some(Started { act }), Finished { act: same } | Failed { act: same, .. }) => act == same,
        (Some(Finished { act }), Started { act: next }) => act + 1 == *next,
        (Some(Written | Finished { .. } | RebootRequested { .. }), RebootRequested { .. } | Done) => true,
        (Some(Failed { .. }), RebootRequested { .. }) => true,
        (
            Some(Written | Started { .. } | Finished { .. } | Failed { .. } | RebootRequested { .. }),
            RollingBack { .. },
        ) => true,
        (Some(RollingBack { .. }), RolledBack { .. } | RollingBack { .. } | ReturnRequested { .. }) => true,
        (Some(ReturnRequested { .. }), ReturnRequested { .. } | RolledBack { .. }) => true,
        _ => false,
    };
    if fits { Ok(()) } else { Err(LineError::Order) }
}

/// Checks what the chain of digests does not: paths, digests and unit names.
fn check(begin: &Begin) -> Result<(), LineError> {
    let mut paths = BTreeSet::new();
    for target in &begin.targets {
        let path = target.path.to_str().unwrap_or_default();
        check_absolute(path).map_err(|error| LineError::field("targets: path", error))?;
        if path == "/" || !paths.insert(path) {
            return Err(LineError::field("targets: path", BeginFault::Twice(path.to_owned())));
        }
        for state in [&target.before, &target.after] {
            content(state).map_err(|error| error.below(&format!("targets: {path}")))?;
        }
    }
    paths.clear();
    for again in &begin.overwritten {
        let path = again.path.to_str().unwrap_or_default();
        check_absolute(path).map_err(|error| LineError::field("put_again: path", error))?;
        if path == "/" || !paths.insert(path) {
            return Err(LineError::field("put_again: path", BeginFault::Twice(path.to_owned())));
        }
        content(&again.state).map_err(|error| error.below(&format!("put_again: {path}")))?;
    }
    for act in &begin.acts {
        if !act.kind.is_act() {
            return Err(LineError::field("acts: kind", BeginFault::NotAnAct(act.kind)));
        }
        if let Some(unit) = &act.unit {
            crate::path::check_name(unit).map_err(|error| LineError::field("acts: unit", error))?;
        }
    }
    Ok(())
}

/// Checks a digest: it names a file of the store, so it must have no other form.
fn content(state: &PathState) -> Result<(), LineError> {
    let PathState::File(file) = state else { return Ok(()) };
    let digits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if file.sha256.len() != DIGEST || !file.sha256.bytes().all(digits) {
        return Err(LineError::field("sha256", BeginFault::Digest));
    }
    if let Some(hard) = &file.hard {
        check_absolute(hard.to_str().unwrap_or_default()).map_err(|error| LineError::field("hard", error))?;
    }
    Ok(())
}
