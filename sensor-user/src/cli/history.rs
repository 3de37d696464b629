//! `holdfast history`: past applies, and the state of the node's config.

use super::{
    apply::options::HostOptions,
    describe,
    exit::IN_SYNC,
    output::{Screen, Tone, clean},
};
use crate::apply::HistoryReport;
use sensor_model::journal::ApplyEnd;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct History {
    #[command(flatten)]
    options: HostOptions,
}

impl History {
    /// Reads and prints. It changes nothing and does not continue an interrupted apply.
    ///
    /// # Errors
    /// A store that cannot be read.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let report = HistoryReport::read(&self.options.state())?;
        if self.options.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        Ok(IN_SYNC)
    }
}

fn text(report: &HistoryReport, screen: &mut Screen) -> std::io::Result<()> {
    let standing = &report.standing;
    let mut line = format!("state {}", standing.state.as_str());
    let waits = ["waits for ", &clean(&standing.waiting_for)].concat();
    match (standing.reason.is_empty(), standing.waiting_for.is_empty()) {
        (true, true) => line += ", no apply in progress",
        (false, true) => line += &[": ", &*clean(&standing.reason)].concat(),
        (true, false) => line += &[": ", &*waits].concat(),
        (false, false) => line += &[": ", &*clean(&standing.reason), "; ", &waits].concat(),
    }
    screen.line(&line)?;
    let mut rows = Vec::new();
    for entry in &report.applies {
        let (word, tone) = match entry.result {
            Some(ApplyEnd::Done) => ("done", Tone::Good),
            Some(ApplyEnd::RolledBack) => ("rolled back", Tone::Bad),
            Some(ApplyEnd::Abandoned) => ("not started", Tone::Bad),
            None => ("in progress", Tone::Notable),
        };
        let current = if report.current == Some(entry.id) { "current" } else { "" };
        let took = entry.seconds().map(|seconds| format!("{seconds} s")).unwrap_or_default();
        let steps: Vec<&str> = entry.plan.steps.iter().map(|step| step.action.as_str()).collect();
        let mut reason = clean(&entry.reason);
        for taken in &entry.overwritten {
            let path = taken.path.display().to_string();
            let comma = if reason.is_empty() { "" } else { "; " };
            reason = format!(
                "{reason}{comma}written again, since the update of the OS replaced it: {}",
                clean(&path)
            );
        }
        rows.push((
            Some(tone),
            vec![
                word.to_owned(),
                entry.id.to_string(),
                describe::time(&entry.began),
                took,
                format!("{} paths", entry.paths),
                steps.join(" "),
                current.to_owned(),
                reason,
            ],
        ));
    }
    if rows.is_empty() {
        return screen.line("no config was applied yet");
    }
    screen.table(0, &rows)
}
