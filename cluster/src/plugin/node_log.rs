//! The forensic log of one node.
//!
//! In: the pages of the node's reporter, and the node's DriftReport. Out: entries, each checked by its hash and its place in the chain.
//! Before any entry is given, the log must have the entry that the DriftReport keeps: a log that root on the node wrote anew has
//! another one, or none.

use super::access::Access;
use super::error::PluginError;
use super::output::Screen;
use super::pages::{NodeAnswer, NodePages, Reporter};
use super::report::{rewriting_text, status_of};
use super::tunnel::{ForwardedReporter, pages_of};
use crate::api::{DriftReportStatus, ReportedLogEntry};
use crate::reports::{KeptEntry, PodNames, Rewriting, kept_entry, names_in, sequence_of};
use sensor_model::chain::{self, Chain, EntryFault, LogEntry};
use sensor_model::socket::{FROM, LOG, LogCheckpoint, RECORDS, RECORDS_BYTES, STATUS, SocketErrorReason};
use sensor_model::status::NodeStatus;
use std::time::Duration;

/// Entries that are read at once.
pub(super) const WINDOW: u64 = 500;
/// Longest line of an entry. The daemon writes much shorter ones. With it a window of a hostile node's entries has a limit, too.
const ENTRY_BYTES: usize = RECORDS_BYTES;
/// How often one read may find that rotation has removed its first entry meanwhile.
const ROTATIONS: usize = 3;
/// Most entries through which a search goes back.
pub(super) const SEARCHED: u64 = 50_000;
/// Who knew an entry that the log does not have any more.
const REPORT: &str = "the DriftReport keeps";
const ANSWER: &str = "an earlier answer had";

/// The pages from which a log is read.
pub(super) trait LogPages {
    /// The answer to a request, which the reporter may delay by `wait` until there is news.
    async fn get(&mut self, target: &str, wait: Duration) -> Result<NodeAnswer, PluginError>;
}

impl<R: Reporter> LogPages for NodePages<R> {
    async fn get(&mut self, target: &str, wait: Duration) -> Result<NodeAnswer, PluginError> {
        NodePages::get(self, target, wait).await
    }
}

/// An entry with the line that the log has.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) line: String,
    pub(super) entry: LogEntry,
}

/// The log of one node, read by parts.
#[derive(Debug)]
pub(super) struct NodeLog<P> {
    pages: P,
    node: String,
    /// The entry that the DriftReport keeps; `None` if it keeps none.
    kept: Option<ReportedLogEntry>,
    /// The names of pods and containers that the DriftReport has. The log has their ids alone.
    names: PodNames,
}

impl<'a> NodeLog<NodePages<ForwardedReporter<'a>>> {
    /// The log of a node, compared with its DriftReport.
    pub(super) async fn of(
        access: &'a Access,
        node: &'a str,
        screen: &mut Screen<'_>,
    ) -> Result<Self, PluginError> {
        let status = status_of(access, node).await?;
        Self::begin(pages_of(access, node).await?, node, &status, screen).await
    }
}

impl<P: LogPages> NodeLog<P> {
    /// The same for these pages and this report.
    ///
    /// # Errors
    /// The log does not have the entry that the report keeps, or there is no answer.
    pub(super) async fn begin(
        pages: P,
        node: &str,
        status: &DriftReportStatus,
        screen: &mut Screen<'_>,
    ) -> Result<Self, PluginError> {
        let (kept, names) = (status.log.clone(), names_in(status));
        let mut log = Self { pages, node: node.to_owned(), kept, names };
        if let Some(rewriting) = &status.log_rewritten {
            screen.note(&format!("note: {}", rewriting_text(rewriting)))?;
        }
        let Some(kept) = log.kept.clone() else { return Ok(log) };
        let sequence = sequence_of(&kept);
        match log.compare(&kept).await? {
            KeptEntry::Same => Ok(log),
            KeptEntry::Rotated { oldest } => {
                screen.note(&format!(
                    "note: rotation removed entry {sequence}, which the DriftReport keeps: the log begins at entry {oldest}. Nothing \
                     shows whether the log was written anew"
                ))?;
                Ok(log)
            }
            KeptEntry::Rewritten(found) => {
                Err(PluginError::Rewritten { node: node.to_owned(), known: REPORT, sequence, found })
            }
            KeptEntry::Unread(reason) => {
                Err(PluginError::Uncompared { node: node.to_owned(), sequence, reason })
            }
        }
    }

