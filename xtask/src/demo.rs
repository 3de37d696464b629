//! `cargo xtask demo`: the main job, shown to a person.
//!
//! In: which story. Out: on standard output, the notes of its scenario from inside a virtual machine, each at once. It fails
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
use crate::vm::cluster::{self, ImagePrograms};
use crate::vm::{GuestParts, Vm};

/// What the demo shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Story {
    /// One host without a cluster.
    Host,
    /// A node of a cluster, whose control plane runs on this machine.
    Cluster,
    /// An ostree host, and a program of its image.
    Image,
}

impl Story {
    /// What runs in the guest.
    fn what(self) -> &'static str {
        match self {
            Self::Host => "systemd",
            Self::Cluster => "a kubelet",
            Self::Image => "an ostree deployment",
        }
    }
}

/// Boots a kernel and prints the scenario's notes.
pub(crate) fn run(story: Story, series: &str, profile: Profile) -> Result<()> {
    let (guest, name) = match story {
        Story::Host => ("systemd", "demo"),
        Story::Cluster => ("kube", "daemonset"),
        Story::Image => ("ostree", "demo-image"),
    };
    let scenario = scenarios::find(guest, name).context("the table of scenarios does not have the demo")?;
    // The deployments of the ostree guest have kernels of their own.
    let series =
        if story == Story::Image { scenario.kernels.first().copied().unwrap_or(series) } else { series };
    let (parts, kernel) = {
        let cache = Cache::open()?;
        let kernel = kernels::ensure(&cache, series)?;
        (GuestParts::ensure(cache, &[scenario.guest])?, kernel)
    };
    let holdfast = dist::build_holdfast(profile)?;
    let mut vm = Vm::new(kernel, scenario);
    if story == Story::Cluster {
        let reporter = dist::build_cluster(profile)?;
        let programs =
            ImagePrograms { holdfast: &holdfast, reporter: &reporter, profile, busybox: parts.busybox() };
        vm.files.extend(cluster::files(programs)?);
    }
    vm.add_file(holdfast, HOLDFAST)?;
    vm.narrate = Some(tell);
    say(
        "demo",
        &format!("a virtual machine with kernel {series} and {} boots (half a minute)", story.what()),
    );
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
