//! What watching costs, in executed instructions, and the budgets.
//!
//! In: a kernel series. Out: a table of each budget with base, Holdfast, pass or miss, and other watchers in the same setting.
//! The result can also be JSON or `docs/performance.md`. The guests have one CPU whose nanoseconds are executed instructions,
//! so the numbers depend on the code and not on the machine. Rows that are compared with each other come from one boot.

mod auditd;
pub(crate) mod cluster;
pub(crate) mod compare;
mod docs;
pub(crate) mod images;
mod output;
mod rows;
mod scans;
mod sealed;
mod section;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use vm_tests::bench::{SCENARIO, live, many};
use vm_tests::guest::agent::HOLDFAST;
use vm_tests::protocol::Ending;

use crate::cache::Cache;
use crate::dist::{self, OBJECT_VARIABLE, Profile};
use crate::kernels;
use crate::qemu::Qemu;
use crate::run::say;
use crate::vm::console::GuestEnd;
use crate::vm::{GuestParts, Vm};
pub(crate) use output::BenchFormat;
use output::Report;
use rows::Measured;

/// What to measure, and how to show it.
#[derive(Debug)]
pub(crate) struct Bench {
    /// Kernel series.
    pub(crate) kernel: String,
    /// What to print.
    pub(crate) output: BenchFormat,
    /// Whether to write the page.
    pub(crate) write_docs: bool,
    /// Measure only the rows with a boot of their own: those with 100,000 inodes enrolled, and those under the shipped rules.
    pub(crate) only_many: bool,
    /// Show what the guests print.
    pub(crate) verbose: bool,
}

impl Bench {
    /// Measures, prints, and writes the page if asked to.
    pub(crate) fn run(self) -> Result<()> {
        let (parts, auditd, qemu, kernel) = {
            let cache = Cache::open()?;
            let qemu = Qemu::ensure(&cache)?.version()?;
            let kernel = kernels::ensure(&cache, &self.kernel)?;
            let auditd = auditd::ensure(&cache)?;
            (GuestParts::ensure_with(cache, &[], Profile::Release)?, auditd, qemu, kernel)
        };
        let program = program()?;
        let mut measured = Measured::default();
        let guest = |scenario| -> Result<Vm> {
            let mut vm = Vm::new(kernel.clone(), scenario);
            vm.icount = true;
            vm.verbose = self.verbose;
            vm.add_file(program.clone(), HOLDFAST)?;
            Ok(vm)
        };
        say("bench", "boots of some minutes");
        let mut release = boot(&guest(&many::SCENARIO)?, &parts, &mut measured)?;
        boot(&guest(&live::SCENARIO)?, &parts, &mut measured)?;
        if !self.only_many {
            let mut vm = guest(&SCENARIO)?;
            auditd::add(&auditd, &mut vm)?;
            release = boot(&vm, &parts, &mut measured)?;
        }
        let report = Report {
            schema: "holdfast.bench/v1",
            kernel: release,
            qemu: qemu.trim_start_matches("QEMU emulator ").to_owned(),
            between_the_bases: if self.only_many { 0.0 } else { rows::between_the_bases(&measured)? },
            rows: if self.only_many { rows::many(&measured)? } else { rows::rows(&measured)? },
        };
        match self.output {
            BenchFormat::Json => println!("{}", serde_json::to_string_pretty(&report)?),
            BenchFormat::Table => print!("{}", docs::table(&report.rows)),
        }
        if self.write_docs {
            docs::write(&report)?;
        }
        Ok(())
    }
}

/// Builds the release; gives its path. No bench uses the program in `target/dist`, which a debug build may replace meanwhile.
fn program() -> Result<PathBuf> {
    let object = dist::build_ebpf(Profile::Release)?;
    dist::build_static("sensor-user", "holdfast", Profile::Release, &[(OBJECT_VARIABLE, &object)])
}

/// Boots a guest and adds what it measured; gives the release of its kernel.
fn boot(vm: &Vm, parts: &GuestParts, measured: &mut Measured) -> Result<String> {
    let outcome = vm.run(parts, None)?;
    for result in outcome.seen.results {
        if result.ending == Ending::Fail {
            bail!("{}: {}; log: {}", result.name, result.detail, outcome.log.display());
        }
        measured.add(result.name, result.data);
    }
    if outcome.seen.end != GuestEnd::Done {
        bail!("the guest ended with {:?}; log: {}", outcome.seen.end, outcome.log.display());
    }
    outcome.seen.release.context("a guest that is done has said its release")
}
