//! The report of an apply, for people and for programs.
//!
//! In: the result. Out: the report and the exit code. It changes nothing.

use super::options::Site;
use crate::{
    apply::{AfterRollback, Applied, waits},
    cli::{
        agent, describe,
        exit::{DRIFT, FAILURE, IN_SYNC},
        output::{Screen, Tone, clean},
        who,
    },
};
use sensor_model::{
    journal::{
        ApplyEnd,
        machine::{LEFT, MachineEnd},
    },
    plan::Plan,
    waiting::WaitingOutput,
};
use serde::Serialize;
use std::path::Path;

/// The value of [`Report::schema`].
const SCHEMA: &str = "holdfast.apply/v1";

/// The result of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(in crate::cli) enum Outcome {
    /// The new config is applied.
    Done,
    /// Both configs are equal, and so is the host.
    Unchanged,
    /// Both configs are equal, and the host differs from them.
    Drifted,
    /// A reboot is under way.
    Rebooting,
    /// The old config was restored.
    RolledBack,
    /// Nothing was written.
    Abandoned,
    /// The apply can neither go on nor back now.
    Halted,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Unchanged => "unchanged",
            Self::Drifted => "drifted",
            Self::Rebooting => "rebooting",
            Self::RolledBack => "rolled-back",
            Self::Abandoned => "abandoned",
            Self::Halted => "halted",
        }
    }
}

impl From<&MachineEnd> for Outcome {
    fn from(end: &MachineEnd) -> Self {
        match end {
            MachineEnd::Closed(ApplyEnd::Done) => Self::Done,
            MachineEnd::Closed(ApplyEnd::RolledBack) => Self::RolledBack,
            MachineEnd::Closed(ApplyEnd::Abandoned) => Self::Abandoned,
            MachineEnd::Rebooting => Self::Rebooting,
            MachineEnd::Halted(_) => Self::Halted,
        }
    }
}

/// What an apply did.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(in crate::cli) struct Report {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub(super) schema: &'static str,
    /// Number of the apply; null when there was nothing to do.
    pub(super) id: Option<u64>,
    /// The result.
    pub(super) result: Outcome,
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
    pub(super) waiting: Vec<WaitingOutput>,
    /// The old config is there, or on its way.
    #[serde(skip)]
    pub(super) rolls_back: bool,
    /// An action failed, and the reboot is its fallback.
    #[serde(skip)]
    pub(super) is_fallback: bool,
    /// What the comparison with it found.
    #[serde(skip)]
    pub(super) after_rollback: AfterRollback,
}

impl Report {
    pub(super) fn of(result: Outcome) -> Self {
        Self {
            schema: SCHEMA,
            id: None,
            result,
            reason: String::new(),
            problems: Vec::new(),
            tolerated: Vec::new(),
            plan: None,
            waiting: Vec::new(),
            rolls_back: false,
            is_fallback: false,
            after_rollback: AfterRollback::No,
        }
    }
}

impl Site<'_> {
    /// Reports how an apply ended.
    pub(super) fn told(
        &self,
        screen: &mut Screen,
        applied: &Applied,
        plan: Option<Plan>,
    ) -> anyhow::Result<u8> {
        let result = Outcome::from(&applied.end);
        let Applied { id, rolls_back, is_fallback, reason, problems, tolerated, after_rollback, .. } =
            applied.clone();
        let report = Report {
            rolls_back,
            is_fallback,
            reason,
            problems,
            tolerated,
            plan,
            after_rollback,
            ..Report::of(result)
        };
        let report = Report { id: Some(id), ..report };
        self.report(screen, report)
    }

    /// Prints a report; gives the exit code.
    pub(super) fn report(&self, screen: &mut Screen, mut report: Report) -> anyhow::Result<u8> {
        // The report is printed also if the arguments that wait cannot be read.
        report.waiting =
            waits(&self.place.state()).unwrap_or_default().into_iter().map(WaitingOutput::from).collect();
        let Report { result, reason, problems, tolerated, waiting, .. } = &report;
        let good = match result {
            Outcome::Done | Outcome::Unchanged => true,
            Outcome::Rebooting => !report.rolls_back && !report.is_fallback,
            _ => false,
        };
        let code = match result {
            _ if good => IN_SYNC,
            Outcome::Drifted => DRIFT,
            _ => FAILURE,
        };
        if self.place.output.is_json() {
            screen.json(&report)?;
            return Ok(code);
        }
        let tone = if good { Tone::Good } else { Tone::Bad };
        let number = report.id.map(|id| format!(" (number {id})")).unwrap_or_default();
        let text = match result {
            Outcome::Done => "the host is as the new config says",
            Outcome::Unchanged => "there was nothing to do",
            Outcome::Drifted => {
                "this config is the current one, and the host is not as it says; `holdfast repair --all` or `--force` brings it there"
            }
            Outcome::Rebooting if good => "the reboot is under way; after it everything is compared",
            Outcome::Rebooting if report.rolls_back => "the reboot is under way that brings the old OS back",
            Outcome::Rebooting => {
                "the reboot is under way; after it what failed is looked at, and everything is compared"
            }
            Outcome::RolledBack => match report.after_rollback {
                AfterRollback::AsDeclared => "the host is as the old config says",
                AfterRollback::Differs => {
                    "what was written was given back, but the host differs from the old config"
                }
                _ => "what was written was given back; the host was not compared with an old config",
            },
            Outcome::Abandoned => "nothing was written",
            Outcome::Halted => "it can go neither on nor back now; the next start tries again",
        };
        screen.line(&format!("{}{number}: {text}", screen.paint(tone, result.as_str())))?;
        if !reason.is_empty() {
            screen.line(&format!("  because: {}", clean(reason)))?;
        }
        // The reason contains the problem already, but not who caused it.
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

/// Who wrote what the apply did not overwrite, from the daemon's log; `None` where the log does not have it.
fn culprit(problem: &str) -> Option<String> {
    let path = problem.strip_suffix(LEFT)?;
    let changes = who::changes(Path::new(agent::LOG), Path::new(path), 1).ok()?;
    Some(describe::actor(changes.first()?.actor.as_ref()))
}
