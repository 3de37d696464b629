//! `cargo xtask demo`: the main job, shown to a person.
//!
//! In: nothing. Out: on standard output, the notes of the scenario `demo` from inside a virtual machine, each at once. It fails
//! if a step of the scenario fails. The scenario decides what to show; this module prints it.

use std::io::IsTerminal;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use vm_tests::guest::agent::HOLDFAST;
use vm_tests::scenarios;

use crate::cache::Cache;
use crate::dist::{self, Profile};
use crate::kernels;
use crate::matrix::problems;
use crate::run::say;
use crate::vm::{GuestParts, Vm};

/// Boots a kernel and prints the scenario's notes.
pub(crate) fn run(series: &str, profile: Profile) -> Result<()> {
    let scenario = scenarios::find("systemd", "demo").context("the table of scenarios has no demo")?;
    let (parts, kernel) = {
        let cache = Cache::open()?;
        let kernel = kernels::ensure(&cache, series)?;
        (GuestParts::ensure(cache, &[scenario.guest])?, kernel)
    };
    let mut vm = Vm::new(kernel, scenario);
    vm.add_file(dist::build_holdfast(profile)?, HOLDFAST)?;
    vm.narrate = Some(tell);
    say("demo", &format!("a virtual machine with kernel {series} and systemd boots (half a minute)"));
    let start = Instant::now();
    let outcome = vm.run(&parts, None)?;
    println!();
    let problems = problems("demo", &outcome);
    if problems.is_empty() {
        say("demo", &format!("all of it happened just now, in {:.0} s", start.elapsed().as_secs_f64()));
        return Ok(());
    }
    bail!(
        "the demo did not come to its end; everything is in {}\n  {}",
        outcome.log.display(),
        problems.join("\n  ")
    )
}

/// Prints a note of the scenario.
fn tell(note: &str) {
    let coloured = std::io::stdout().is_terminal();
    println!();
    for line in note.lines() {
        println!("{}", dressed(line, coloured));
    }
}

/// A line in the form for the terminal: a heading is marked, a command has a prompt, any other line is indented.
fn dressed(line: &str, coloured: bool) -> String {
    let (text, style) = if let Some(heading) = line.strip_prefix("## ") {
        (heading.to_owned(), "1;32")
    } else if line.starts_with("$ ") {
        (format!("  {line}"), "1")
    } else {
        (format!("  {line}"), "")
    };
    if coloured && !style.is_empty() { format!("\x1b[{style}m{text}\x1b[0m") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_terminal_no_escape_code_is_printed() {
        for line in ["## heading", "$ command", "output"] {
            assert!(!dressed(line, false).contains('\x1b'), "{line}");
        }
        assert_eq!(dressed("## heading", false), "heading");
        assert_eq!(dressed("## heading", true), "\x1b[1;32mheading\x1b[0m");
    }
}
