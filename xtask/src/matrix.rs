//! Runs scenarios on kernels, and reports their results.
//!
//! In: a selection from the table of scenarios, and the kernel series. Out: a line for each combination, and at the end all
//! failures again. A few combinations run at once. Those with the same guest, kernel and kernel parameters start from one saved
//! boot. A failure does not stop the others.

use std::cmp::Reverse;
use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use vm_tests::guest::agent::HOLDFAST;
use vm_tests::protocol::Ending;
use vm_tests::scenarios::{Guest, SCENARIOS, Scenario};

use crate::cache::Cache;
use crate::coverage;
use crate::dist;
use crate::kernels::{self, CachedKernel};
use crate::queue::{Next, Queue};
use crate::run::{self, print, say, say_aloud};
use crate::vm::cluster::ImagePrograms;
use crate::vm::console::GuestEnd;
use crate::vm::{self, GuestParts, Outcome, Saved, Vm};

/// How many guests run at once by default. A guest waits for disks and timers a fifth of its time, so that a
/// third one keeps two cores busy.
pub(crate) const AT_ONCE: usize = 3;

/// What to run, and how.
#[derive(Debug)]
pub(crate) struct Selection {
    /// Kernel series; empty means all.
    pub(crate) kernels: Vec<String>,
    /// Only this kind of guest.
    pub(crate) guest: Option<String>,
    /// Only scenarios of this name.
    pub(crate) scenario: Option<String>,
    /// Each scenario on every kernel that it can run on, not only where it does by default.
    pub(crate) full: bool,
    /// Which build of `holdfast` the guests get.
    pub(crate) profile: dist::Profile,
    /// How many guests run at once.
    pub(crate) at_once: usize,
    /// Count instructions instead of running on two CPUs.
    pub(crate) icount: bool,
    /// Repeat what the guests print.
    pub(crate) verbose: bool,
    /// How often each combination is booted.
    pub(crate) rounds: usize,
}

impl Default for Selection {
    fn default() -> Self {
        Self {
            kernels: Vec::new(),
            guest: None,
            scenario: None,
            full: false,
            profile: dist::Profile::Release,
            at_once: AT_ONCE,
            icount: false,
            verbose: false,
            rounds: 1,
        }
    }
}

impl Selection {
    fn scenarios(&self) -> Result<Vec<&'static Scenario>> {
        let is = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
        let chosen: Vec<&Scenario> = SCENARIOS
            .iter()
            .filter(|s| is(&self.guest, s.guest.name()) && is(&self.scenario, s.name))
            .collect();
        if chosen.is_empty() {
            let known: Vec<String> =
                SCENARIOS.iter().map(|s| format!("{} ({})", s.name, s.guest.name())).collect();
            bail!("no such scenario: there are {}", known.join(", "));
        }
        Ok(chosen)
    }

    /// Fetches and makes what the guests boot from, so that a run finds it in the cache.
    pub(crate) fn fetch(&self) -> Result<()> {
        Self::parts(Cache::open()?, &self.scenarios()?).map(drop)
    }

    fn parts(cache: Cache, scenarios: &[&Scenario]) -> Result<GuestParts> {
        let guests: Vec<Guest> = scenarios.iter().map(|scenario| scenario.guest).collect();
        GuestParts::ensure(cache, &guests)
    }

    /// Runs what is selected. The error lists what failed.
    pub(crate) fn run(&self) -> Result<()> {
        self.run_beside(Vec::new())
    }

    /// The same. Each of `others` takes a place until its senders are gone. At least one place is left.
    pub(crate) fn run_beside(&self, mut others: Vec<Receiver<Infallible>>) -> Result<()> {
        let mut scenarios = self.scenarios()?;
        // The scenarios with the longest limits start first, so that none of them runs alone at the end.
        scenarios.sort_by_key(|scenario| Reverse(scenario.limit));
        let series: Vec<&str> = if self.kernels.is_empty() {
            kernels::series().collect()
        } else {
            self.kernels.iter().map(String::as_str).collect()
        };
        let cache = Cache::open()?;
        let kernels: Vec<CachedKernel> =
            series.iter().map(|name| kernels::ensure(&cache, name)).collect::<Result<_>>()?;
        let parts = Self::parts(cache, &scenarios)?;
        let holdfast = if scenarios.iter().any(|s| s.needs_holdfast) {
            Some(dist::build_holdfast(self.profile)?)
        } else {
            None
        };
        let cluster = match &holdfast {
            Some(program) if scenarios.iter().any(|scenario| scenario.guest.is_kubernetes_node()) => {
                let reporter = dist::build_cluster(self.profile)?;
                vm::cluster::files(ImagePrograms {
                    holdfast: program,
                    reporter: &reporter,
                    profile: self.profile,
                    busybox: parts.busybox(),
                })?
            }
            _ => Vec::new(),
        };
        let mut runs = Vec::new();
        for (round, scenario) in
            (1..=self.rounds).flat_map(|round| scenarios.iter().map(move |s| (round, *s)))
        {
            for kernel in kernels.iter().filter(|kernel| scenario.runs_on(&kernel.series, self.full)) {
                let mut vm = Vm::new(kernel.clone(), scenario);
                vm.round = (self.rounds > 1).then_some(round);
                vm.icount = self.icount;
                vm.verbose = self.verbose;
                // All guests get it, also those of scenarios without it, which share a boot with others.
                if let Some(program) = &holdfast {
                    vm.add_file(program.clone(), HOLDFAST)?;
                }
                if scenario.guest.is_kubernetes_node() {
                    vm.files.extend(cluster.iter().cloned());
                }
                runs.push((vm.boot_name(), vm));
            }
        }
        let single = runs.len() == 1;
        let workers = self.at_once.clamp(1, runs.len().max(1));
        say_aloud("vm", &format!("{} to run, {workers} at a time", runs.len()));
        let tally = Mutex::new(Tally::default());
        let queue = Queue::new(runs, workers, |vm: &Vm| weight(vm.scenario));
        let log = run::log();
        others.truncate(workers.saturating_sub(1));
        queue.take(others.len());
        std::thread::scope(|scope| {
            for other in others {
                let queue = &queue;
                scope.spawn(move || {
                    // The senders send nothing. The call ends when the last one is dropped.
                    let _ = other.recv();
                    queue.free(1);
                });
            }
            for _ in 0..workers {
                scope.spawn(|| {
                    run::with_log(log.clone(), || {
                        while let Some(next) = queue.next() {
                            step(next, &queue, &parts, &tally, single);
                        }
                    });
                });
            }
        });
        tally.into_inner().unwrap_or_else(PoisonError::into_inner).finish()
    }
}

