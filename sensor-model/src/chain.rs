//! The hash chain of the forensic log.
//!
//! In: a record and the place after the newest entry ([`seal`]), or lines that were read ([`open`], [`Chain::follow`],
//! [`verify`], [`sound_tail`]). Out: the line to write, or the first entry that was changed, and how much of an unfinished end
//! is intact. The module opens no file.
//!
//! A line is the entry's canonical JSON (RFC 8785, integers in full). `hash` is the SHA-256 of the line without `hash`.
//! `previous_hash` is the hash of the entry before it, across rotated files. Any other form of the same JSON is refused: Holdfast
//! never writes it.

#[cfg(test)]
mod tests;

use crate::record::Record;
use canon_json::CanonJsonSerialize as _;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::io::{self, BufRead, Read as _};

/// The `previous_hash` of the first entry of all.
pub const ORIGIN: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Longest line that is read. An entry is far shorter, since its record has limits.
pub const MAXIMUM_LINE: u64 = 16 << 20;

/// The place of the next entry in the chain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ChainPlace {
    /// Number of the next entry, from 1.
    pub seq: u64,
    /// Hash of the newest one.
    pub previous_hash: String,
}

impl Default for ChainPlace {
    fn default() -> Self {
        Self { seq: 1, previous_hash: ORIGIN.to_owned() }
    }
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Deserialize, schemars::JsonSchema)]
pub struct LogEntry {
    /// Its number. Each entry has the number of the one before it and one, across rotated files too.
    #[schemars(range(min = 1))]
    pub seq: u64,
    /// Hash of the entry before it; zeros in the first.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub previous_hash: String,
    /// SHA-256 of the canonical JSON of the entry without this field.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub hash: String,
    /// The record.
    #[serde(flatten)]
    pub record: Record,
}

impl LogEntry {
    /// The place of the entry after it.
    pub fn next_place(&self) -> ChainPlace {
        ChainPlace { seq: self.seq.saturating_add(1), previous_hash: self.hash.clone() }
    }
}

/// Why a line is not the entry that Holdfast wrote there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryFault {
    /// The line is longer than [`MAXIMUM_LINE`].
    #[error("it is longer than 16 MiB, which no entry is")]
    TooLong,
    /// The line is not JSON.
    #[error("not JSON: {0}")]
    NotJson(String),
    /// The JSON has no canonical form.
    #[error("cannot be read back: {0}")]
    NotCanonical(String),
    /// The entry has no hash.
    #[error("it has no hash")]
    NoHash,
    /// The hash cannot be computed.
    #[error("cannot be hashed: {0}")]
    NotHashable(String),
    /// The entry was changed after it was written.
    #[error("its content has the hash {found}, but it states {stated}")]
    Hash {
        /// The hash of the content.
        found: String,
        /// The hash in the entry.
        stated: String,
    },
    /// The JSON has another form than Holdfast writes.
    #[error("it is not in the form in which entries are written")]
    Form,
    /// The JSON is no record.
    #[error("not a record: {0}")]
    NotARecord(String),
    /// Entries before it are missing, or the log has it twice.
    #[error("it has number {found}, but the next number is {expected}")]
    Number {
        /// Its number.
        found: u64,
        /// The number after that of the entry before it.
        expected: u64,
    },
    /// It follows another entry than the one before it.
    #[error("it follows an entry with the hash {stated}, but the one before it has {found}")]
    Previous {
        /// The hash of the entry that it follows.
        stated: String,
        /// The hash of the entry before it.
        found: String,
    },
    /// It is the first entry and follows another one, or the reverse.
    #[error("it has number {seq} and follows the hash {previous_hash}")]
    Origin {
        /// Its number.
        seq: u64,
        /// The hash of the entry that it follows.
        previous_hash: String,
    },
    /// It does not follow the entry before it in the same file.
    #[error("entry {0} does not follow the one before it")]
    Order(u64),
}

/// The line of a record at a place, without its line ending, and the place after it.
///
/// # Errors
/// The record holds a number with a fraction. Not every reader writes such a number as the same text again.
pub fn seal(place: &ChainPlace, record: &Record) -> io::Result<(String, ChainPlace)> {
    let mut value = serde_json::to_value(record)?;
    if has_fraction(&value) {
        return Err(io::Error::other("a record holds whole numbers only"));
    }
    let Some(map) = value.as_object_mut() else {
        return Err(io::Error::other("a record is not a JSON object"));
    };
    map.insert("seq".to_owned(), place.seq.into());
    map.insert("previous_hash".to_owned(), place.previous_hash.clone().into());
    let hash = hash(&value)?;
    if let Some(map) = value.as_object_mut() {
        map.insert("hash".to_owned(), hash.clone().into());
    }
    Ok((value.to_canon_json_string()?, ChainPlace { seq: place.seq.saturating_add(1), previous_hash: hash }))
}

