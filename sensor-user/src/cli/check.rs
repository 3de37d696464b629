//! `holdfast check`: compares the host with its config once, without the daemon and the kernel programs.

use super::{
    describe,
    exit::{DRIFT, FAILURE, IN_SYNC, runtime},
    output::{Output, Screen, Tone, clean, count},
    sources::Sources,
};
use crate::{
    inspection::{self, CheckReport},
    observation::Observer,
};
use sensor_model::verdict::VerdictKind;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Check {
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    output: Output,
}

impl Check {
    /// Compares and reports.
    ///
    /// # Errors
    /// Bad input. Things that cannot be read are in the report, and make the exit code that of a failure.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let host = self.sources.load_with(Observer::guarded)?;
        let report = runtime()?.block_on(inspection::check(&host));
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        Ok(match report.verdict {
            _ if !report.unreadable.is_empty() => FAILURE,
            VerdictKind::Compliant => IN_SYNC,
            _ => DRIFT,
        })
    }
}

fn text(report: &CheckReport, screen: &mut Screen) -> std::io::Result<()> {
    let drifted = report.drifted.iter().map(|thing| (thing, "drifted", Tone::Bad));
    let unreadable = report.unreadable.iter().map(|thing| (thing, "unknown", Tone::Notable));
    for (thing, word, tone) in drifted.chain(unreadable) {
        let word = screen.paint(tone, word);
        let path = clean(&thing.path);
        let source = screen
            .paint(Tone::Quiet, &clean(&format!("({})", describe::source(&thing.source, thing.strength))));
        screen.line(&format!("{word} {path} {source}"))?;
        for difference in &thing.differences {
            screen.line(&format!("  {}", clean(&difference.text)))?;
        }
    }
    let things = count(report.checked, "thing");
    if report.verdict == VerdictKind::Compliant {
        let word = screen.paint(Tone::Good, "in sync");
        screen.line(&format!("{word}: {things} as declared"))?;
    } else {
        screen.line(&format!("{} of {things} drifted", report.drifted.len()))?;
    }
    let undecided = report.unreadable.iter().filter(|thing| thing.may_be_of_image).count();
    let unreadable = report.unreadable.len() - undecided;
    if unreadable > 0 {
        let hint = if nix::unistd::geteuid().is_root() { "" } else { "; only root can read everything" };
        screen.line(&format!("{unreadable} of {things} could not be read{hint}"))?;
    }
    if undecided > 0 {
        screen.line(&format!(
            "{undecided} of {things} are unknown: an undeclared name may be one of the booted image, which has no index; run `holdfast image index`"
        ))?;
    }
    for waits in &report.waiting {
        screen.line(&format!("{}: {}", screen.paint(Tone::Notable, "waits"), clean(&waits.text)))?;
    }
    for (field, reason) in &report.not_checked_because {
        let word = screen.paint(Tone::Notable, "not checked");
        screen.line(&format!("{word}: {field}: {}", clean(reason)))?;
    }
    Ok(())
}