/// The places of a scenario. A kubelet and an update of an image use both CPUs of their guest. Beside two other guests they take three
/// times as long, and a kubelet then also uses half as much processor time again, because much of its work is by the clock.
fn weight(scenario: &Scenario) -> usize {
    match scenario.guest {
        Guest::Kube | Guest::KubeTrixie if scenario.without_kubelet => 1,
        Guest::Kube | Guest::KubeTrixie | Guest::Ostree => 2,
        _ => 1,
    }
}

/// Makes a boot, or runs a scenario.
fn step(
    next: Next<Vm, Saved>,
    queue: &Queue<Vm, Saved>,
    parts: &GuestParts,
    tally: &Mutex<Tally>,
    detail: bool,
) {
    // It is changed in single steps, so a worker that panicked left it whole.
    let tally = || tally.lock().unwrap_or_else(PoisonError::into_inner);
    match next {
        Next::Boot(vm) => {
            let (name, saved) = (vm.boot_name(), Saved::make(&vm, parts));
            match &saved {
                Ok(saved) => tally().count_boot(&name, saved),
                // Each of its runs then boots by itself, and reports the cause.
                Err(error) => say("vm", &format!("{name}: {error:#}")),
            }
            queue.made(&name, saved.ok());
        }
        Next::Run(vm, saved) => {
            let outcome = vm.run(parts, saved.as_deref());
            queue.ended(&vm);
            tally().count(&vm.name(), outcome, detail);
        }
    }
}

/// Sums of a run.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: usize,
    retries: u32,
    /// Boots that were saved.
    boots: usize,
    /// How long all guests took, and the processor time of their emulators.
    took: Duration,
    cpu: Duration,
    failures: Vec<String>,
}

impl Tally {
    /// Adds a boot that was saved, and prints its duration.
    fn count_boot(&mut self, name: &str, saved: &Saved) {
        self.boots += 1;
        self.retries += saved.retries;
        self.took += saved.took;
        self.cpu += saved.cpu;
        say("booted", &format!("{name} ({:.1} s)", saved.took.as_secs_f64()));
    }

    /// Adds the outcome of a run, and prints it in one line; with `detail` first a line for each check.
    fn count(&mut self, name: &str, outcome: Result<Outcome>, detail: bool) {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                self.failed += 1;
                say_aloud("FAILED", name);
                self.failures.push(format!("{name}: {error:#}"));
                return;
            }
        };
        if detail {
            for result in &outcome.seen.results {
                print(&format!("{:>8} {}: {}", word(result.ending), result.name, result.detail));
            }
        }
        let mut problems = problems(name, &outcome);
        if let Err(error) = coverage::keep(name, &outcome.seen.results) {
            problems.push(format!("{name}: {error:#}"));
        }
        self.retries += outcome.retries;
        self.took += outcome.took;
        self.cpu += outcome.seen.cpu;
        let release = outcome.seen.release.as_deref().unwrap_or("no kernel");
        let what = format!(
            "{} checks, {:.1} s, {:.1} s of CPU, {release}",
            outcome.seen.results.len(),
            outcome.took.as_secs_f64(),
            outcome.seen.cpu.as_secs_f64()
        );
        if problems.is_empty() {
            self.passed += 1;
            say_aloud("passed", &format!("{name} ({what})"));
        } else {
            self.failed += 1;
            // The line names the log and the problems, so that the closing lines alone show the cause.
            say_aloud("FAILED", &format!("{name} ({what}), log: {}", outcome.log.display()));
            for problem in &problems {
                say_aloud("", problem);
            }
            self.failures.append(&mut problems);
            self.failures.push(format!("{name}: log: {}", outcome.log.display()));
        }
    }

    /// Prints the sums last. The error has all failures again, with the log of each guest.
    fn finish(self) -> Result<()> {
        if self.retries > 0 {
            print(&format!("{} started twice", self.retries));
        }
        let (took, cpu) = (self.took.as_secs_f64(), self.cpu.as_secs_f64());
        print(&format!("{} boots shared; guests took {took:.0} s, {cpu:.0} s of CPU", self.boots));
        print(&format!("{} passed, {} failed", self.passed, self.failed));
        if self.failed > 0 {
            let all = self.failed + self.passed;
            bail!("{} of {all} virtual machines failed:\n  {}", self.failed, self.failures.join("\n  "));
        }
        Ok(())
    }
}

