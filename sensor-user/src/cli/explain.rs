//! `holdfast explain`: everything about one path.

use super::{
    describe,
    exit::{DRIFT, IN_SYNC, runtime},
    log_errors,
    output::{Output, Screen, Tone, clean},
    sources::{Sources, host_path},
    who,
};
use crate::{
    inspection::{self, ExplainReport, ExplainedThing, Explanation, PathPolicy},
    report::forensic::{self, LogPlace},
};
use anyhow::Context as _;
use sensor_model::verdict::VerdictKind;
use std::{io, path::PathBuf};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Explain {
    /// The path on the host; for a unit, the path of its file.
    #[arg(value_parser = host_path)]
    path: PathBuf,
    #[command(flatten)]
    sources: Sources,
    /// Directory of the forensic log.
    #[arg(long, default_value = forensic::DIRECTORY, value_name = "DIRECTORY")]
    log: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl Explain {
    /// Observes the path and reports.
    ///
    /// # Errors
    /// Bad input, and a log that is not sound or cannot be read.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let host = self.sources.load()?;
        let log = LogPlace::of_this_machine(&self.log, self.sources.state.as_deref());
        let Explanation { report, doubt } =
            runtime()?.block_on(inspection::explain(&host, &self.path, &log))?;
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        screen.flush()?;
        log_errors::refuse_unsound(doubt.context("the last change is not known")?, screen)?;
        Ok(if report.verdict == VerdictKind::Compliant { IN_SYNC } else { DRIFT })
    }
}

fn text(report: &ExplainReport, screen: &mut Screen) -> io::Result<()> {
    if !report.managed {
        let path = clean(&report.path);
        screen.line(&format!("{path} is not managed: no MachineConfig declares it"))?;
    }
    for explained in &report.things {
        thing(explained, screen)?;
    }
    for waits in &report.waiting {
        screen.line(&format!("{}: {}", screen.paint(Tone::Notable, "waits"), clean(&waits.text)))?;
    }
    if report.managed {
        policy(&report.policy, screen)?;
    }
    match &report.last_change {
        Some(change) => {
            screen.line("last change:")?;
            who::text(change, screen)
        }
        None if report.doubt.is_some() => screen.line("last change: not known"),
        None if report.managed => screen.line("last change: none in the log"),
        None => Ok(()),
    }
}

fn thing(explained: &ExplainedThing, screen: &mut Screen) -> io::Result<()> {
    let word = if explained.verdict == VerdictKind::Compliant {
        screen.paint(Tone::Good, "as declared")
    } else {
        screen.paint(Tone::Bad, "drifted")
    };
    let path = clean(&explained.thing.path().to_string_lossy());
    screen.line(&format!("{} {path}: {word}", explained.expected.noun()))?;
    let source = format!("{} ({})", explained.source.name(), explained.source.origin());
    let mut rows = vec![(None, vec!["declared by".to_owned(), clean(&source)])];
    let details = describe::expected(&explained.expected).into_iter();
    rows.extend(details.map(|(word, value)| (None, vec![word.to_owned(), value])));
    if let Some(label) = &explained.label {
        rows.push((None, vec!["label".to_owned(), clean(label)]));
    }
    rows.push((None, vec!["found".to_owned(), describe::found(&explained.observation)]));
    let differences = explained.differences.iter();
    rows.extend(
        differences.map(|difference| (Some(Tone::Bad), vec!["differs".to_owned(), clean(&difference.text)])),
    );
    screen.table(2, &rows)
}

fn policy(policy: &PathPolicy, screen: &mut Screen) -> io::Result<()> {
    let action = serde_json::to_value(policy.action).unwrap_or_default();
    let action = action.as_str().unwrap_or_default();
    let by = match (&policy.rule, &policy.origin) {
        (Some(rule), Some(origin)) => clean(&format!("rule {rule} of {origin}")),
        _ => "the default".to_owned(),
    };
    let reason = policy.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", clean(reason)));
    screen.line(&format!("drift policy: {action}, by {by}{reason}"))
}
