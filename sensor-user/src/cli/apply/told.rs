//! What became of an apply, for a person and for programs.
//!
//! In: the result. Out: the report and the exit code. Nothing is done here.

use super::Site;
use crate::{
    apply::{AfterRollback, Applied, waits},
    cli::{
        DRIFT, FAILURE, IN_SYNC, agent,
        output::{Screen, Tone, clean},
        people, who,
    },
};
use sensor_model::{
    journal::{
        Ended,
        machine::{LEFT, Rest},
    },
    plan::Plan,
    waiting::Waits,
};
use serde::Serialize;
use std::path::Path;

/// The value of [`Report::schema`].
const SCHEMA: &str = "holdfast.apply/v1";

/// What became of it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) schema: &'static str,
    /// Number of the apply; null when there was nothing to do.
    pub(super) id: Option<u64>,
    /// `done`, `unchanged`, `drifted`, `rebooting`, `rolled-back`, `abandoned`, `halted`.
    pub(super) result: &'static str,
    /// Why it went back, could not go on, or reboots although no plan says so; empty when it did nothing of that.
    pub(super) reason: String,
    /// What was left as somebody else wrote it, acts that were skipped, what failed on the way back, how the host differs.
    pub(super) problems: Vec<String>,
    /// How the host differs where the drift policy ignores or only observes that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tolerated: Vec<String>,
    /// The plan that was followed; null after `--resume`.
    pub(super) plan: Option<Plan>,
    /// Kernel arguments that wait for the next boot under the config that is current now.
    pub(super) waiting: Vec<Waits>,
    /// The old config is there, or on its way.
    #[serde(skip)]
    pub(super) goes_back: bool,
    /// What the comparison with it found.
    #[serde(skip)]
    pub(super) back: AfterRollback,
}

impl Report {
    pub(super) fn of(result: &'static str) -> Self {
        Self {
            schema: SCHEMA,
            id: None,
            result,
            reason: String::new(),
            problems: Vec::new(),
            tolerated: Vec::new(),
            plan: None,
            waiting: Vec::new(),
            goes_back: false,
            back: AfterRollback::No,
        }
    }
}

impl Site<'_> {
    /// Tells how an apply came to rest.
    pub(super) fn told(
        &self,
        screen: &mut Screen,
        applied: &Applied,
        plan: Option<Plan>,
    ) -> anyhow::Result<u8> {
        let result = match &applied.rest {
            Rest::Closed(Ended::Done) => "done",
            Rest::Closed(Ended::RolledBack) => "rolled-back",
            Rest::Closed(Ended::Abandoned) => "abandoned",
            Rest::Rebooting => "rebooting",
            Rest::Halted(_) => "halted",
        };
        let Applied { id, goes_back, reason, problems, tolerated, back, .. } = applied.clone();
        let report =
            Report { id: Some(id), goes_back, reason, problems, tolerated, plan, back, ..Report::of(result) };
        self.report(screen, report)
    }

    /// Prints a report; gives the exit code.
    pub(super) fn report(&self, screen: &mut Screen, mut report: Report) -> anyhow::Result<u8> {
        // What became of the apply is told whatever can be read of this.
        report.waiting =
            waits(&self.place.state()).unwrap_or_default().into_iter().map(Waits::from).collect();
        let Report { result, reason, problems, tolerated, waiting, .. } = &report;
        // A reboot with a reason is one on the way back, or in the place of an act that failed.
        let good = matches!(*result, "done" | "unchanged") || *result == "rebooting" && reason.is_empty();
        let code = match *result {
            _ if good => IN_SYNC,
            "drifted" => DRIFT,
            _ => FAILURE,
        };
        if self.place.output.is_json() {
            screen.json(&report)?;
            return Ok(code);
        }
        let tone = if good { Tone::Good } else { Tone::Bad };
        let number = report.id.map(|id| format!(" (number {id})")).unwrap_or_default();
        let text = match *result {
            "done" => "the host is as the new config says",
            "unchanged" => "there was nothing to do",
            "drifted" => {
                "this config is the current one, and the host is not as it says; `holdfast repair --all` or `--force` brings it there"
            }
            "rebooting" if good => "the reboot is under way; after it everything is compared",
            "rebooting" if report.goes_back => "the reboot is under way that brings the old OS back",
            "rebooting" => {
                "the reboot is under way; after it what failed is looked at, and everything is compared"
            }
            "rolled-back" => match report.back {
                AfterRollback::AsDeclared => "the host is as the old config says",
                AfterRollback::Differs => {
                    "what was written was given back, but the host differs from the old config"
                }
                _ => "what was written was given back; the host was not compared with an old config",
            },
            "abandoned" => "nothing was written",
            _ => "it can go neither on nor back now; the next start tries again",
        };
        screen.line(&format!("{}{number}: {text}", screen.paint(tone, result)))?;
        if !reason.is_empty() {
            screen.line(&format!("  because: {}", clean(reason)))?;
        }
        // What is in the reason is said already, but not who did it.
        let is_news = |problem: &&String| !reason.contains(problem.as_str()) || problem.ends_with(LEFT);
        for problem in problems.iter().filter(is_news) {
            screen.line(&format!("  {}", clean(problem)))?;
            if let Some(who) = culprit(problem) {
                screen.line(&format!("    by {who}"))?;
            }
        }
        for difference in tolerated {
            screen.line(&format!("  left alone: {}", clean(difference)))?;
        }
        for waits in waiting {
            screen.line(&format!("  waits: {}", clean(&waits.text)))?;
        }
        Ok(code)
    }
}

/// Who wrote what was left, by the daemon's log; `None` where it says nothing.
fn culprit(problem: &str) -> Option<String> {
    let path = problem.strip_suffix(LEFT)?;
    let changes = who::changes(Path::new(agent::LOG), Path::new(path), 1).ok()?;
    Some(people::actor(changes.first()?.actor.as_ref()))
}
