//! `holdfast check`: compares the host with its config once, without the daemon and the kernel programs.

use super::{
    exit::{DRIFT, FAILURE, IN_SYNC, runtime},
    output::{Output, Screen, Tone, clean, count},
    sources::Sources,
};
use crate::{observation::Observer, repair::Restorer};
use sensor_model::{
    difference::{Difference, DifferenceKind},
    verdict::VerdictKind,
    waiting::WaitingOutput,
};
use serde::Serialize;
use std::{collections::BTreeMap, sync::Arc};

/// The value of [`Report::schema`].
pub const SCHEMA: &str = "holdfast.check/v1";

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Check {
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    output: Output,
}

/// What was found.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Report {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// The worst verdict: drifted, unknown if nothing drifted and something could not be read, or compliant.
    pub verdict: VerdictKind,
    /// How many things were compared.
    pub checked: usize,
    /// Things that differ from their expectation.
    pub drifted: Vec<Drifted>,
    /// Things that could not be read, so their verdict is unknown.
    pub unreadable: Vec<Drifted>,
    /// What the configuration declares and Holdfast does not compare.
    pub not_checked: Vec<&'static str>,
    /// Why each of those is not compared.
    pub not_checked_because: BTreeMap<&'static str, String>,
    /// Kernel arguments that take effect with the next boot. They are no drift in this one.
    pub waiting: Vec<WaitingOutput>,
}

/// One thing that is not as declared, or of which that is not known.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Drifted {
    /// Path on the host; for a unit that of its file.
    pub path: String,
    /// Every difference.
    pub differences: Vec<Difference>,
    /// The MachineConfig that declares it.
    pub source: String,
    /// The file of that MachineConfig.
    pub origin: String,
}

impl Check {
    /// Compares and reports.
    ///
    /// # Errors
    /// Bad input. What cannot be read on the host is in the report, and makes the exit code that of a failure.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let loaded = self.sources.load_with(Observer::guarded)?;
        let mut restorer = Restorer::new(Arc::clone(&loaded.observer), &loaded.root);
        restorer.wait_for_servers();
        let desired = loaded.desired();
        let differing = runtime()?.block_on(async {
            let mut drifted = Vec::new();
            for expectation in &desired.expectations {
                let (_, differences) = restorer.look(expectation, &desired.ids).await;
                if !differences.is_empty() {
                    drifted.push(Drifted {
                        path: expectation.thing.path().to_string_lossy().into_owned(),
                        differences,
                        source: expectation.source.name().to_owned(),
                        origin: expectation.source.origin().to_owned(),
                    });
                }
            }
            drifted
        });
        let is_unreadable = |thing: &Drifted| {
            thing.differences.iter().all(|difference| difference.kind == DifferenceKind::Unreadable)
        };
        let (unreadable, drifted): (Vec<_>, Vec<_>) = differing.into_iter().partition(is_unreadable);
        let not_checked = loaded.not_checked();
        let report = Report {
            schema: SCHEMA,
            verdict: match (drifted.is_empty(), unreadable.is_empty()) {
                (false, _) => VerdictKind::Drifted,
                (true, false) => VerdictKind::Unknown,
                (true, true) => VerdictKind::Compliant,
            },
            checked: desired.expectations.len(),
            drifted,
            unreadable,
            not_checked: not_checked.iter().map(|not| not.field).collect(),
            not_checked_because: not_checked.into_iter().map(|not| (not.field, not.reason)).collect(),
            waiting: loaded.waiting(),
        };
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        Ok(match report.verdict {
            // A thing that cannot be read has an unknown state, which is a failure.
            _ if !report.unreadable.is_empty() => FAILURE,
            VerdictKind::Compliant => IN_SYNC,
            _ => DRIFT,
        })
    }
}

fn text(report: &Report, screen: &mut Screen) -> std::io::Result<()> {
    let drifted = report.drifted.iter().map(|thing| (thing, "drifted", Tone::Bad));
    let unreadable = report.unreadable.iter().map(|thing| (thing, "unknown", Tone::Notable));
    for (thing, word, tone) in drifted.chain(unreadable) {
        let word = screen.paint(tone, word);
        let path = clean(&thing.path);
        let source = screen.paint(Tone::Quiet, &clean(&format!("({})", thing.source)));
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
    if !report.unreadable.is_empty() {
        let hint = if nix::unistd::geteuid().is_root() { "" } else { "; only root can read everything" };
        screen.line(&format!("{} of {things} could not be read{hint}", report.unreadable.len()))?;
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
