//! `kubectl holdfast who`, `explain` and `log`: the forensic log and the status of one node.
//!
//! In: the log of a node, which was compared with the node's DriftReport, and its status. Out: entries and differences.

use super::access::Access;
use super::error::PluginError;
use super::exit::{DIFFERS, IN_SYNC};
use super::node_log::{Entry, LogPages, NodeLog, SEARCHED, WINDOW};
use super::output::{OutputFormat, Screen};
use crate::reports::{PodNames, actor_text};
use sensor_model::chain::LogEntry;
use sensor_model::status::{DriftedThing, NodeStatus, OpenGap};
use sensor_model::verdict::VerdictKind;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time that one request waits for the next entry.
const WAIT: Duration = Duration::from_mins(1);
/// Shortest time between two requests that give nothing.
const PAUSE: Duration = Duration::from_secs(1);

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
    #[arg(value_parser = absolute)]
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
    #[arg(value_parser = absolute)]
    path: String,
}

/// The note about a search that ended early.
fn not_whole() -> String {
    format!("note: only the newest {SEARCHED} entries were searched; `holdfast who` on the node searches all")
}

/// A path in the form in which the log has it. Another one would be found nowhere.
fn absolute(text: &str) -> Result<String, String> {
    if !text.starts_with('/') {
        return Err("must be an absolute path on the node".to_owned());
    }
    let names: Vec<&str> = text.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    if names.contains(&"..") {
        return Err("must not have the part ..".to_owned());
    }
    Ok(format!("/{}", names.join("/")))
}

impl Log {
    pub(super) async fn run(&self, access: &Access, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
        let log = NodeLog::of(access, &self.node, screen).await?;
        self.show(log, screen).await
    }

    /// Shows the newest entries, and those that follow.
    pub(super) async fn show<P: LogPages>(
        &self,
        mut log: NodeLog<P>,
        screen: &mut Screen<'_>,
    ) -> Result<u8, PluginError> {
        let newest = log.newest().await?;
        // The last entry that was read. The next one has to follow it.
        let mut last = None;
        if self.lines == 0 {
            last = log.range(newest, newest).await?.pop();
        }
        let mut next = newest.saturating_sub(self.lines).saturating_add(1);
        while next <= newest {
            let end = next.saturating_add(WINDOW - 1).min(newest);
            let entries = log.range(next, end).await?;
            if let Some(first) = entries.first() {
                note_rotation(&mut last, first.entry.seq, screen)?;
            }
            show_all(&log, &mut last, entries, screen)?;
            next = end.saturating_add(1);
            if end == u64::MAX {
                break;
            }
        }
        loop {
            screen.bytes(&[])?;
            if !self.follow {
                return Ok(IN_SYNC);
            }
            let next = last.as_ref().map_or(newest, |last: &Entry| last.entry.seq).saturating_add(1);
            let asked = Instant::now();
            let (begin, entries) = log.from(next, WAIT).await?;
            note_rotation(&mut last, begin, screen)?;
            if entries.is_empty() && asked.elapsed() < PAUSE {
                sleep(PAUSE).await;
            }
            show_all(&log, &mut last, entries, screen)?;
        }
    }
}

/// Notes that the log does not have all entries between the last one that was read and `begin` any more. What follows cannot be compared with
/// that one.
fn note_rotation(last: &mut Option<Entry>, begin: u64, screen: &mut Screen<'_>) -> Result<(), PluginError> {
    let missing = last.as_ref().map_or(begin, |last| last.entry.seq.saturating_add(1));
    if begin > missing {
        screen.note(&format!("note: rotation removed the entries from {missing} to {}", begin - 1))?;
        *last = None;
    }
    Ok(())
}

/// Shows entries that follow the last one that was read.
fn show_all<P: LogPages>(
    log: &NodeLog<P>,
    last: &mut Option<Entry>,
    entries: Vec<Entry>,
    screen: &mut Screen<'_>,
) -> Result<(), PluginError> {
    let known = usize::from(last.is_some());
    let mut whole: Vec<Entry> = last.take().into_iter().chain(entries).collect();
    log.check(&whole)?;
    for entry in &whole[known..] {
        show(entry, log.names(), screen)?;
    }
    *last = whole.pop();
    Ok(())
}

