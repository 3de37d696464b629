//! The report of an apply as text or JSON.

use super::host::ApplyRun;
use crate::{
    apply::{AfterRollback, ApplyReport, ApplyResult, RebootCause},
    cli::{
        describe,
        exit::{DRIFT, FAILURE, IN_SYNC},
        output::{Screen, Tone, clean},
    },
};

impl ApplyRun<'_> {
    /// Prints a report; gives the exit code.
    pub(super) fn report(&self, screen: &mut Screen, report: &ApplyReport) -> anyhow::Result<u8> {
        if self.host_options.output.is_json() {
            screen.json(report)?;
        } else {
            text(report, screen)?;
        }
        Ok(match report.result {
            _ if report.is_success() => IN_SYNC,
            ApplyResult::Drifted => DRIFT,
            _ => FAILURE,
        })
    }
}

fn text(report: &ApplyReport, screen: &mut Screen) -> std::io::Result<()> {
    let tone = if report.is_success() { Tone::Good } else { Tone::Bad };
    let word = screen.paint(tone, report.result.as_str());
    let number = report.id.map(|id| format!(" (number {id})")).unwrap_or_default();
    screen.line(&format!("{word}{number}: {}", sentence(report)))?;
    if !report.reason.is_empty() {
        screen.line(&format!("  because: {}", clean(&report.reason)))?;
    }
    for problem in report.problems_besides_reason() {
        screen.line(&format!("  {}", clean(problem)))?;
    }
    for (path, actor) in report.last_actors() {
        let actor = describe::actor(Some(&actor));
        screen.line(&format!("  {} was last changed by {actor}", clean(path)))?;
    }
    for difference in &report.tolerated {
        screen.line(&format!("  left alone: {}", clean(difference)))?;
    }
    for waits in &report.waiting {
        screen.line(&format!("  waits: {}", clean(&waits.text)))?;
    }
    Ok(())
}

/// The result in a sentence.
fn sentence(report: &ApplyReport) -> &'static str {
    match report.result {
        ApplyResult::Done => "the host matches the new config",
        ApplyResult::Unchanged => "there was nothing to do",
        ApplyResult::Drifted => {
            "this is the current config, and the host differs from it; `holdfast repair --all` or `--force` restores the declared state"
        }
        ApplyResult::Rebooting => match report.reboot {
            Some(RebootCause::Rollback) => "the reboot that brings the old OS back is under way",
            Some(RebootCause::FailedAct) => {
                "the reboot is under way; after it Holdfast checks the failed action and compares everything"
            }
            Some(RebootCause::Plan) | None => {
                "the reboot is under way; after it Holdfast compares everything"
            }
        },
        ApplyResult::RolledBack => match report.after_rollback {
            AfterRollback::AsDeclared => "the host matches the old config",
            AfterRollback::Differs => {
                "every written path was restored, but the host differs from the old config"
            }
            AfterRollback::No | AfterRollback::Uncompared => {
                "every written path was restored; the host was not compared with an old config"
            }
        },
        ApplyResult::Abandoned => "nothing was written",
        ApplyResult::Halted => "the apply can neither continue nor roll back now; the next start tries again",
    }
}
