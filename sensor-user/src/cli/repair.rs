//! `holdfast repair`: asks, and restores the declared state.

use super::{
    exit::{BadInput, DRIFT, IN_SYNC, runtime},
    output::{Output, Screen, Tone, clean, count},
    sources::{Sources, host_path},
};
use crate::{
    apply::{
        RepairReport,
        repairs::{self, Differing, RepairSelection},
    },
    inspection::DeclaredHost,
};
use sensor_model::{expectation::Expectation, verdict::VerdictKind};
use std::{
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    path::PathBuf,
};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Repair {
    /// Paths on the host; for a unit, the path of its file.
    #[arg(value_parser = host_path, required_unless_present = "all", conflicts_with = "all")]
    path: Vec<PathBuf>,
    /// Repair everything that has drifted.
    #[arg(long)]
    all: bool,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    output: Output,
}

impl Repair {
    /// Asks, restores, compares again, and reports.
    ///
    /// # Errors
    /// Bad input, and a question that cannot be asked. What could not be repaired is in the report.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        screen.outlive_readers();
        let state = self.sources.state();
        let lock = repairs::keep_applies_away(&state)?;
        let host = self.sources.load()?;
        let things = self.things(&host)?;
        let runtime = runtime()?;
        let mut restorer = host.restorer();
        let selection = runtime.block_on(repairs::select(&mut restorer, things, &host.desired().ids));
        let RepairSelection { differing, .. } = &selection;
        if !differing.is_empty() && !self.yes && !ask(differing)? {
            return Ok(DRIFT);
        }
        let report = RepairReport::from(runtime.block_on(repairs::repair(
            &mut restorer,
            &state,
            &host.whole,
            &selection,
        ))?);
        // A slow reader of the report must not keep applies waiting.
        drop(lock);
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        Ok(if report.verdict == VerdictKind::Compliant { IN_SYNC } else { DRIFT })
    }

    /// The things to repair.
    fn things(&self, host: &DeclaredHost) -> anyhow::Result<Vec<Expectation>> {
        if self.all {
            return Ok(host.desired().expectations.clone());
        }
        Ok(host.declared_things(&self.path)?)
    }
}

/// Shows what is to be repaired and asks.
fn ask(drifted: &[Differing]) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(BadInput::because("there is no terminal to ask on; add `--yes` to repair"));
    }
    let mut to = io::stderr().lock();
    for Differing { expectation, differences } in drifted {
        writeln!(to, "{}", clean(&expectation.thing.path().to_string_lossy()))?;
        for difference in differences {
            writeln!(to, "  {}", clean(&difference.text))?;
        }
    }
    write!(to, "Write the expected state of {} back? [y/N] ", count(drifted.len(), "thing"))?;
    to.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

fn text(report: &RepairReport, screen: &mut Screen) -> io::Result<()> {
    for thing in &report.repaired {
        let word = screen.paint(Tone::Good, "repaired");
        // Another repair restored it already: a closed directory whose undeclared file was removed.
        let actions =
            if thing.actions.is_empty() { "as declared".to_owned() } else { thing.actions.join(", ") };
        screen.line(&format!("{word} {}: {}", clean(&thing.path), clean(&actions)))?;
    }
    for thing in &report.refused {
        let word = screen.paint(Tone::Bad, "not repaired");
        screen.line(&format!("{word} {}", clean(&thing.reason)))?;
    }
    if report.repaired.is_empty() && report.refused.is_empty() {
        return screen.line("in sync: nothing to repair");
    }
    Ok(())
}
