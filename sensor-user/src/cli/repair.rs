//! `holdfast repair`: asks, and restores the declared state.

use super::{
    exit::{BadInput, DRIFT, IN_SYNC, runtime},
    output::{Output, Screen, Tone, clean, count},
    sources::{Sources, host_path},
};
use crate::apply::{QuestionError, RepairReport, RepairScope, repair_host, repairs::Differing};
use sensor_model::verdict::VerdictKind;
use std::{
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    path::PathBuf,
};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Repair {
    /// Paths on the host; for a unit, the path of its file.
    #[arg(value_parser = host_path, required_unless_present_any = ["all", "image_etc"], conflicts_with_all = ["all", "image_etc"])]
    path: Vec<PathBuf>,
    /// Repair everything that has drifted from a config or a policy.
    #[arg(long)]
    all: bool,
    /// Put back what the booted image ships below /etc, at each path that no config declares and no rule about the image ignores. What each host
    /// writes by itself stays, and so do files that the image does not have.
    #[arg(long, conflicts_with = "all")]
    image_etc: bool,
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
        let scope = match (self.all, self.image_etc) {
            (true, _) => RepairScope::All,
            (_, true) => RepairScope::ImageEtc,
            _ => RepairScope::Paths(&self.path),
        };
        let consent = |differing: &[Differing]| if self.yes { Ok(true) } else { ask(differing) };
        let report = runtime()?
            .block_on(repair_host(self.sources.named(), scope, consent))
            .map_err(|error| BadInput::wrap_if(error.is_input(), error))?;
        let Some(report) = report else { return Ok(DRIFT) };
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        Ok(if report.verdict == VerdictKind::Compliant { IN_SYNC } else { DRIFT })
    }
}

/// Shows what is to be repaired and asks.
fn ask(drifted: &[Differing]) -> Result<bool, QuestionError> {
    if !io::stdin().is_terminal() {
        return Err(QuestionError::NoTerminal);
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
