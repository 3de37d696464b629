//! `holdfast who`: the last changes of a path, from the forensic log.

use super::{
    describe, log_errors,
    output::{Output, Screen, Tone, clean, count},
    sources::host_path,
};
use crate::report::forensic::{self, LogAnswer, LogPlace, PathChange};
use sensor_model::record::RecordKind;
use std::path::PathBuf;

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
    #[arg(long, default_value = forensic::DIRECTORY, value_name = "DIRECTORY")]
    log: PathBuf,
    /// State directory, in which the daemon keeps the number of the log's last entry.
    #[arg(long, default_value = crate::desired::STATE, value_name = "DIRECTORY")]
    state: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl Who {
    /// Reads the log and prints the changes.
    ///
    /// # Errors
    /// A log that cannot be read or is not sound.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let log = LogPlace::new(&self.log, &self.state);
        let LogAnswer { found: report, doubt } =
            log.who(&self.path, self.lines).map_err(log_errors::unreadable)?;
        if self.output.is_json() {
            screen.json(&report)?;
        } else if report.changes.is_empty() {
            screen.line(&format!("no change of {} is in the log", clean(&report.path)))?;
        } else {
            for change in &report.changes {
                text(change, screen)?;
            }
            let changes = count(report.changes.len(), "change");
            screen.line(&screen.paint(Tone::Quiet, &format!("{changes}, the newest first")))?;
        }
        log_errors::refuse_unsound(doubt, screen)
    }
}

/// Prints a change in two lines, one for each difference, and its diff.
///
/// # Errors
/// Those of the writer.
pub fn text(change: &PathChange, screen: &mut Screen) -> std::io::Result<()> {
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
        screen.diff_line("    ", line)?;
    }
    Ok(())
}
