//! `holdfast status`: the last status that the daemon wrote, and whether the daemon still runs.

use super::{
    describe,
    exit::{DRIFT, FAILURE, IN_SYNC},
    output::{Output, Screen, Tone, clean, count},
};
use crate::report::{last_status::last_status, status_file::DIRECTORY};
use sensor_model::{
    node_state::{NodeState, Standing},
    status::{DriftedThing, OpenGap, StatusReport},
    verdict::VerdictKind,
};
use std::{io, path::PathBuf};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Status {
    /// Directory of the status file.
    #[arg(long, default_value = DIRECTORY, value_name = "DIRECTORY")]
    run: PathBuf,
    /// Where procfs is.
    #[arg(long, default_value = "/proc", value_name = "DIRECTORY", hide = true)]
    proc: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl Status {
    /// Reads the status and prints it.
    ///
    /// # Errors
    /// A status file that exists and cannot be read.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let report = last_status(&self.run, &self.proc)?;
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        Ok(match report.status.verdict {
            VerdictKind::Compliant | VerdictKind::Touched => IN_SYNC,
            VerdictKind::Drifted => DRIFT,
            VerdictKind::Unknown => FAILURE,
        })
    }
}

fn text(report: &StatusReport, screen: &mut Screen) -> io::Result<()> {
    let status = &report.status;
    if let Some(reason) = &report.reason {
        let word = screen.paint(Tone::Bad, "not running");
        screen.line(&format!("{word}: {}", clean(reason)))?;
        if status.time.is_empty() {
            return Ok(());
        }
        screen.line(&format!("its last status, from {}:", describe::time(&status.time)))?;
    }
    let things = status.counters.get("managed").copied().unwrap_or(0);
    let things = count(usize::try_from(things).unwrap_or(usize::MAX), "thing");
    let tone = match status.verdict {
        VerdictKind::Compliant => Tone::Good,
        VerdictKind::Drifted => Tone::Bad,
        _ => Tone::Notable,
    };
    if report.running {
        let verdict = screen.paint(tone, status.verdict.as_str());
        let degraded = if status.degraded { ", the node is degraded" } else { "" };
        screen.line(&format!("{verdict}: {things}, backend {}{degraded}", clean(&status.backend)))?;
    }
    if let Some(reason) = &status.config_refused {
        let word = screen.paint(Tone::Bad, "config refused");
        screen.line(&format!("{word}; the last usable one is in force: {}", clean(reason)))?;
    }
    if let Some(node) = status.node.as_ref().filter(|node| node.state != NodeState::Done) {
        standing(node, screen)?;
    }
    for thing in &status.drifted {
        drifted(thing, screen)?;
    }
    for waits in &status.waiting {
        screen.line(&format!("{}: {}", screen.paint(Tone::Notable, "waits"), clean(&waits.text)))?;
    }
    for open in status.gaps.iter().filter(|gap| gap.until.is_none()) {
        gap(open, screen)?;
    }
    Ok(())
}

/// The state of the node's config.
fn standing(node: &Standing, screen: &mut Screen) -> io::Result<()> {
    let word = screen.paint(Tone::Notable, node.state.as_str());
    let waits = Some(format!("waits for {}", node.waiting_for)).filter(|_| !node.waiting_for.is_empty());
    let parts = [Some(node.reason.clone()).filter(|reason| !reason.is_empty()), waits];
    let parts = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
    screen.line(&format!("{word} since {}: {}", describe::time(&node.since), clean(&parts)))
}

fn drifted(thing: &DriftedThing, screen: &mut Screen) -> io::Result<()> {
    let word = screen.paint(Tone::Bad, "drifted");
    let (path, since) = (clean(&thing.path), describe::time(&thing.since));
    screen.line(&format!(
        "{word} {path} since {since} ({})",
        clean(&describe::source(&thing.source, thing.strength))
    ))?;
    for difference in &thing.differences {
        screen.line(&format!("  {}", clean(&difference.text)))?;
    }
    screen.line(&format!("  by {}", describe::actor(thing.actor.as_ref())))
}

fn gap(open: &OpenGap, screen: &mut Screen) -> io::Result<()> {
    let word = screen.paint(Tone::Notable, "gap");
    let path = open.path.as_ref().map(|path| format!(" {path}")).unwrap_or_default();
    let what = clean(&format!("{}{path}", open.reason));
    screen.line(&format!("{word} since {}: {what}", describe::time(&open.since)))
}