/// Prints an entry: for programs the very line of the log.
fn show(entry: &Entry, names: &PodNames, screen: &mut Screen<'_>) -> Result<(), PluginError> {
    match screen.format() {
        OutputFormat::Json => screen.log_line(&entry.line),
        OutputFormat::Yaml => screen.object(&value(entry)).map(drop).and_then(|()| screen.bytes(b"---\n")),
        OutputFormat::Table => text(&entry.entry, names, screen),
    }
}

/// Prints an entry in lines for people.
pub(super) fn text(entry: &LogEntry, names: &PodNames, screen: &mut Screen<'_>) -> Result<(), PluginError> {
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
        screen.line(&format!("  {}, pid {}", actor_text(actor, names), actor.pid))?;
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
        let mut log = NodeLog::of(access, &self.node, screen).await?;
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
                text(&change.entry, log.names(), screen)?;
            }
        }
        if !is_whole {
            screen.note(&not_whole())?;
        }
        Ok(IN_SYNC)
    }
}

impl Explain {
    pub(super) async fn run(&self, access: &Access, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
        let mut log = NodeLog::of(access, &self.node, screen).await?;
        self.explain(&mut log, screen).await
    }

    /// The answer of this log.
    pub(super) async fn explain<P: LogPages>(
        &self,
        log: &mut NodeLog<P>,
        screen: &mut Screen<'_>,
    ) -> Result<u8, PluginError> {
        let status: NodeStatus = log.status().await?;
        let things: Vec<&DriftedThing> =
            status.drifted.iter().filter(|thing| thing.path == self.path).collect();
        let doubt = if things.is_empty() { doubt(&status, &self.path) } else { None };
        let (changes, is_whole) = log.changes(&self.path, 1).await?;
        let answer = json!({
            "schema": "holdfast.kubectl-explain/v1", "node": self.node, "path": self.path,
            "things": things, "unknown": doubt, "lastChange": changes.first().map(value),
        });
        if !screen.object(&answer)? {
            match &doubt {
                Some(doubt) => {
                    screen.line(&format!("it is not known whether {} differs: {doubt}", self.path))?;
                }
                None => explained(&self.path, &things, log.names(), screen)?,
            }
            match changes.first() {
                Some(change) => {
                    screen.line("last change:")?;
                    text(&change.entry, log.names(), screen)?;
                }
                None => screen.line("no change is in the log")?,
            }
        }
        if !is_whole {
            screen.note(&not_whole())?;
        }
        Ok(if things.is_empty() && doubt.is_none() { IN_SYNC } else { DIFFERS })
    }
}

/// Why a path may differ that the status does not name; `None` if it does not.
fn doubt(status: &NodeStatus, path: &str) -> Option<String> {
    let is_about =
        |gap: &&OpenGap| gap.until.is_none() && gap.path.as_ref().is_none_or(|about| about == path);
    if let Some(gap) = status.gaps.iter().find(is_about) {
        return Some(format!("changes may be missing since {}: {}", time(&gap.since), gap.reason));
    }
    if status.left_out.drifted > 0 {
        return Some(format!("{} things that differ have no room in the status", status.left_out.drifted));
    }
    let has_gap = status.gaps.iter().any(|gap| gap.until.is_none());
    if status.left_out.gaps > 0 || (status.verdict == VerdictKind::Unknown && !has_gap) {
        return Some("the node has not verified everything".to_owned());
    }
    None
}

/// Prints how a path differs.
pub(super) fn explained(
    path: &str,
    things: &[&DriftedThing],
    names: &PodNames,
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
        let by = thing.actor.as_ref().map(|actor| actor_text(actor, names));
        let by = by.unwrap_or_else(|| "an unknown actor".to_owned());
        screen.line(&format!("  by {by}"))?;
    }
    Ok(())
}
