//! `kubectl holdfast who`, `explain` and `log`: the forensic log and the status of one node.
//!
//! In: the pages of the node's reporter, and the entry of the log that its DriftReport keeps. Out: entries, each checked by its hash
//! and its place in the chain. A node whose root wrote the log anew is found if the answer has the entry that the report keeps.

use super::access::Access;
use super::error::PluginError;
use super::exit::{DIFFERS, IN_SYNC};
use super::output::{OutputFormat, Screen};
use super::report::status_of;
use super::tunnel::NodePages;
use crate::api::ReportedLogEntry;
use crate::reports::actor_text;
use sensor_model::chain::{self, Chain, EntryFault, LogEntry};
use sensor_model::socket::{FROM, LOG, LogCheckpoint, RECORDS, STATUS, SocketErrorReason};
use sensor_model::status::{DriftedThing, NodeStatus};
use serde_json::{Value, json};
use std::time::Duration;

/// Entries that are read at once when a search goes back in the log.
const WINDOW: u64 = 500;
/// Most entries through which a search goes back.
const SEARCHED: u64 = 50_000;
/// Time that one request waits for the next entry.
const WAIT: Duration = Duration::from_mins(1);

/// Arguments of `log`.
#[derive(Debug, clap::Args)]
pub(super) struct Log {
    /// The node.
    node: String,
    /// Number of entries.
    #[arg(long = "lines", default_value_t = 20, value_name = "NUMBER")]
    lines: u64,
    /// Go on with new entries until a signal ends the command.
    #[arg(short = 'f', long)]
    follow: bool,
}

/// Arguments of `who`.
#[derive(Debug, clap::Args)]
pub(super) struct Who {
    /// The node.
    node: String,
    /// The path on the node.
    path: String,
    /// Number of changes, the newest first.
    #[arg(long = "lines", default_value_t = 10, value_name = "NUMBER")]
    lines: usize,
}

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
pub(super) struct Explain {
    /// The node.
    node: String,
    /// The path on the node.
    path: String,
}

/// An entry with the line that the log has.
#[derive(Debug)]
pub(super) struct Entry {
    line: String,
    entry: LogEntry,
}

impl Entry {
    /// The entry.
    #[cfg(test)]
    pub(super) fn log_entry(&self) -> &LogEntry {
        &self.entry
    }
}

/// The log of one node, read by parts.
struct NodeLog<'a> {
    pages: NodePages<'a>,
    /// The entry that the DriftReport keeps; `None` if it keeps none.
    kept: Option<ReportedLogEntry>,
}

impl<'a> NodeLog<'a> {
    async fn of(access: &'a Access, node: &'a str) -> Result<Self, PluginError> {
        let kept = status_of(access, node).await?.log;
        Ok(Self { pages: NodePages::of(access, node).await?, kept })
    }

    /// The number of the newest entry; 0 if there is none.
    async fn newest(&mut self) -> Result<u64, PluginError> {
        let node = self.pages.node();
        let body = match self.pages.get(LOG, Duration::ZERO).await? {
            Err(error) if error.reason == SocketErrorReason::NoEntry => return Ok(0),
            Err(error) => return Err(PluginError::Refused { node: node.to_owned(), error }),
            Ok(body) => body,
        };
        let newest: LogCheckpoint = parsed(node, LOG, &body)?;
        Ok(newest.sequence)
    }

