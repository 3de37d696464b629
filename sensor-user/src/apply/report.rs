//! The report of an apply.
//!
//! In: how the apply ended, its plan, and the state directory. Out: the result, and what waits for the next boot. If a caller
//! asks: who wrote, by the forensic log, what the apply left unchanged. It prints nothing and changes nothing.

use super::{AfterRollback, Applied, Differences, waits};
use crate::report::forensic;
use sensor_model::{
    journal::{ApplyEnd, machine::MachineEnd},
    plan::Plan,
    record::Actor,
    waiting::WaitingOutput,
};
use serde::Serialize;
use std::path::Path;

/// The value of [`ApplyReport::schema`].
const SCHEMA: &str = "holdfast.apply/v1";

/// The result of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ApplyResult {
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
    /// The apply can neither continue nor roll back now.
    Halted,
}

impl ApplyResult {
    /// Its name in JSON and texts.
    pub fn as_str(self) -> &'static str {
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

impl From<&MachineEnd> for ApplyResult {
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

/// What a reboot under way is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RebootCause {
    /// The plan has it.
    Plan,
    /// An act failed, and its fallback is a reboot.
    FailedAct,
    /// It brings the old OS back.
    Rollback,
}

/// What an apply did.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ApplyReport {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Number of the apply; null if there was nothing to do.
    pub id: Option<u64>,
    /// The result.
    pub result: ApplyResult,
    /// The reason for a rollback, for a halt, or for a reboot that the plan does not have; empty otherwise.
    pub reason: String,
    /// Paths left as another process wrote them, skipped acts, failures of the rollback, and differences of the host.
    pub problems: Vec<String>,
    /// Differences of the host that the drift policy ignores or only observes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerated: Vec<String>,
    /// The plan that was followed; null after `--resume`.
    pub plan: Option<Plan>,
    /// Kernel arguments that wait for the next boot under the current config.
    pub waiting: Vec<WaitingOutput>,
    /// What the reboot is for, if the result is one.
    #[serde(skip)]
    pub reboot: Option<RebootCause>,
    /// The comparison with the old config after a rollback.
    #[serde(skip)]
    pub after_rollback: AfterRollback,
    /// The paths that were left.
    #[serde(skip)]
    pub left: Vec<String>,
}

impl ApplyReport {
    /// An apply that ended.
    pub fn of(applied: Applied, plan: Option<Plan>, state: &Path) -> Self {
        let result = ApplyResult::from(&applied.end);
        let cause = match (applied.rolls_back, applied.is_fallback) {
            (true, _) => RebootCause::Rollback,
            (false, true) => RebootCause::FailedAct,
            (false, false) => RebootCause::Plan,
        };
        Self {
            id: Some(applied.id),
            reason: applied.reason,
            problems: applied.problems,
            tolerated: applied.tolerated,
            plan,
            reboot: (result == ApplyResult::Rebooting).then_some(cause),
            after_rollback: applied.after_rollback,
            left: applied.left,
            ..Self::empty(result, state)
        }
    }

    /// Two equal configs, and the comparison of the host with them.
    pub fn unchanged(found: Differences, plan: Plan, state: &Path) -> Self {
        let Differences { problems, tolerated } = found;
        let result = if problems.is_empty() { ApplyResult::Unchanged } else { ApplyResult::Drifted };
        Self { problems, tolerated, plan: Some(plan), ..Self::empty(result, state) }
    }

    /// No apply was interrupted.
    pub fn nothing_to_resume(state: &Path) -> Self {
        Self::empty(ApplyResult::Unchanged, state)
    }

    /// Whether the host has the new config, or has it after a reboot of the plan.
    pub fn is_success(&self) -> bool {
        match self.result {
            ApplyResult::Done | ApplyResult::Unchanged => true,
            ApplyResult::Rebooting => self.reboot == Some(RebootCause::Plan),
            _ => false,
        }
    }

    /// The problems that the reason does not name. The journal keeps the reason as a text, and a resumed process has no other
    /// form of it, so the texts are compared. Only what is printed depends on this.
    pub fn problems_besides_reason(&self) -> impl Iterator<Item = &str> {
        let problems = self.problems.iter().map(String::as_str);
        problems.filter(|problem| !self.reason.contains(problem))
    }

    /// The paths that were left and the actors of their last changes, as far as the forensic log has them. It reads that log.
    pub fn last_actors(&self) -> impl Iterator<Item = (&str, Actor)> {
        let log = Path::new(forensic::DIRECTORY);
        self.left.iter().filter_map(|path| Some((path.as_str(), forensic::last_actor(log, Path::new(path))?)))
    }

    fn empty(result: ApplyResult, state: &Path) -> Self {
        Self {
            schema: SCHEMA,
            id: None,
            result,
            reason: String::new(),
            problems: Vec::new(),
            tolerated: Vec::new(),
            plan: None,
            // Arguments that cannot be read are no reason to withhold the report.
            waiting: waits(state).unwrap_or_default().into_iter().map(WaitingOutput::from).collect(),
            reboot: None,
            after_rollback: AfterRollback::No,
            left: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_that_the_reason_names_is_not_repeated() {
        let state = tempfile::tempdir().unwrap();
        let mut report = ApplyReport::empty(ApplyResult::RolledBack, state.path());
        report.problems = ["/etc/a: content differs", "/etc/b: left"].map(str::to_owned).to_vec();
        assert_eq!(report.problems_besides_reason().count(), 2);
        report.reason = "verification: /etc/a: content differs; /etc/c: missing".to_owned();
        assert_eq!(report.problems_besides_reason().collect::<Vec<_>>(), ["/etc/b: left"]);
    }
}