    /// The names of the pods and containers behind what differs now.
    pub(super) const fn names(&self) -> &PodNames {
        &self.names
    }

    /// What the log has in place of the kept entry.
    async fn compare(&mut self, kept: &ReportedLogEntry) -> Result<KeptEntry, PluginError> {
        let newest = self.newest().await?;
        let target = format!("{RECORDS}?{FROM}={}", sequence_of(kept));
        let answer = self.pages.get(&target, Duration::ZERO).await?;
        let line =
            answer.as_ref().map(|body| body.split(|byte| *byte == b'\n').find(|line| !line.is_empty()));
        Ok(kept_entry(kept, newest, line))
    }

    /// The node's status.
    pub(super) async fn status(&mut self) -> Result<NodeStatus, PluginError> {
        status_of_node(&mut self.pages, &self.node).await
    }

    /// The number of the newest entry; 0 if there is none.
    pub(super) async fn newest(&mut self) -> Result<u64, PluginError> {
        let body = match self.pages.get(LOG, Duration::ZERO).await? {
            Err(error) if error.reason == SocketErrorReason::NoEntry => return Ok(0),
            Err(error) => return Err(PluginError::Refused { node: self.node.clone(), error }),
            Ok(body) => body,
        };
        let newest: LogCheckpoint = parsed(&self.node, LOG, &body)?;
        Ok(newest.sequence)
    }

    /// The entries from one number to another, in their order. Those that rotation removed are left out. The caller knows that the log has the
    /// last one.
    pub(super) async fn range(&mut self, first: u64, last: u64) -> Result<Vec<Entry>, PluginError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut next = first.max(1);
        while next <= last {
            let (begin, added) = self.from(next, Duration::ZERO).await?;
            let Some(newest) = added.last().map(|added| added.entry.seq) else {
                if begin > last {
                    break;
                }
                let reason = format!("it has no entry {begin}, although the newest one is {last}");
                return Err(self.wrong(RECORDS, reason));
            };
            if begin > next {
                // Rotation has removed those that were read before, too.
                entries.clear();
            }
            entries.extend(added.into_iter().filter(|added| added.entry.seq <= last));
            next = newest.saturating_add(1);
            if newest == u64::MAX {
                break;
            }
        }
        self.check(&entries)?;
        Ok(entries)
    }

    /// The entries that one answer has, from a number on or from the oldest one, and the number at which they begin. The caller knows the
    /// entry before the number.
    pub(super) async fn from(
        &mut self,
        first: u64,
        wait: Duration,
    ) -> Result<(u64, Vec<Entry>), PluginError> {
        let mut begin = first;
        for _ in 0..=ROTATIONS {
            let error = match self.pages.get(&format!("{RECORDS}?{FROM}={begin}"), wait).await? {
                Ok(body) => {
                    let entries = read(&self.node, begin, &body)?;
                    // A node that gives the same entries again and again would keep the command busy for ever.
                    if let Some(other) =
                        entries.first().map(|entry| entry.entry.seq).filter(|seq| *seq != begin)
                    {
                        return Err(
                            self.wrong(RECORDS, format!("it begins with entry {other} and not with {begin}"))
                        );
                    }
                    return Ok((begin, entries));
                }
                Err(error) => error,
            };
            match error.oldest {
                Some(oldest) if error.reason == SocketErrorReason::Gone && oldest > begin => {
                    begin = oldest;
                }
                Some(_) if error.reason == SocketErrorReason::Gone => {
                    let newest = self.newest().await?;
                    return Err(PluginError::Rewritten {
                        node: self.node.clone(),
                        known: ANSWER,
                        sequence: begin.saturating_sub(1),
                        found: Rewriting::Ends { newest },
                    });
                }
                _ => return Err(PluginError::Refused { node: self.node.clone(), error }),
            }
        }
        Err(self.wrong(RECORDS, format!("entry {begin} is gone, as those before it")))
    }

    /// An answer that no honest node gives.
    fn wrong(&self, request: &str, reason: String) -> PluginError {
        PluginError::Answer { node: self.node.clone(), request: request.to_owned(), reason }
    }

    /// Checks that the entries are a part of one chain, and that it is the chain which the report knows.
    pub(super) fn check(&self, entries: &[Entry]) -> Result<(), PluginError> {
        follow(&self.node, entries)?;
        let Some(kept) = &self.kept else { return Ok(()) };
        let sequence = sequence_of(kept);
        if entries.iter().any(|entry| entry.entry.seq == sequence && entry.entry.hash != kept.hash) {
            let found = Rewriting::Other;
            return Err(PluginError::Rewritten { node: self.node.clone(), known: REPORT, sequence, found });
        }
        Ok(())
    }

    /// The newest changes of a path, the newest first, and whether the whole log was searched.
    pub(super) async fn changes(
        &mut self,
        path: &str,
        number: usize,
    ) -> Result<(Vec<Entry>, bool), PluginError> {
        let newest = self.newest().await?;
        let end = newest.saturating_sub(SEARCHED);
        let (mut last, mut found) = (newest, Vec::new());
        // The oldest entry of the window before, which the next one has to lead to.
        let mut link: Option<Entry> = None;
        while last > end && found.len() < number {
            let first = last.saturating_sub(WINDOW - 1).max(1);
            let mut window = self.range(first, last).await?;
            let oldest = window.first().map(|entry| entry.entry.seq);
            window.extend(link.take());
            follow(&self.node, &window)?;
            let mut of_path = Vec::new();
            for (index, entry) in window.into_iter().enumerate() {
                let is_known = entry.entry.seq > last;
                if index == 0 {
                    link = Some(Entry { line: String::new(), entry: entry.entry.clone() });
                }
                let record = &entry.entry.record;
                if !is_known && record.is_of_change() && record.path.as_deref() == Some(path) {
                    of_path.push(entry);
                }
            }
            found.extend(of_path.into_iter().rev());
            if oldest != Some(first) || first == 1 {
                found.truncate(number);
                return Ok((found, true));
            }
            last = first - 1;
        }
        let is_whole = last == 0 || found.len() >= number;
        found.truncate(number);
        Ok((found, is_whole))
    }
}