/// The problems of a boot.
pub(crate) fn problems(name: &str, outcome: &Outcome) -> Vec<String> {
    let results = &outcome.seen.results;
    let failed = results.iter().filter(|result| result.ending == Ending::Fail);
    let mut problems: Vec<String> = failed.map(|r| format!("{name}: {}: {}", r.name, r.detail)).collect();
    match &outcome.seen.end {
        GuestEnd::Done if results.iter().all(|result| result.ending == Ending::Skip) => {
            problems.push(format!("{name}: nothing was checked"));
        }
        GuestEnd::Done => {}
        GuestEnd::Panic(line) => problems.push(format!("{name}: the kernel panicked: {line}")),
        GuestEnd::Died => problems.push(format!("{name}: the guest ended before its scenario did")),
        GuestEnd::Silent(seconds) => problems.push(format!("{name}: no line for {seconds} s")),
        GuestEnd::Ready => problems.push(format!("{name}: its scenario was not started")),
        GuestEnd::TooLong(seconds) => problems.push(format!("{name}: not done after {seconds} s")),
    }
    // The logs are lost if the machine that ran the tests is removed.
    if outcome.seen.end != GuestEnd::Done {
        problems.extend(last_lines(&outcome.log).into_iter().map(|line| format!("{name} | {line}")));
    }
    problems
}

/// The last lines of a guest's log; none without a log.
fn last_lines(log: &Path) -> Vec<String> {
    /// A guest that takes too long prints a line for each thread.
    const LINES: usize = 40;
    let text = fs::read(log).unwrap_or_default();
    let lines: Vec<_> = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
    let skipped = lines.len().saturating_sub(LINES);
    lines.into_iter().skip(skipped).collect()
}

fn word(ending: Ending) -> &'static str {
    match ending {
        Ending::Pass => "ok",
        Ending::Fail => "FAILED",
        Ending::Skip => "skipped",
    }
}

#[cfg(test)]
mod tests {
    use vm_tests::protocol::ResultLine;

    use super::*;
    use crate::vm::console::Seen;

    fn outcome(endings: &[Ending], end: GuestEnd) -> Outcome {
        let results = endings
            .iter()
            .map(|&ending| ResultLine {
                name: "check".into(),
                ending,
                detail: String::new(),
                data: serde_json::Value::Null,
            })
            .collect();
        let seen = Seen {
            results,
            release: None,
            begun: true,
            booting: false,
            end,
            stalled: false,
            cpu: Duration::ZERO,
        };
        Outcome { seen, log: "log".into(), retries: 0, took: Duration::ZERO }
    }

    #[test]
    fn the_error_at_the_end_names_the_failures_with_their_logs_and_nothing_that_passed() {
        let mut tally = Tally::default();
        tally.count("good", Ok(outcome(&[Ending::Pass], GuestEnd::Done)), false);
        tally.count("bad", Ok(outcome(&[Ending::Pass], GuestEnd::Died)), false);
        let error = tally.finish().expect_err("one failed").to_string();
        assert_eq!(
            error,
            "1 of 2 virtual machines failed:\n  bad: the guest ended before its scenario did\n  bad: log: log"
        );
    }

    #[test]
    fn a_guest_passes_only_if_it_checked_something_finished_and_failed_nothing() {
        assert!(problems("vm", &outcome(&[Ending::Pass, Ending::Skip], GuestEnd::Done)).is_empty());
        assert_eq!(problems("vm", &outcome(&[Ending::Pass, Ending::Fail], GuestEnd::Done)).len(), 1);
        assert_eq!(problems("vm", &outcome(&[Ending::Skip], GuestEnd::Done)).len(), 1);
        assert_eq!(problems("vm", &outcome(&[], GuestEnd::Done)).len(), 1);
        for end in [GuestEnd::Died, GuestEnd::Silent(1), GuestEnd::TooLong(1), GuestEnd::Panic("p".into())] {
            assert_eq!(problems("vm", &outcome(&[Ending::Pass], end)).len(), 1);
        }
    }
}
