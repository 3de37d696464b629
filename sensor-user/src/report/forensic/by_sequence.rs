//! Entries of the log by their numbers.
//!
//! In: the log's directory, the number of the first entry wanted, and the number of the last one that is on the disk. Out: the
//! entries' lines as they are in the files. Reading takes no lock, and finds the first line by halving the file.

use super::read::{ReadError, files};
use sensor_model::chain::{self, LogEntry, LogLine};
use sensor_model::socket::{LOG_CHECKPOINT_SCHEMA, LogCheckpoint};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

/// Below this many bytes a file is read and not halved any more.
const WINDOW: u64 = 64 << 10;

/// How often a reader begins again because the daemon rotated the log meanwhile.
const ATTEMPTS: usize = 5;

/// Entries from a number on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntriesFrom {
    /// Whole lines; empty if the log does not have the first entry yet.
    Lines(Vec<u8>),
    /// The log does not have the first entry any more. The number: of the oldest entry after it.
    Gone(u64),
}

/// The part of an entry that this module reads.
#[derive(Deserialize)]
struct Numbered {
    seq: u64,
}

/// The lines of the entries from number `first` on, up to number `last` and up to `limit` bytes, but at least one.
///
/// # Errors
/// A log that cannot be read.
pub fn entries_from(directory: &Path, first: u64, last: u64, limit: usize) -> Result<EntriesFrom, ReadError> {
    let mut attempt = 1;
    loop {
        let files = files(directory)?;
        let found = search(&files, first, last, limit);
        let is_whole = matches!(&found, Ok(EntriesFrom::Lines(lines)) if !lines.is_empty());
        // A rotation between the list and the opening of a file hides entries.
        if is_whole || attempt == ATTEMPTS || self::files(directory)? == files {
            return found;
        }
        attempt += 1;
    }
}

/// The newest entry of the log; `None` if it has none.
///
/// # Errors
/// A log that cannot be read.
pub(super) fn newest_entry(directory: &Path) -> Result<Option<LogCheckpoint>, ReadError> {
    for path in files(directory)?.into_iter().rev() {
        let error = |source| ReadError { path: path.clone(), source };
        let mut file = File::open(&path).map_err(error)?;
        let length = file.metadata().map_err(error)?.len();
        let mut window = WINDOW;
        loop {
            let from = length.saturating_sub(window);
            file.seek(SeekFrom::Start(from)).map_err(error)?;
            let mut bytes = Vec::new();
            (&file).take(length - from).read_to_end(&mut bytes).map_err(error)?;
            let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').rev();
            let entry =
                lines.find_map(|line| serde_json::from_slice::<LogEntry>(line.strip_suffix(b"\n")?).ok());
            if let Some(entry) = entry {
                return Ok(Some(LogCheckpoint {
                    schema: LOG_CHECKPOINT_SCHEMA.to_owned(),
                    sequence: entry.seq,
                    hash: entry.hash,
                    time: entry.record.time,
                }));
            }
            if from == 0 || window > chain::MAXIMUM_LINE {
                break;
            }
            window = window.saturating_mul(4);
        }
    }
    Ok(None)
}

/// The number of the last entry of a rotated file, from its name; `None` for the current one.
fn last_of(file: &Path) -> Option<u64> {
    let name = file.file_name()?.to_str()?;
    name.strip_prefix("forensic-")?.get(..20)?.parse().ok()
}

fn search(files: &[PathBuf], first: u64, last: u64, limit: usize) -> Result<EntriesFrom, ReadError> {
    let mut lines = Vec::new();
    for path in files {
        if last_of(path).is_some_and(|last| last < first) {
            continue;
        }
        let error = |source| ReadError { path: path.clone(), source };
        let mut file = File::open(path).map_err(error)?;
        let begin = if lines.is_empty() { near(&mut file, first).map_err(error)? } else { 0 };
        file.seek(SeekFrom::Start(begin)).map_err(error)?;
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        while chain::next_line(&mut reader, &mut line).map_err(error)? == LogLine::Whole {
            let number = number(&line);
            match number {
                Some(number) if number > last => return Ok(EntriesFrom::Lines(lines)),
                Some(number) if lines.is_empty() && number > first => return Ok(EntriesFrom::Gone(number)),
                Some(number) if number >= first => {}
                // A line that is no entry is given with its neighbours, so that the reader's check of the chain finds it.
                None if !lines.is_empty() => {}
                _ => continue,
            }
            if !lines.is_empty() && lines.len() + line.len() >= limit {
                return Ok(EntriesFrom::Lines(lines));
            }
            lines.extend_from_slice(&line);
            lines.push(b'\n');
        }
    }
    Ok(EntriesFrom::Lines(lines))
}

fn number(line: &[u8]) -> Option<u64> {
    serde_json::from_slice::<Numbered>(line).ok().map(|entry| entry.seq)
}

/// The beginning of a line before that of entry `first`, and near it. Every line before it has a smaller number.
fn near(file: &mut File, first: u64) -> io::Result<u64> {
    let (mut low, mut high) = (0, file.metadata()?.len());
    while high - low > WINDOW {
        let middle = low + (high - low) / 2;
        match entry_after(file, middle, high)? {
            Some((number, end)) if number < first => low = end,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// The first entry whose line begins after a position and before `end`: its number, and the position after its line.
fn entry_after(file: &mut File, position: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
    file.seek(SeekFrom::Start(position))?;
    let mut reader = BufReader::new(&*file);
    let (mut at, mut line) = (position, Vec::new());
    // The first line is the remainder of one that begins before the position.
    let mut is_remainder = true;
    while at < end && chain::next_line(&mut reader, &mut line)? == LogLine::Whole {
        at += line.len() as u64 + 1;
        if !std::mem::replace(&mut is_remainder, false)
            && let Some(number) = number(&line)
        {
            return Ok(Some((number, at)));
        }
    }
    Ok(None)
}
