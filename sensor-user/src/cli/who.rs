//! `holdfast who`: the last changes of a path, from the forensic log.

use super::{
    describe, log_errors,
    output::{Output, Screen, Tone, clean, count},
    sources::host_path,
};
use crate::report::forensic::{self, End, LogEntry};
use sensor_model::{
    difference::Difference,
    record::{Actor, RecordKind, RecordedState, ThingKind},
    verdict::VerdictKind,
};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The value of [`Report::schema`].
pub const SCHEMA: &str = "holdfast.who/v1";

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Who {
    /// The path on the host.
    #[arg(value_parser = host_path)]
    path: PathBuf,
    /// Number of changes, the newest first.
    #[arg(short = 'n', long = "lines", default_value_t = 10, value_name = "NUMBER")]
    lines: usize,
    /// Directory of the forensic log.
    #[arg(long, default_value = super::agent::LOG, value_name = "DIRECTORY")]
    log: PathBuf,
    /// State directory, in which the daemon keeps the number of the log's last entry.
    #[arg(long, default_value = crate::apply::STATE, value_name = "DIRECTORY")]
    state: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// Who changed a path.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Report {
    /// Always [`SCHEMA`].
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// The path.
    pub path: String,
    /// Its changes, the newest first.
    pub changes: Vec<Change>,
}

/// One change.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Change {
    /// Number of the log's entry.
    pub seq: u64,
    /// When, RFC 3339.
    pub time: String,
    /// What the entry is about.
    pub kind: RecordKind,
    /// The operation that the kernel saw, or `sweep`.
    pub operation: Option<String>,
    /// Who; null when nobody could be named.
    pub actor: Option<Actor>,
    /// All who changed it since it was last at rest, where they were several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actors: Vec<Actor>,
    /// How the thing stood after it.
    pub verdict: Option<VerdictKind>,
    /// Every difference then.
    pub differences: Vec<Difference>,
    /// The MachineConfig that said what it should be.
    pub source: Option<String>,
    /// What is managed at the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thing: Option<ThingKind>,
    /// Metadata and digest before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RecordedState>")]
    pub before: Option<serde_json::Value>,
    /// And after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RecordedState>")]
    pub after: Option<serde_json::Value>,
    /// From what was declared to what was found, where that is no secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
}

impl From<LogEntry> for Change {
    fn from(entry: LogEntry) -> Self {
        let record = entry.record;
        Self {
            seq: entry.seq,
            time: record.time,
            kind: record.kind,
            operation: record.operation,
            actor: record.actor,
            actors: record.actors,
            verdict: record.verdict,
            differences: record.differences,
            source: record.source,
            thing: record.thing,
            before: record.before,
            after: record.after,
            diff: record.diff,
        }
    }
}

/// The newest changes of exactly this path, the newest first.
///
/// # Errors
/// A log that cannot be read.
pub fn changes(log: &Path, path: &Path, number: usize) -> Result<Vec<Change>, forensic::ReadError> {
    let (entries, _) = forensic::newest_about(log, path, number)?;
    Ok(entries.into_iter().map(Change::from).collect())
}

/// The same, and why the log is not sound, by its chain and by the note of its end in the state directory.
///
/// # Errors
/// A log that cannot be read; one that is not there is bad input.
pub fn checked(
    log: &Path,
    state: &Path,
    path: &Path,
    number: usize,
) -> anyhow::Result<(Vec<Change>, Option<String>)> {
    let end = End::read(state, log);
    let (entries, found) = forensic::newest_about(log, path, number).map_err(log_errors::unreadable)?;
    let doubt = forensic::doubt(end, &found).map_err(log_errors::unreadable)?;
    Ok((entries.into_iter().map(Change::from).collect(), doubt))
}

impl Who {
    /// Reads and reports.
    ///
    /// # Errors
    /// A log that cannot be read.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let (changes, doubt) = checked(&self.log, &self.state, &self.path, self.lines)?;
        let report = Report { schema: SCHEMA, path: self.path.to_string_lossy().into_owned(), changes };
        if self.output.is_json() {
            screen.json(&report)?;
            return log_errors::doubted(doubt, screen);
        }
        if report.changes.is_empty() {
            screen.line(&format!("no change of {} is in the log", clean(&report.path)))?;
            return log_errors::doubted(doubt, screen);
        }
        for change in &report.changes {
            text(change, screen)?;
        }
        let changes = count(report.changes.len(), "change");
        screen.line(&screen.paint(Tone::Quiet, &format!("{changes}, the newest first")))?;
        log_errors::doubted(doubt, screen)
    }
}

/// Prints a change in two lines, one for each difference, and its diff.
///
/// # Errors
/// Those of the writer.
pub fn text(change: &Change, screen: &mut Screen) -> std::io::Result<()> {
    let tone = match change.kind {
        RecordKind::Drift | RecordKind::Denied => Tone::Bad,
        RecordKind::Recovered | RecordKind::Reverted => Tone::Good,
        _ => Tone::Notable,
    };
    let operation = change.operation.as_deref().unwrap_or("no operation");
    let kind = screen.paint(tone, change.kind.as_str());
    screen.line(&format!("{} {kind} by {}", describe::time(&change.time), clean(operation)))?;
    screen.line(&format!("  {}", describe::actor(change.actor.as_ref())))?;
    let named = change.actor.as_ref().map(|actor| (actor.pid, actor.start_ns));
    for actor in change.actors.iter().filter(|actor| Some((actor.pid, actor.start_ns)) != named) {
        screen.line(&format!("  beside {}", describe::actor(Some(actor))))?;
    }
    for difference in &change.differences {
        screen.line(&format!("  {}", clean(&difference.text)))?;
    }
    for line in change.diff.iter().flat_map(|diff| diff.lines()) {
        let tone = match line.as_bytes().first() {
            Some(b'+') => Some(Tone::Good),
            Some(b'-') => Some(Tone::Bad),
            Some(b'@' | b'\\') => Some(Tone::Quiet),
            _ => None,
        };
        let line = clean(line);
        let line = tone.map_or_else(|| line.clone(), |tone| screen.paint(tone, &line));
        screen.line(&format!("    {line}"))?;
    }
    Ok(())
}
