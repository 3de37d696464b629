//! The question for consent to an apply, on a terminal.
//!
//! In: the plan. Out: the answer.

use super::{host::ApplyRun, show_plan::text};
use crate::{
    apply::{ConsentError, ProposedApply},
    cli::output::{Screen, count, say},
};
use std::io::{self, BufRead, IsTerminal as _, Write};

fn question(proposed: &ProposedApply<'_>) -> String {
    let what = match proposed.plan.all_removals() {
        0 => String::new(),
        1 => ", 1 of them a removal".to_owned(),
        removals => format!(", {removals} of them removals"),
    };
    let changes = count(proposed.plan.all_changes(), "change");
    let then = if proposed.reboots { " and reboot this host" } else { "" };
    format!("Apply this ({changes}{what}){then}? [y/N] ")
}

impl ApplyRun<'_> {
    /// Shows the plan and asks. Without a terminal it prints the plan and refuses.
    pub(super) fn consent(
        &self,
        screen: &mut Screen,
        proposed: &ProposedApply<'_>,
    ) -> Result<bool, ConsentError> {
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            self.print(screen, proposed.plan, proposed.forced, false)?;
            return Err(ConsentError::NoTerminal(proposed.missing));
        }
        // Standard output holds the report only.
        text(&mut Screen::plain(Box::new(io::stderr())), proposed.plan, proposed.forced)?;
        let yes = ask(&question(proposed), &mut io::stdin().lock(), &mut io::stderr().lock())?;
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
