//! Reading the log.
//!
//! In: the log's directory. Out: the entries of all its files, in order; the first entry that was changed; the drifts that were
//! open at the end. Reading takes no lock and changes no file, so it works while the daemon writes.

use super::segment::CURRENT;
use crate::bounded;
use jiff::Timestamp;
use rustix::fs::{RenameFlags, renameat_with};
use sensor_model::{
    chain::{self, Chain, ChainPlace, EntryFault, LogEntry, LogLine, sound_tail},
    record::{Record, RecordKind, ThingName},
};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, VecDeque},
    ffi::OsStr,
    fmt,
    fs::{self, File},
    io::{self, BufReader},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// Why a log without entries is not sound.
const EMPTIED: &str = "there is no entry in it, and a daemon writes one when it starts: the log was emptied, or no daemon ran yet";

/// A file of the log could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the forensic log {}: {source}", path.display())]
pub struct ReadError {
    /// The file or directory.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

impl ReadError {
    /// Whether there is no log.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// The first entry that was changed or is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFault {
    /// The file it is in.
    pub file: PathBuf,
    /// Its line, from 1; `None` for the end of the file.
    pub line: Option<u64>,
    /// The number that it should have, if that is known.
    pub seq: Option<u64>,
    /// What is wrong with it.
    pub reason: String,
}

/// The result of the check of a log's chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChainCheck {
    /// How many files were read.
    pub files: usize,
    /// How many entries are intact, up to the first that is not.
    pub entries: u64,
    /// Number of the first entry; more than 1 if rotation removed older ones.
    pub first_seq: Option<u64>,
    /// Number of the last intact entry.
    pub last_seq: Option<u64>,
    /// Hash of the last intact entry, to compare with a checkpoint that is kept elsewhere.
    pub last_hash: Option<String>,
    /// The first entry that was changed or is missing.
    pub fault: Option<LogFault>,
    /// Bytes of an unfinished line at the very end. The daemon is writing it, or a power loss tore it.
    pub unfinished: usize,
}

impl ChainCheck {
    /// Why the log may be incomplete or false; `None` if it is sound.
    pub fn doubt(&self) -> Option<String> {
        if let Some(fault) = &self.fault {
            return Some(fault.to_string());
        }
        (self.entries == 0).then(|| EMPTIED.to_owned())
    }
}

impl fmt::Display for LogFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.map(|line| format!(", line {line}")).unwrap_or_default();
        let seq = self.seq.map(|seq| format!(", entry {seq}")).unwrap_or_default();
        write!(f, "{}{line}{seq}: {}", self.file.display(), self.reason)
    }
}

/// Which entries to show. A field that is `None` matches every entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this path, and paths below it.
    pub path: Option<PathBuf>,
    /// Only these kinds; empty for all.
    pub kinds: Vec<RecordKind>,
    /// Only entries from this time on.
    pub since: Option<Timestamp>,
}

impl Filter {
    /// Whether an entry is to be shown. An entry whose time cannot be read is shown.
    pub fn matches(&self, entry: &LogEntry) -> bool {
        let record = &entry.record;
        let path = self.path.as_ref().is_none_or(|path| {
            record.path.as_ref().is_some_and(|changed| Path::new(changed).starts_with(path))
        });
        let kind = self.kinds.is_empty() || self.kinds.contains(&record.kind);
        let since = self
            .since
            .is_none_or(|since| record.time.parse::<Timestamp>().map_or(true, |time| time >= since));
        path && kind && since
    }

    /// Whether a line may be such an entry. Only its kind is parsed: at its start the daemon reads hundreds of megabytes for a
    /// few kinds of entries.
    fn may_match(&self, line: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Head {
            kind: RecordKind,
        }
        self.kinds.is_empty()
            || serde_json::from_slice::<Head>(line).is_ok_and(|head| self.kinds.contains(&head.kind))
    }
}

/// Renames the current file by the number of its last entry, so names sort as entries do. Gives the new name. It replaces no
/// file that has this name already.
pub(super) fn put_aside(directory: &OwnedFd, last_seq: u64) -> io::Result<String> {
    let mut name = format!("forensic-{last_seq:020}.jsonl");
    for copy in 1.. {
        match renameat_with(directory, CURRENT, directory, &name, RenameFlags::NOREPLACE) {
            Err(rustix::io::Errno::EXIST) => name = format!("forensic-{last_seq:020}-{copy}.jsonl"),
            done => {
                done?;
                break;
            }
        }
    }
    Ok(name)
}

/// Whether a name is one of the log's files.
pub fn is_log_file(name: &OsStr) -> bool {
    name == CURRENT || is_rotated(name)
}

fn is_rotated(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    bytes.starts_with(b"forensic-") && bytes.ends_with(b".jsonl")
}