/// Reads the lines of an answer.
pub(super) fn read(node: &str, first: u64, body: &[u8]) -> Result<Vec<Entry>, PluginError> {
    let wrong = |seq, fault| PluginError::Unsound { node: node.to_owned(), seq, fault };
    let mut entries = Vec::new();
    for line in body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let seq = first.saturating_add(u64::try_from(entries.len()).unwrap_or_default());
        if line.len() > ENTRY_BYTES {
            let reason = format!("entry {seq} has more than {ENTRY_BYTES} bytes, which no entry has");
            return Err(PluginError::Answer { node: node.to_owned(), request: RECORDS.to_owned(), reason });
        }
        let entry = chain::open(line).map_err(|fault| wrong(seq, fault))?;
        entries.push(Entry { line: String::from_utf8_lossy(line).into_owned(), entry });
    }
    Ok(entries)
}

/// Checks that each entry follows the one before it.
pub(super) fn follow(node: &str, entries: &[Entry]) -> Result<(), PluginError> {
    let mut chain = Chain { entries: 0, first_seq: None, place: None };
    for entry in entries {
        chain.follow(&entry.entry).map_err(|fault: EntryFault| PluginError::Unsound {
            node: node.to_owned(),
            seq: entry.entry.seq,
            fault,
        })?;
    }
    Ok(())
}

/// The status of a node, by its sensor.
pub(super) async fn status_of_node<P: LogPages>(
    pages: &mut P,
    node: &str,
) -> Result<NodeStatus, PluginError> {
    let answer = pages.get(STATUS, Duration::ZERO).await?;
    let body = answer.map_err(|error| PluginError::Refused { node: node.to_owned(), error })?;
    parsed(node, STATUS, &body)
}

/// The answer to a request, of this type.
pub(super) fn parsed<T: serde::de::DeserializeOwned>(
    node: &str,
    request: &str,
    body: &[u8],
) -> Result<T, PluginError> {
    serde_json::from_slice(body).map_err(|error| PluginError::Answer {
        node: node.to_owned(),
        request: request.to_owned(),
        reason: error.to_string(),
    })
}
