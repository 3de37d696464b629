//! `kubectl holdfast who`, `explain` and `log`: the forensic log and the status of one node.
//!
//! In: the log of a node, which was compared with the node's DriftReport, and its status. Out: entries and differences.

use super::access::Access;
use super::error::PluginError;
use super::exit::{DIFFERS, IN_SYNC};
use super::node_log::{Entry, NodeLog, SEARCHED};
use super::output::{OutputFormat, Screen};
use crate::reports::{PodNames, actor_text};
use sensor_model::chain::LogEntry;
use sensor_model::status::{DriftedThing, NodeStatus};
use serde_json::{Value, json};
use std::time::Duration;

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

impl Log {
    pub(super) async fn run(&self, access: &Access, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
        let mut log = NodeLog::of(access, &self.node, screen).await?;
        let mut newest = log.newest().await?;
        let mut entries = log.range(newest.saturating_sub(self.lines.saturating_sub(1)), newest).await?;
        if self.lines == 0 {
            entries.clear();
        }
        loop {
            for entry in &entries {
                show(entry, log.names(), screen)?;
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
fn show(entry: &Entry, names: &PodNames, screen: &mut Screen<'_>) -> Result<(), PluginError> {
    match screen.format() {
        OutputFormat::Json => screen.bytes(format!("{}\n", entry.line).as_bytes()),
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
            screen.note(&format!(
                "only the newest {SEARCHED} entries were searched; `holdfast who` on the node searches all"
            ))?;
        }
        Ok(IN_SYNC)
    }
}

impl Explain {
    pub(super) async fn run(&self, access: &Access, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
        let mut log = NodeLog::of(access, &self.node, screen).await?;
        let status: NodeStatus = log.status().await?;
        let things: Vec<&DriftedThing> =
            status.drifted.iter().filter(|thing| thing.path == self.path).collect();
        let (changes, _) = log.changes(&self.path, 1).await?;
        let answer = json!({
            "schema": "holdfast.kubectl-explain/v1", "node": self.node, "path": self.path,
            "things": things, "lastChange": changes.first().map(value),
        });
        if !screen.object(&answer)? {
            explained(&self.path, &things, log.names(), screen)?;
            match changes.first() {
                Some(change) => {
                    screen.line("last change:")?;
                    text(&change.entry, log.names(), screen)?;
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
