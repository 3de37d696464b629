//! The journal's text: one line for each record, its digest chained to the line before it.
//!
//! In: bytes of the file. Out: the records that were written to the end, and how many bytes are sound. The file gets its
//! name with the first record whole in it. An unfinished line behind that is what a death leaves; anything else that does
//! not fit is an error that names the line, and then nothing is done.

use super::{Begin, Image, Record};
use crate::path::check_absolute;
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
    pub reason: String,
}

/// A journal that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// The first record's content.
    pub begin: Begin,
    /// All records, the first one included.
    pub records: Vec<Record>,
    /// Bytes up to the end of the last whole record.
    pub sound: usize,
    /// Digest of the last whole record, to which the next one is chained.
    pub digest: String,
    /// Bytes of an unfinished record behind it.
    pub torn: usize,
}

/// A record as a line, and its digest.
///
/// # Errors
/// A path that is not UTF-8, which cannot be written down.
pub fn line(previous: &str, record: &Record) -> Result<(String, String), JournalError> {
    let json =
        serde_json::to_string(record).map_err(|error| JournalError { line: 0, reason: error.to_string() })?;
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
/// A line that was changed or is no record, but for an unfinished one at the end of others, records in an impossible
/// order, a path or digest that we would not have written.
pub fn parse(bytes: &[u8]) -> Result<Parsed, JournalError> {
    let error = |line: usize, reason: String| JournalError { line, reason };
    if bytes.len() > MAXIMUM_BYTES {
        return Err(error(1, format!("the journal has {} bytes, more than {MAXIMUM_BYTES}", bytes.len())));
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
        let record = if is_whole { one(&previous, line) } else { Err("unfinished".to_owned()) };
        match record {
            Ok((record, digest)) => {
                follows(records.last(), &record).map_err(|reason| error(number, reason))?;
                if let Record::Begin(first) = &record {
                    check(first).map_err(|reason| error(number, reason))?;
                    begin = Some((**first).clone());
                }
                records.push(record);
                previous = digest;
                sound += line.len() + 1;
                rest = &rest[line.len() + 1..];
            }
            // Cut off; or a block of it never reached the disk, and reads as zeros.
            Err(_) if is_last && number > 1 && (!is_whole || line.contains(&0)) => break,
            Err(reason) => return Err(error(number, reason)),
        }
    }
    let begin = begin.ok_or_else(|| error(1, "it is empty".to_owned()))?;
    Ok(Parsed { begin, records, sound, digest: previous, torn: rest.len() })
}

fn one(previous: &str, line: &[u8]) -> Result<(Record, String), String> {
    let Some((said, [b' ', json @ ..])) = line.split_at_checked(DIGEST) else {
        return Err("no digest at its beginning".to_owned());
    };
    let digest = digest(previous, json);
    if said != digest.as_bytes() {
        return Err("its digest does not fit: it was changed after it was written".to_owned());
    }
    let record = serde_json::from_slice(json).map_err(|error| format!("no record: {error}"))?;
    Ok((record, digest))
}

/// The records that may come after one.
#[expect(clippy::match_same_arms, reason = "one arm for each record that came before")]
fn follows(before: Option<&Record>, record: &Record) -> Result<(), String> {
    use Record::{
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
    if fits { Ok(()) } else { Err("a record that cannot come after the one before it".to_owned()) }
}

/// What we would have written.
fn check(begin: &Begin) -> Result<(), String> {
    let mut paths = BTreeSet::new();
    for target in &begin.targets {
        let path = target.path.to_str().unwrap_or_default();
        check_absolute(path).map_err(|reason| format!("targets: path: {reason}"))?;
        if path == "/" || !paths.insert(path) {
            return Err(format!("targets: path: {path}: the root, or one path twice"));
        }
        for image in [&target.before, &target.after] {
            content(image).map_err(|reason| format!("targets: {path}: {reason}"))?;
        }
    }
    paths.clear();
    for again in &begin.put_again {
        let path = again.path.to_str().unwrap_or_default();
        check_absolute(path).map_err(|reason| format!("put_again: path: {reason}"))?;
        if path == "/" || !paths.insert(path) {
            return Err(format!("put_again: path: {path}: the root, or one path twice"));
        }
        content(&again.image).map_err(|reason| format!("put_again: {path}: {reason}"))?;
    }
    for act in &begin.acts {
        if !act.kind.is_act() {
            return Err(format!("acts: kind: {} is not done after the files are written", act.kind.as_str()));
        }
        if let Some(unit) = &act.unit {
            crate::path::check_name(unit).map_err(|reason| format!("acts: unit: {reason}"))?;
        }
    }
    Ok(())
}

/// The digest names a file of the store, so it must be nothing but a digest.
fn content(image: &Image) -> Result<(), String> {
    let Image::File(file) = image else { return Ok(()) };
    let digits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if file.sha256.len() != DIGEST || !file.sha256.bytes().all(digits) {
        return Err("sha256: 64 hexadecimal digits are needed".to_owned());
    }
    if let Some(hard) = &file.hard {
        check_absolute(hard.to_str().unwrap_or_default()).map_err(|reason| format!("hard: {reason}"))?;
    }
    Ok(())
}
