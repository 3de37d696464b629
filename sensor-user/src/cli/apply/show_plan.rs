//! The plan of an apply as text or JSON.

use super::host::ApplyRun;
use crate::{
    apply::NO_DRAIN,
    cli::{
        exit::{DRIFT, IN_SYNC, NOT_RECONCILABLE},
        output::{Screen, Tone, clean, count},
    },
};
use sensor_model::{action::Action, plan::Plan};

/// The note on a declared path that equals the file of the OS image.
const TAKEN_BACK: &str =
    "equals the file of the OS image, so the update replaces it; Holdfast writes it again after the reboot";

/// The note on what a forced apply removes although no config declares it.
const FORCED: &str = "not declared, and the apply is forced";

impl ApplyRun<'_> {
    /// Prints the plan; gives the exit code. `open`: an earlier apply has to be finished first.
    pub(super) fn print(
        &self,
        screen: &mut Screen,
        plan: &Plan,
        is_forced: bool,
        open: bool,
    ) -> std::io::Result<u8> {
        if self.host_options.output.is_json() {
            screen.json(plan)?;
        } else {
            text(screen, plan, is_forced)?;
            screen.line(&format!(
                "{}; nothing was written",
                if plan.is_empty() && plan.forced_removals() == 0 {
                    "no change".to_owned()
                } else {
                    count(plan.all_changes(), "change")
                }
            ))?;
        }
        Ok(match plan {
            plan if !plan.reconcilable => NOT_RECONCILABLE,
            plan if plan.has_nothing_to_do() && !open => IN_SYNC,
            _ => DRIFT,
        })
    }
}

/// Prints the plan as text, with removals first, since they lose data.
pub(super) fn text(screen: &mut Screen, plan: &Plan, is_forced: bool) -> std::io::Result<()> {
    for removed in &plan.removed_by_force {
        let path = clean(&removed.path.display().to_string());
        screen.line(&match removed.lines {
            Some(lines) => format!("remove {} of {path}: {FORCED}", count(lines, "line")),
            None => format!("remove {path}: {FORCED}"),
        })?;
    }
    for change in plan.removals_first() {
        let (operation, kind) = (change.operation.as_str(), change.kind.as_str());
        let action = change.action.as_str();
        let name = clean(&change.name);
        screen.line(&format!("{operation} {kind} {name}: {action} ({})", clean(&change.policy)))?;
        for why in &change.explanation {
            screen.line(&format!("  {}", clean(why)))?;
        }
    }
    for reason in &plan.reasons {
        screen.line(&format!(
            "{}: {}",
            screen.paint(Tone::Bad, "not reconcilable"),
            clean(&reason.to_string())
        ))?;
    }
    for (number, step) in plan.steps.iter().enumerate() {
        let target = step.target.as_deref().map(|unit| format!(" {unit}")).unwrap_or_default();
        let action = step.action.as_str();
        let note = if step.action == Action::Drain { format!(" ({NO_DRAIN})") } else { String::new() };
        screen.line(&format!("step {}: {action}{}{note}", number + 1, clean(&target)))?;
    }
    for path in &plan.overwritten {
        screen.line(&format!("{}: {TAKEN_BACK}", clean(&path.display().to_string())))?;
    }
    if is_forced {
        screen.line("forced: every declared path is written, whether or not it has drifted")?;
    }
    Ok(())
}
