//! The hash chain of the forensic log.
//!
//! Comes in: a record and the place after the newest entry ([`seal`]); or lines that were read
//! ([`open`], [`Chain::follow`], [`verify`], [`sound_tail`]). Goes out: the line to write; or the first entry
//! that is not what was written, and how much of a torn tail is sound. It never touches a file.
//!
//! A line is the entry's canonical JSON (RFC 8785, integers in full). Its `hash` is the SHA-256 of the same
//! without `hash`; its `previous_hash` is the hash of the entry before it, across rotated files. A line in
//! any other form of the same JSON was not written by us, and is refused.

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

/// Longest line that is read: an entry has its record's bounds, which are far below.
pub const MAXIMUM_LINE: u64 = 16 << 20;

/// What is wrong with a longer one.
pub const TOO_LONG: &str = "it is longer than 16 MiB, which no entry is";

/// Where the next entry goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// Number of the next entry, from 1.
    pub seq: u64,
    /// Hash of the newest one.
    pub previous_hash: String,
}

impl Default for Place {
    fn default() -> Self {
        Self { seq: 1, previous_hash: ORIGIN.to_owned() }
    }
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Deserialize, schemars::JsonSchema)]
pub struct Entry {
    /// Its number. Each entry has the number of the one before it and one, across rotated files too.
    #[schemars(range(min = 1))]
    pub seq: u64,
    /// Hash of the entry before it; zeros in the first.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub previous_hash: String,
    /// SHA-256 of the canonical JSON of the entry without this field.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub hash: String,
    /// What it says.
    #[serde(flatten)]
    pub record: Record,
}

impl Entry {
    /// Where the next entry goes.
    pub fn next_place(&self) -> Place {
        Place { seq: self.seq.saturating_add(1), previous_hash: self.hash.clone() }
    }
}

/// The line of a record at a place, without its end, and the place after it.
///
/// # Errors
/// The record has a number with a fraction somewhere, which not every reader of the log would read back
/// to the same text.
pub fn seal(place: &Place, record: &Record) -> io::Result<(String, Place)> {
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
    Ok((value.to_canon_json_string()?, Place { seq: place.seq.saturating_add(1), previous_hash: hash }))
}

/// Reads a line (without its end) and checks that it is what its hash was made of. It may still be in the
/// wrong place: that is [`Chain::follow`]'s to say.
///
/// # Errors
/// What is wrong with it.
pub fn open(line: &[u8]) -> Result<Entry, String> {
    let mut value: Value = serde_json::from_slice(line).map_err(|error| format!("not JSON: {error}"))?;
    let canonical = value.to_canon_json_vec().map_err(|error| format!("cannot be read back: {error}"))?;
    let Some(Value::String(stated)) = value.as_object_mut().and_then(|map| map.remove("hash")) else {
        return Err("it has no hash".to_owned());
    };
    let found = hash(&value).map_err(|error| format!("cannot be hashed: {error}"))?;
    if found != stated {
        return Err(format!("its content has the hash {found}, but it states {stated}"));
    }
    if canonical != line {
        return Err("it is not in the form in which entries are written".to_owned());
    }
    if let Some(map) = value.as_object_mut() {
        map.insert("hash".to_owned(), stated.into());
    }
    serde_json::from_value(value).map_err(|error| format!("not a record: {error}"))
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
    /// Where the next entry goes; `None` before the first.
    pub place: Option<Place>,
}

impl Chain {
    /// Takes the next entry.
    ///
    /// The very first one may have any number, since older files may have been removed; but number 1
    /// begins a log, and a log that begins has number 1.
    ///
    /// # Errors
    /// Why it is not the one that has to come next; the chain stays what it was.
    pub fn follow(&mut self, entry: &Entry) -> Result<(), String> {
        match &self.place {
            Some(place) if entry.seq != place.seq => {
                return Err(format!("it has number {}, but {} comes here", entry.seq, place.seq));
            }
            Some(place) if entry.previous_hash != place.previous_hash => {
                return Err(format!(
                    "it follows an entry with the hash {}, but the one before it has {}",
                    entry.previous_hash, place.previous_hash
                ));
            }
            None if (entry.seq == 1) != (entry.previous_hash == ORIGIN) => {
                return Err(format!(
                    "it has number {} and follows the hash {}",
                    entry.seq, entry.previous_hash
                ));
            }
            _ => {}
        }
        self.entries += 1;
        self.first_seq.get_or_insert(entry.seq);
        self.place = Some(entry.next_place());
        Ok(())
    }
}

/// The first entry that is not what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstBad {
    /// Its line in the text that was read, from 1.
    pub line: u64,
    /// The number that it should have, where that is known.
    pub seq: Option<u64>,
    /// What is wrong with it.
    pub reason: String,
}

/// What comes next in a file of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// Nothing.
    End,
    /// A whole line.
    Whole,
    /// The file ends in the middle of it: it is being written, or was torn by a power loss.
    Unfinished,
    /// It is longer than any entry; the rest of it was not read.
    TooLong,
}

/// Reads a line into `line`, without its end.
///
/// # Errors
/// Reading failed.
pub fn next_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Line> {
    line.clear();
    let mut limited = lines.take(MAXIMUM_LINE + 1);
    if limited.read_until(b'\n', line)? == 0 {
        return Ok(Line::End);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Line::Whole);
    }
    Ok(if limited.limit() == 0 { Line::TooLong } else { Line::Unfinished })
}

/// Reads lines and takes their entries into the chain, up to the end or to the first bad one. Gives the
/// bytes of an unfinished line at the end: one that is being written, or was torn by a power loss.
///
/// # Errors
/// Reading failed; the inner one is what was found.
pub fn verify(chain: &mut Chain, mut lines: impl BufRead) -> io::Result<Result<usize, FirstBad>> {
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        number += 1;
        let entry = match next_line(&mut lines, &mut line)? {
            Line::End => return Ok(Ok(0)),
            Line::Unfinished => return Ok(Ok(line.len())),
            Line::TooLong => Err(TOO_LONG.to_owned()),
            Line::Whole => open(&line),
        };
        if let Err(reason) = entry.and_then(|entry| chain.follow(&entry)) {
            let seq = chain.place.as_ref().map(|place| place.seq);
            return Ok(Err(FirstBad { line: number, seq, reason }));
        }
    }
}

/// What the end of a file holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tail {
    /// Bytes up to and with the last whole entry. What is behind it may be cut off.
    pub sound: usize,
    /// Where the chain stands there.
    pub place: Option<Place>,
    /// What is wrong with a line *before* that entry. No power loss does that to what was on the disk, so
    /// nothing of it may be cut off.
    pub broken: Option<String>,
}

/// How much of the end of a file is sound; the bytes begin where a line begins.
pub fn sound_tail(bytes: &[u8]) -> Tail {
    let mut tail = Tail::default();
    let mut at = 0;
    let mut fault: Option<String> = None;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        at += line.len();
        let Some(text) = line.strip_suffix(b"\n") else { break };
        match open(text) {
            Ok(entry) => {
                let before = Place { seq: entry.seq, previous_hash: entry.previous_hash.clone() };
                if tail.place.as_ref().is_some_and(|place| *place != before) {
                    fault.get_or_insert_with(|| {
                        format!("entry {} does not follow the one before it", entry.seq)
                    });
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