    /// The entries from one number to another, in their order. Those that rotation removed are left out.
    async fn range(&mut self, first: u64, last: u64) -> Result<Vec<Entry>, PluginError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut next = first.max(1);
        while next <= last {
            let added = self.from(next, Duration::ZERO).await?;
            let Some(newest) = added.last().map(|added| added.entry.seq) else { break };
            entries.extend(added.into_iter().filter(|added| added.entry.seq <= last));
            next = newest + 1;
        }
        self.check(&entries)?;
        Ok(entries)
    }

    /// The entries that one answer has, from a number on or from the oldest one.
    async fn from(&mut self, first: u64, wait: Duration) -> Result<Vec<Entry>, PluginError> {
        let node = self.pages.node();
        let mut first = first;
        loop {
            match self.pages.get(&format!("{RECORDS}?{FROM}={first}"), wait).await? {
                Ok(body) => return read(node, first, &body),
                Err(error) => match error.oldest {
                    Some(oldest) if error.reason == SocketErrorReason::Gone && oldest > first => {
                        first = oldest;
                    }
                    _ => return Err(PluginError::Refused { node: node.to_owned(), error }),
                },
            }
        }
    }

    /// Checks that the entries are a part of one chain, and that it is the chain which the report knows.
    fn check(&self, entries: &[Entry]) -> Result<(), PluginError> {
        let node = self.pages.node();
        follow(node, entries)?;
        let Some(kept) = &self.kept else { return Ok(()) };
        let seq = u64::try_from(kept.sequence).unwrap_or_default();
        let is_other = entries.iter().any(|entry| entry.entry.seq == seq && entry.entry.hash != kept.hash);
        if is_other { Err(PluginError::Rewritten { node: node.to_owned(), seq }) } else { Ok(()) }
    }

    /// The newest changes of a path, the newest first, and whether the whole log was searched.
    async fn changes(&mut self, path: &str, number: usize) -> Result<(Vec<Entry>, bool), PluginError> {
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
            follow(self.pages.node(), &window)?;
            let mut of_path = Vec::new();
            for (index, entry) in window.into_iter().enumerate() {
                let is_known = entry.entry.seq > last;
                if index == 0 {
                    link = Some(Entry { line: String::new(), entry: entry.entry.clone() });
                }
                if !is_known && entry.entry.record.path.as_deref() == Some(path) {
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
        let seq = first + u64::try_from(entries.len()).unwrap_or_default();
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

impl Log {
    pub(super) async fn run(&self, access: &Access, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
        let mut log = NodeLog::of(access, &self.node).await?;
        let mut newest = log.newest().await?;
        let mut entries = log.range(newest.saturating_sub(self.lines.saturating_sub(1)), newest).await?;
        if self.lines == 0 {
            entries.clear();
        }
        loop {
            for entry in &entries {
                show(entry, screen)?;
            }
            screen.bytes(&[])?;
            if !self.follow {
                return Ok(IN_SYNC);
            }
            newest = entries.last().map_or(newest, |entry| entry.entry.seq);
            let before = entries.pop();
            entries = log.from(newest + 1, WAIT).await?;
            let whole: Vec<Entry> = before.into_iter().chain(entries).collect();
            log.check(&whole)?;
            entries = whole.into_iter().filter(|entry| entry.entry.seq > newest).collect();
        }
    }
}

/// Prints an entry: for programs the very line of the log.
fn show(entry: &Entry, screen: &mut Screen<'_>) -> Result<(), PluginError> {
    match screen.format() {
        OutputFormat::Json => screen.bytes(format!("{}\n", entry.line).as_bytes()),
        OutputFormat::Yaml => screen.object(&value(entry)).map(drop).and_then(|()| screen.bytes(b"---\n")),
        OutputFormat::Table => text(&entry.entry, screen),
    }
}

/// Prints an entry in lines for people.
pub(super) fn text(entry: &LogEntry, screen: &mut Screen<'_>) -> Result<(), PluginError> {
    let record = &entry.record;
    let mut line = format!("#{} {} {}", entry.seq, time(&record.time), record.kind.as_str());
    for (word, value) in [("", &record.path), ("by ", &record.operation)] {
        if let Some(value) = value {
            line.extend([" ", word, value]);
        }
    }
    screen.line(&line)?;
    for actor in
        record.actor.iter().chain(record.actors.iter().filter(|one| Some(*one) != record.actor.as_ref()))
    {
        screen.line(&format!("  {}, pid {}", actor_text(actor), actor.pid))?;
    }
    for difference in &record.differences {
        screen.line(&format!("  {}", difference.text))?;
    }
    Ok(())
}

/// A time to the second.
fn time(text: &str) -> String {
    text.parse::<jiff::Timestamp>()
        .map_or_else(|_| text.to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%SZ").to_string())
}

fn value(entry: &Entry) -> Value {
    serde_json::from_str(&entry.line).unwrap_or_default()
}

impl Who {
    pub(super) async fn run(&self, access: &Access, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
        let mut log = NodeLog::of(access, &self.node).await?;
        let (changes, is_whole) = log.changes(&self.path, self.lines).await?;
        let entries: Vec<Value> = changes.iter().map(value).collect();
        let answer = json!({
            "schema": "holdfast.kubectl-who/v1", "node": self.node, "path": self.path, "entries": entries,
        });
        if !screen.object(&answer)? {
            if changes.is_empty() {
                screen.line(&format!("no change of {} is in the log of {}", self.path, self.node))?;
            }
            for change in &changes {
                text(&change.entry, screen)?;
            }
        }
        if !is_whole {
            screen.note(&format!(
                "only the newest {SEARCHED} entries were searched; `holdfast who` on the node searches all"
            ))?;
        }
        Ok(IN_SYNC)
    }
}

impl Explain {
    pub(super) async fn run(&self, access: &Access, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
        let mut log = NodeLog::of(access, &self.node).await?;
        let status: NodeStatus = parsed(&self.node, STATUS, &log.pages.need(STATUS).await?)?;
        let things: Vec<&DriftedThing> =
            status.drifted.iter().filter(|thing| thing.path == self.path).collect();
        let (changes, _) = log.changes(&self.path, 1).await?;
        let answer = json!({
            "schema": "holdfast.kubectl-explain/v1", "node": self.node, "path": self.path,
            "things": things, "lastChange": changes.first().map(value),
        });
        if !screen.object(&answer)? {
            explained(&self.path, &things, screen)?;
            match changes.first() {
                Some(change) => {
                    screen.line("last change:")?;
                    text(&change.entry, screen)?;
                }
                None => screen.line("no change is in the log")?,
            }
        }
        Ok(if things.is_empty() { IN_SYNC } else { DIFFERS })
    }
}

/// Prints how a path differs.
pub(super) fn explained(
    path: &str,
    things: &[&DriftedThing],
    screen: &mut Screen<'_>,
) -> Result<(), PluginError> {
    if things.is_empty() {
        return screen.line(&format!("{path} does not differ, or is not managed"));
    }
    for thing in things {
        let kind = thing.thing.map_or("thing", sensor_model::record::ThingKind::as_str);
        let since = time(&thing.since);
        screen.line(&format!("{kind} {path}, declared by {}, differs since {since}", thing.source))?;
        for difference in &thing.differences {
            screen.line(&format!("  {}", difference.text))?;
            screen.line(&format!("    expected {}", difference.expected))?;
            screen.line(&format!("    found    {}", difference.found))?;
        }
        let by = thing.actor.as_ref().map_or_else(|| "an unknown actor".to_owned(), actor_text);
        screen.line(&format!("  by {by}"))?;
    }
    Ok(())
}

fn parsed<T: serde::de::DeserializeOwned>(node: &str, request: &str, body: &[u8]) -> Result<T, PluginError> {
    serde_json::from_slice(body).map_err(|error| PluginError::Answer {
        node: node.to_owned(),
        request: request.to_owned(),
        reason: error.to_string(),
    })
}
