//! Which scenarios run on which kernels, and what came of it.
//!
//! Comes in: the table of scenarios and the kernel series. Goes out: every combination run, a few at a time, a line
//! for each one, and at the end all failures again. A failure never keeps the others from running.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use vm_tests::guest::agent::HOLDFAST;
use vm_tests::protocol::Ending;
use vm_tests::scenarios::{self, Guest};

use crate::cache::Cache;
use crate::kernels::Kernel;
use crate::run::say;
use crate::vm::console::End;
use crate::vm::{Outcome, Parts, Vm};
use crate::{dist, kernels};

/// How many guests run at once. Each has two CPUs, and waits for its disks and timers in between.
const AT_ONCE: usize = 2;

/// One combination, as on the command line.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) kernel: String,
    pub(crate) guest: String,
    pub(crate) scenario: String,
}

/// Sums of a run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: usize,
    retries: u32,
    failures: Vec<String>,
}

/// Runs one scenario by hand.
pub(crate) fn run_one(wanted: &Wanted, icount: bool, verbose: bool) -> Result<()> {
    let scenario = scenarios::find(&wanted.guest, &wanted.scenario).with_context(|| {
        let known: Vec<String> =
            scenarios::SCENARIOS.iter().map(|s| format!("{} ({})", s.name, s.guest.name())).collect();
        format!(
            "no scenario {} for the guest {}: there are {}",
            wanted.scenario,
            wanted.guest,
            known.join(", ")
        )
    })?;
    let (kernel, parts) = {
        let cache = Cache::open()?;
        (kernels::ensure(&cache, &wanted.kernel)?, Parts::ensure(&cache, scenario.guest == Guest::Systemd)?)
    };
    let mut vm = Vm::new(kernel, scenario);
    vm.icount = icount;
    vm.verbose = verbose;
    if scenario.needs_holdfast {
        vm.add_file(dist::build_holdfast(dist::Profile::Dev)?, HOLDFAST)?;
    }
    let mut tally = Tally::default();
    let outcome = vm.run(&parts)?;
    for result in &outcome.seen.results {
        println!("{:>8} {}: {}", word(result.ending), result.name, result.detail);
    }
    tally.count(&vm.name(), Ok(outcome));
    tally.finish()
}

/// Runs every scenario on every kernel that it is for; says all failures at the end.
pub(crate) fn run_all(kernels: &[String]) -> Result<()> {
    let wanted: Vec<&str> = if kernels.is_empty() {
        kernels::series().collect()
    } else {
        kernels.iter().map(String::as_str).collect()
    };
    let (parts, kernels) = {
        let cache = Cache::open()?;
        let kernels: Vec<Kernel> =
            wanted.iter().map(|series| kernels::ensure(&cache, series)).collect::<Result<_>>()?;
        (Parts::ensure(&cache, true)?, kernels)
    };
    let holdfast = dist::build_holdfast(dist::Profile::Release)?;
    let mut queue = VecDeque::new();
    for scenario in scenarios::SCENARIOS {
        for kernel in kernels.iter().filter(|kernel| scenario.runs_on(&kernel.series)) {
            let mut vm = Vm::new(kernel.clone(), scenario);
            if scenario.needs_holdfast {
                vm.add_file(holdfast.clone(), HOLDFAST)?;
            }
            queue.push_back(vm);
        }
    }
    say("vm", &format!("{} virtual machines, {AT_ONCE} at a time", queue.len()));
    let queue = Mutex::new(queue);
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                // A worker that panicked leaves both values whole: they are changed in single steps.
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                while let Some(vm) = next() {
                    let outcome = vm.run(&parts);
                    tally.lock().unwrap_or_else(PoisonError::into_inner).count(&vm.name(), outcome);
                }
            });
        }
    });
    tally.into_inner().unwrap_or_else(PoisonError::into_inner).finish()
}

fn word(ending: Ending) -> &'static str {
    match ending {
        Ending::Pass => "ok",
        Ending::Fail => "FAILED",
        Ending::Skip => "skipped",
    }
}

impl Tally {
    /// Adds the outcome of a boot, and says in one line what it was.
    fn count(&mut self, name: &str, outcome: Result<Outcome>) {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                self.failed += 1;
                say("FAILED", name);
                self.failures.push(format!("{name}: {error:#}"));
                return;
            }
        };
        let mut problems: Vec<String> = outcome
            .seen
            .results
            .iter()
            .filter(|result| result.ending == Ending::Fail)
            .map(|result| format!("{name}: {}: {}", result.name, result.detail))
            .collect();
        match &outcome.seen.end {
            End::Done => {}
            End::Panic(line) => problems.push(format!("{name}: the kernel panicked: {line}")),
            End::Died => problems.push(format!("{name}: the guest ended before its scenario did")),
            End::Silent(seconds) => problems.push(format!("{name}: no line for {seconds} s")),
            End::TooLong(seconds) => problems.push(format!("{name}: not done after {seconds} s")),
        }
        if problems.is_empty() && !outcome.seen.results.iter().any(|result| result.ending == Ending::Pass) {
            problems.push(format!("{name}: nothing was checked"));
        }
        self.retries += outcome.retries;
        let release = outcome.seen.release.as_deref().unwrap_or("no kernel");
        let what =
            format!("{} checks, {:.1} s, {release}", outcome.seen.results.len(), outcome.took.as_secs_f64());
        if problems.is_empty() {
            self.passed += 1;
            say("passed", &format!("{name} ({what})"));
        } else {
            self.failed += 1;
            say("FAILED", &format!("{name} ({what}), log: {}", outcome.log.display()));
            self.failures.append(&mut problems);
        }
    }

    /// The last lines: all failures again, and the sums.
    fn finish(self) -> Result<()> {
        for failure in &self.failures {
            println!("  {failure}");
        }
        if self.retries > 0 {
            println!("{} guests had to be started twice", self.retries);
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed > 0 {
            bail!("{} of the virtual machines failed", self.failed);
        }
        Ok(())
    }
}
