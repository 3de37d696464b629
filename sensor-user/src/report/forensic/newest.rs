//! The newest entries of a log.
//!
//! In: a log. Out: its newest entries, the newest about one path, or the entries that are added after a first read.

use super::{ChainCheck, Filter, LogEntry, ReadError, files, show, show_checked, tail};
use canon_json::CanonJsonSerialize as _;
use sensor_model::difference::{Difference, DifferenceKind};
use sensor_model::record::{Actor, Record};
use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
};

/// The newest entries, and the result of the check of all entries.
///
/// # Errors
/// A log that cannot be read.
pub(super) fn newest(log: &Path, number: usize) -> Result<(Vec<LogEntry>, ChainCheck), ReadError> {
    let mut newest = VecDeque::new();
    let found = show_checked(log, &Filter::default(), &mut |entry| {
        newest.push_back(entry);
        if newest.len() > number {
            newest.pop_front();
        }
    })?;
    Ok((newest.into(), found))
}

/// The newest entries about changes of exactly this path, the newest first, and the result of the check of all entries. An entry of a closed
/// directory is about each undeclared name in it.
///
/// # Errors
/// A log that cannot be read.
pub(super) fn newest_about(
    log: &Path,
    path: &Path,
    number: usize,
) -> Result<(Vec<LogEntry>, ChainCheck), ReadError> {
    let above = path.parent().unwrap_or(path);
    let filter = Filter { path: Some(above.to_owned()), ..Filter::default() };
    let mut newest: VecDeque<LogEntry> = VecDeque::new();
    let found = show_checked(log, &filter, &mut |entry| {
        // The filter also matches everything below the directory.
        if entry.record.is_of_change() && is_about(&entry.record, path) && number > 0 {
            newest.truncate(number - 1);
            newest.push_front(entry);
        }
    })?;
    Ok((newest.into(), found))
}

fn is_about(record: &Record, path: &Path) -> bool {
    let is_undeclared = |difference: &Difference| {
        difference.kind == DifferenceKind::Unexpected && Path::new(&difference.found) == path
    };
    record.path.as_deref().map(Path::new) == Some(path) || record.differences.iter().any(is_undeclared)
}

/// The actor of the last change of a path, if the log has it. The note of the last entry is not compared with the log.
pub fn last_actor(log: &Path, path: &Path) -> Option<Actor> {
    newest_about(log, path, 1).ok()?.0.pop()?.record.actor
}

/// Reads the entries that are added to a log, also across rotations.
#[derive(Debug)]
pub struct Follower<'a> {
    log: &'a Path,
    /// Number of the newest entry that was given.
    newest: u64,
    /// The log's files and their sizes at the last read.
    seen: Option<Vec<(PathBuf, u64)>>,
}

impl<'a> Follower<'a> {
    /// Begins after these entries; if there are none, after the newest entry of the log.
    ///
    /// # Errors
    /// A log that cannot be read.
    pub fn after(log: &'a Path, entries: &[LogEntry]) -> Result<Self, ReadError> {
        let newest = match entries.last() {
            Some(entry) => entry.seq,
            None => tail(log, 1, &Filter::default())?.last().map_or(0, |entry| entry.seq),
        };
        Ok(Self { log, newest, seen: None })
    }

    /// The entries that were added since the last call.
    ///
    /// # Errors
    /// A log that cannot be read.
    pub fn added(&mut self) -> Result<Vec<LogEntry>, ReadError> {
        // A log whose files did not grow is not read again.
        let sizes = files(self.log)?
            .into_iter()
            .map(|file| {
                let length = fs::metadata(&file).map_or(0, |metadata| metadata.len());
                (file, length)
            })
            .collect();
        if self.seen.as_ref() == Some(&sizes) {
            return Ok(Vec::new());
        }
        self.seen = Some(sizes);
        let mut added = Vec::new();
        show(self.log, &Filter::default(), &mut |entry| {
            if entry.seq > self.newest {
                added.push(entry);
            }
        })?;
        self.newest = added.last().map_or(self.newest, |entry| entry.seq);
        Ok(added)
    }
}

/// An entry in the form in which it was written, so its hash can be checked.
///
/// # Errors
/// A number that canonical JSON does not have.
pub fn canonical(entry: &LogEntry) -> io::Result<String> {
    let mut value = serde_json::to_value(&entry.record)?;
    if let Some(map) = value.as_object_mut() {
        map.insert("seq".into(), entry.seq.into());
        map.insert("previous_hash".into(), entry.previous_hash.clone().into());
        map.insert("hash".into(), entry.hash.clone().into());
    }
    value.to_canon_json_string()
}