/// The files of the log, the oldest first, the current one last.
pub fn files(directory: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let error = |source| ReadError { path: directory.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(error)? {
        let name = entry.map_err(error)?.file_name();
        if is_rotated(&name) {
            files.push(directory.join(name));
        }
    }
    files.sort();
    let current = directory.join(CURRENT);
    if current.try_exists().map_err(error)? {
        files.push(current);
    }
    Ok(files)
}

/// The rotated files beyond the limit.
#[derive(Debug, Default)]
pub(super) struct RemovedFiles {
    /// Names of the removed ones.
    pub(super) removed: Vec<String>,
    /// Names of those that could not be removed, and why. The log is still written.
    pub(super) not_removed: BTreeMap<String, String>,
}

/// Removes the oldest rotated files beyond `keep`.
pub(super) fn remove_oldest(directory: &Path, keep: usize) -> RemovedFiles {
    let mut result = RemovedFiles::default();
    let mut rotated = match files(directory) {
        Ok(files) => files,
        Err(error) => {
            result.not_removed.insert(".".to_owned(), error.source.to_string());
            return result;
        }
    };
    rotated.retain(|file| !file.ends_with(CURRENT));
    for file in &rotated[..rotated.len().saturating_sub(keep)] {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match fs::remove_file(file) {
            Ok(()) => result.removed.push(name),
            Err(error) => drop(result.not_removed.insert(name, error.to_string())),
        }
    }
    result
}

/// The end of the chain in the rotated files.
pub(super) fn last_place(directory: &Path) -> Option<ChainPlace> {
    let mut rotated = files(directory).ok()?;
    rotated.retain(|file| !file.ends_with(CURRENT));
    sound_tail(&bounded::read(rotated.last()?, bounded::OWN).ok()?).place
}

/// Calls `sink` with every entry that the filter matches, in order. It skips lines that are no entries; [`verify`] finds them.
pub fn show(directory: &Path, filter: &Filter, sink: &mut dyn FnMut(LogEntry)) -> Result<(), ReadError> {
    for file in files(directory)? {
        let error = |source| ReadError { path: file.clone(), source };
        let mut lines = BufReader::new(File::open(&file).map_err(error)?);
        let mut line = Vec::new();
        // After a line that is longer than any entry, the rest of the file is not read.
        while chain::next_line(&mut lines, &mut line).map_err(error)? == LogLine::Whole {
            if filter.may_match(&line)
                && let Ok(entry) = serde_json::from_slice::<LogEntry>(&line)
                && filter.matches(&entry)
            {
                sink(entry);
            }
        }
    }
    Ok(())
}

/// The last `count` entries that the filter matches, in order.
pub fn tail(directory: &Path, count: usize, filter: &Filter) -> Result<Vec<LogEntry>, ReadError> {
    let mut last = VecDeque::with_capacity(count.min(1024));
    show(directory, filter, &mut |entry| {
        if last.len() == count {
            last.pop_front();
        }
        if count > 0 {
            last.push_back(entry);
        }
    })?;
    Ok(last.into())
}

/// Checks every entry's hash, and that each follows the one before it, over all files.
pub fn verify(directory: &Path) -> Result<ChainCheck, ReadError> {
    read_all(directory, &mut |_| {})
}

/// The same, and calls `sink` with every entry that the filter matches, in order. It also gives entries at and after a fault if
/// they can be parsed; the result of the check shows that they may be false.
pub fn show_checked(
    directory: &Path,
    filter: &Filter,
    sink: &mut dyn FnMut(LogEntry),
) -> Result<ChainCheck, ReadError> {
    read_all(directory, &mut |entry| {
        if filter.matches(&entry) {
            sink(entry);
        }
    })
}

fn read_all(directory: &Path, sink: &mut dyn FnMut(LogEntry)) -> Result<ChainCheck, ReadError> {
    let files = files(directory)?;
    let mut found = ChainCheck { files: files.len(), ..ChainCheck::default() };
    let mut chain = Chain::default();
    let last = files.last().cloned();
    for file in files {
        let error = |source| ReadError { path: file.clone(), source };
        let mut lines = BufReader::new(File::open(&file).map_err(error)?);
        let (mut line, mut number) = (Vec::new(), 0);
        loop {
            number += 1;
            let kind = chain::next_line(&mut lines, &mut line).map_err(error)?;
            let checked = match kind {
                LogLine::End => break,
                LogLine::Unfinished if Some(&file) == last.as_ref() => {
                    found.unfinished = line.len();
                    break;
                }
                LogLine::Unfinished => {
                    Err("a file that was put aside ends in the middle of an entry".to_owned())
                }
                LogLine::TooLong => Err(EntryFault::TooLong.to_string()),
                // After a fault the chain is not checked any more.
                LogLine::Whole if found.fault.is_some() => Err(String::new()),
                LogLine::Whole => chain::open(&line)
                    .and_then(|entry| chain.follow(&entry).map(|()| entry))
                    .map_err(|fault| fault.to_string()),
            };
            match checked {
                Ok(entry) => sink(entry),
                Err(reason) => {
                    if let Ok(entry) = serde_json::from_slice(&line) {
                        sink(entry);
                    }
                    let seq = chain.place.as_ref().map(|place| place.seq);
                    let line = (kind != LogLine::Unfinished).then_some(number);
                    found.fault.get_or_insert_with(|| LogFault { file: file.clone(), line, seq, reason });
                }
            }
            if kind != LogLine::Whole {
                break;
            }
        }
    }
    found.entries = chain.entries;
    found.first_seq = chain.first_seq;
    found.last_seq = chain.place.as_ref().map(|place| place.seq.saturating_sub(1));
    found.last_hash = chain.place.map(|place| place.previous_hash);
    Ok(found)
}

/// A drift that was open at the end of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedDrift {
    /// Since when, RFC 3339.
    pub since: String,
    /// The last record about it.
    pub last: Record,
}

/// The drifts that were open at the end of the log, by thing. A daemon starts with these.
pub fn open_drifts(directory: &Path) -> Result<BTreeMap<ThingName, LoggedDrift>, ReadError> {
    let mut open: BTreeMap<ThingName, LoggedDrift> = BTreeMap::new();
    let kinds = vec![RecordKind::Drift, RecordKind::Recovered];
    show(directory, &Filter { kinds, ..Filter::default() }, &mut |entry| {
        let last = entry.record;
        let Some(name) = last.name() else { return };
        if last.kind == RecordKind::Recovered {
            open.remove(&name);
            return;
        }
        let since = open.get(&name).map_or_else(|| last.time.clone(), |drift| drift.since.clone());
        open.insert(name, LoggedDrift { since, last });
    })?;
    Ok(open)
}
