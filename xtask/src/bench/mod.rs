//! What watching costs, in executed instructions, beside what it may cost.
//!
//! Comes in: a kernel series. Goes out: a table of each budget with base, ours, pass or miss, and other watchers in the
//! same setting; the same as JSON or as `docs/performance.md`. Everything is measured in one boot of one guest with one
//! CPU whose nanoseconds are executed instructions, so that the numbers are of the code and not of the machine.

mod auditd;
pub(crate) mod compare;
mod docs;
mod rows;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use vm_tests::bench::SCENARIO;
use vm_tests::guest::agent::HOLDFAST;
use vm_tests::protocol::Ending;

use crate::cache::Cache;
use crate::dist::{self, OBJECT_VARIABLE, Profile};
use crate::kernels;
use crate::qemu::Qemu;
use crate::run::say;
use crate::vm::console::End;
use crate::vm::{Parts, Vm};
use rows::{Measured, Row};

/// How the result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// The result of a bench.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    kernel: String,
    qemu: String,
    /// By how much of itself the base after the daemon differs from the one before it, at most.
    between_the_bases: f64,
    rows: Vec<Row>,
}

/// Measures, prints, and writes the page if asked to.
pub(crate) fn run(kernel: &str, output: Output, write_docs: bool, verbose: bool) -> Result<()> {
    let (parts, auditd, qemu, kernel) = {
        let cache = Cache::open()?;
        let qemu = Qemu::ensure(&cache)?.version()?;
        let kernel = kernels::ensure(&cache, kernel)?;
        let auditd = auditd::ensure(&cache)?;
        (Parts::ensure_with(cache, &[], Profile::Release)?, auditd, qemu, kernel)
    };
    let object = dist::build_ebpf(Profile::Release)?;
    // Not the one in `target/dist`, which a debug build may replace meanwhile.
    let program =
        dist::build_static("sensor-user", "holdfast", Profile::Release, &[(OBJECT_VARIABLE, &object)])?;
    let mut vm = Vm::new(kernel, &SCENARIO);
    vm.icount = true;
    vm.verbose = verbose;
    vm.add_file(program, HOLDFAST)?;
    auditd::add(&auditd, &mut vm)?;
    say("bench", "one boot of some minutes");
    let outcome = vm.run(&parts)?;
    let mut measured = Measured::default();
    for result in outcome.seen.results {
        if result.ending == Ending::Fail {
            bail!("{}: {}; log: {}", result.name, result.detail, outcome.log.display());
        }
        measured.add(result.name, result.data);
    }
    if outcome.seen.end != End::Done {
        bail!("the guest ended with {:?}; log: {}", outcome.seen.end, outcome.log.display());
    }
    let report = Report {
        schema: "holdfast.bench/v1",
        kernel: outcome.seen.release.context("a guest that is done has said its release")?,
        qemu: qemu.trim_start_matches("QEMU emulator ").to_owned(),
        between_the_bases: rows::between_the_bases(&measured)?,
        rows: rows::rows(&measured)?,
    };
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
        Output::Table => print!("{}", docs::table(&report.rows)),
    }
    if write_docs {
        docs::write(&report)?;
    }
    Ok(())
}
