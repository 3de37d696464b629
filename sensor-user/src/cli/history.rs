//! `holdfast history`: past applies, and the state of the node's config.

use super::{
    apply::options::HostOptions,
    describe,
    exit::IN_SYNC,
    output::{Screen, Tone, clean},
};
use crate::store::{HistoryEntry, Store};
use sensor_model::{journal::ApplyEnd, node_state::Standing};
use serde::Serialize;

/// The value of [`HistoryReport::schema`].
const SCHEMA: &str = "holdfast.history/v1";

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct History {
    #[command(flatten)]
    options: HostOptions,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct HistoryReport {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    schema: &'static str,
    /// The apply whose config the node has; null if no config was ever applied.
    current: Option<u64>,
    /// The state of the node with its config.
    standing: Standing,
    /// Every apply, the newest first.
    applies: Vec<HistoryEntry>,
}

impl History {
    /// Reads and prints. It changes nothing and does not continue an interrupted apply.
    ///
    /// # Errors
    /// A store that cannot be read.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let Some(store) = Store::open_existing(&self.options.state())? else {
            let (standing, applies) = (Standing::default(), Vec::new());
            return self.print(&HistoryReport { schema: SCHEMA, current: None, standing, applies }, screen);
        };
        let mut applies = Vec::new();
        for id in store.generations()?.into_iter().rev() {
            applies.extend(store.history(id)?);
        }
        let report = HistoryReport {
            schema: SCHEMA,
            current: store.current()?.map(|(id, _)| id),
            standing: store.standing()?.unwrap_or_default(),
            applies,
        };
        self.print(&report, screen)
    }

    fn print(&self, report: &HistoryReport, screen: &mut Screen) -> anyhow::Result<u8> {
        if self.options.output.is_json() {
            screen.json(report)?;
        } else {
            text(report, screen)?;
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
        for taken in &entry.put_again {
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