/// Reads a line without its line ending and checks its hash. [`Chain::follow`] checks its place.
///
/// # Errors
/// What is wrong with it.
pub fn open(line: &[u8]) -> Result<LogEntry, EntryFault> {
    let mut value: Value =
        serde_json::from_slice(line).map_err(|error| EntryFault::NotJson(error.to_string()))?;
    let canonical = value.to_canon_json_vec().map_err(|error| EntryFault::NotCanonical(error.to_string()))?;
    let Some(Value::String(stated)) = value.as_object_mut().and_then(|map| map.remove("hash")) else {
        return Err(EntryFault::NoHash);
    };
    let found = hash(&value).map_err(|error| EntryFault::NotHashable(error.to_string()))?;
    if found != stated {
        return Err(EntryFault::Hash { found, stated });
    }
    if canonical != line {
        return Err(EntryFault::Form);
    }
    if let Some(map) = value.as_object_mut() {
        map.insert("hash".to_owned(), stated.into());
    }
    serde_json::from_value(value).map_err(|error| EntryFault::NotARecord(error.to_string()))
}

fn hash(value: &Value) -> io::Result<String> {
    Ok(hex::encode(Sha256::digest(value.to_canon_json_vec()?)))
}

fn has_fraction(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(values) => values.iter().any(has_fraction),
        Value::Object(map) => map.values().any(has_fraction),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// The chain of the entries that were read so far, in order, over all files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    /// Entries read.
    pub entries: u64,
    /// Number of the first; more than 1 when rotation removed older ones.
    pub first_seq: Option<u64>,
    /// The place of the next entry; `None` before the first.
    pub place: Option<ChainPlace>,
}

impl Chain {
    /// Adds the next entry.
    ///
    /// The first one may have any number, since rotation removes older files. Number 1 begins a log.
    ///
    /// # Errors
    /// Why the entry cannot come next; the chain is unchanged.
    pub fn follow(&mut self, entry: &LogEntry) -> Result<(), EntryFault> {
        match &self.place {
            Some(place) if entry.seq != place.seq => {
                return Err(EntryFault::Number { found: entry.seq, expected: place.seq });
            }
            Some(place) if entry.previous_hash != place.previous_hash => {
                return Err(EntryFault::Previous {
                    stated: entry.previous_hash.clone(),
                    found: place.previous_hash.clone(),
                });
            }
            None if (entry.seq == 1) != (entry.previous_hash == ORIGIN) => {
                return Err(EntryFault::Origin {
                    seq: entry.seq,
                    previous_hash: entry.previous_hash.clone(),
                });
            }
            _ => {}
        }
        self.entries += 1;
        self.first_seq.get_or_insert(entry.seq);
        self.place = Some(entry.next_place());
        Ok(())
    }
}

/// The first entry that was changed after it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstBad {
    /// Its line in the text that was read, from 1.
    pub line: u64,
    /// The number that it should have, where that is known.
    pub seq: Option<u64>,
    /// What is wrong with it.
    pub reason: EntryFault,
}

/// The next line in a file of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLine {
    /// Nothing.
    End,
    /// A whole line.
    Whole,
    /// The file ends within the line: it is being written, or a power loss cut it.
    Unfinished,
    /// The line is longer than any entry, and was not read to its end.
    TooLong,
}

/// Reads a line into `line`, without its end.
///
/// # Errors
/// Reading failed.
pub fn next_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<LogLine> {
    line.clear();
    let mut limited = lines.take(MAXIMUM_LINE + 1);
    if limited.read_until(b'\n', line)? == 0 {
        return Ok(LogLine::End);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(LogLine::Whole);
    }
    Ok(if limited.limit() == 0 { LogLine::TooLong } else { LogLine::Unfinished })
}

/// Reads lines and adds their entries to the chain, up to the end or to the first bad one. Returns the number of bytes of an
/// unfinished line at the end.
///
/// # Errors
/// Reading failed. The inner error is the first bad entry.
pub fn verify(chain: &mut Chain, mut lines: impl BufRead) -> io::Result<Result<usize, FirstBad>> {
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        number += 1;
        let entry = match next_line(&mut lines, &mut line)? {
            LogLine::End => return Ok(Ok(0)),
            LogLine::Unfinished => return Ok(Ok(line.len())),
            LogLine::TooLong => Err(EntryFault::TooLong),
            LogLine::Whole => open(&line),
        };
        if let Err(reason) = entry.and_then(|entry| chain.follow(&entry)) {
            let seq = chain.place.as_ref().map(|place| place.seq);
            return Ok(Err(FirstBad { line: number, seq, reason }));
        }
    }
}

/// The end of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SoundTail {
    /// Bytes up to the end of the last whole entry. The rest may be cut off.
    pub sound: usize,
    /// The place after that entry.
    pub place: Option<ChainPlace>,
    /// What is wrong with a line before that entry. No power loss damages an entry that was on the disk, so nothing may be cut
    /// off.
    pub broken: Option<EntryFault>,
}

/// How much of the end of a file is intact. The bytes begin at the beginning of a line.
pub fn sound_tail(bytes: &[u8]) -> SoundTail {
    let mut tail = SoundTail::default();
    let mut at = 0;
    let mut fault: Option<EntryFault> = None;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        at += line.len();
        let Some(text) = line.strip_suffix(b"\n") else { break };
        match open(text) {
            Ok(entry) => {
                let before = ChainPlace { seq: entry.seq, previous_hash: entry.previous_hash.clone() };
                if tail.place.as_ref().is_some_and(|place| *place != before) {
                    fault.get_or_insert(EntryFault::Order(entry.seq));
                }
                tail.broken = tail.broken.or(fault.take());
                tail.sound = at;
                tail.place = Some(entry.next_place());
            }
            Err(reason) => {
                fault.get_or_insert(reason);
            }
        }
    }
    tail
}
