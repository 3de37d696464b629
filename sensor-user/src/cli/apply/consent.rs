//! Consent to an apply: the plan and a question on a terminal, or the options that answer the question.
//!
//! In: the plan. Out: whether the apply may start. Nothing is written yet, and no lock is held while a person reads: the
//! engine notices at its start if another apply ended in the meantime.

use super::{host::ApplyRun, options::ApplyFlags, show_plan::text};
use crate::cli::{
    exit::BadInput,
    output::{Screen, count, say},
};
use sensor_model::{changes::ChangeOperation, plan::Plan};
use std::io::{self, BufRead, IsTerminal as _, Write};

/// The variable that answers the question, as `--yes` does.
const YES: &str = "HOLDFAST_YES";
/// The variable that allows a reboot, as `--reboot` does.
const REBOOT: &str = "HOLDFAST_REBOOT";

/// The consent that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Missing {
    yes: bool,
    reboot: bool,
}

impl Missing {
    fn of(options: &ApplyFlags, plan: &Plan) -> Self {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| value == "1");
        Self {
            yes: !options.yes && !is_set(YES),
            reboot: plan.reboot && !options.no_acts && !options.reboot && !is_set(REBOOT),
        }
    }

    /// What to add to the command line.
    fn refusal(self) -> String {
        let yes = self.yes.then(|| format!("`--yes` (or {YES}=1)"));
        let reboot =
            self.reboot.then(|| format!("`--reboot` (or {REBOOT}=1), since the plan reboots the host"));
        let add: Vec<String> = yes.into_iter().chain(reboot).collect();
        format!("nothing was started: there is no terminal to ask on; add {}", add.join(" and "))
    }
}

fn question(plan: &Plan, reboots: bool) -> String {
    let forced = plan.forced_removals();
    let removed = plan.changes.iter().filter(|change| change.operation == ChangeOperation::Remove);
    let removals = removed.count() + forced;
    let what = match removals {
        0 => String::new(),
        1 => ", 1 of them a removal".to_owned(),
        removals => format!(", {removals} of them removals"),
    };
    let changes = count(plan.changes.len() + forced, "change");
    let then = if reboots { " and reboot this host" } else { "" };
    format!("Apply this ({changes}{what}){then}? [y/N] ")
}

impl ApplyRun<'_> {
    /// Whether the apply may start. Without a terminal and the options, it prints the plan and refuses.
    pub(super) fn may_begin(
        &self,
        screen: &mut Screen,
        plan: &Plan,
        is_forced: bool,
    ) -> anyhow::Result<bool> {
        let missing = Missing::of(self.options, plan);
        if !missing.yes && !missing.reboot {
            return Ok(true);
        }
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            self.print(screen, plan, is_forced, false)?;
            return Err(BadInput::because(missing.refusal()));
        }
        // Standard output holds the report only.
        text(&mut Screen::plain(Box::new(io::stderr())), plan, is_forced)?;
        let question = question(plan, plan.reboot && !self.options.no_acts);
        let yes = ask(&question, &mut io::stdin().lock(), &mut io::stderr().lock())?;
        if !yes {
            say("nothing was started");
        }
        Ok(yes)
    }
}

fn ask(question: &str, from: &mut impl BufRead, to: &mut impl Write) -> io::Result<bool> {
    write!(to, "{question}")?;
    to.flush()?;
    let mut answer = String::new();
    from.read_line(&mut answer)?;
    if !answer.ends_with('\n') {
        // At the end of the input, the line on the terminal is not ended yet.
        writeln!(to)?;
    }
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
