//! Coverage-guided runs of the fuzz targets, with the stable compiler.
//!
//! In: a number of inputs to try, and targets, or none for all. Out: success only if no input broke a property. An input that
//! did stays under `target/fuzz/broken`, and the error names it. Inputs that reach new code stay in `target/fuzz/corpus`, where
//! the next run begins. The tests begin with the seeds alone. A run ends after a number of inputs and measures no time.

use std::collections::VecDeque;
use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use crate::dist;
use crate::run::{self, cargo, output, quiet, say, show};

/// Inputs for each target in the tests: enough to differ much from the seeds, and few enough for each run.
pub(crate) const RUNS_IN_TESTS: u64 = 20_000;
/// Where the targets are.
const WORKSPACE: &str = "sensor-model/fuzz";
/// What makes the compiler count edges for libFuzzer. All of these are options of the stable compiler.
const FLAGS: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];

/// The build of the tests: few inputs run for less time than the compiler needs to optimise what counts edges. A panic names its line
/// without debug information.
const UNOPTIMISED: [&str; 4] = [
    "--config=profile.release.package.sensor-model.opt-level=0",
    "--config=profile.release.package.sensor-model.debug=false",
    "--config=profile.release.package.sensor-protocol.opt-level=0",
    "--config=profile.release.package.sensor-protocol.debug=false",
];

/// Where a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Corpus {
    /// With the inputs that all earlier runs kept.
    Kept,
    /// With the seeds alone, so that a failure of the tests does not depend on earlier runs on this machine.
    Fresh,
}

/// Builds all targets and runs those asked for, or all.
pub(crate) fn run(targets: &[String], runs: u64, corpus: Corpus) -> Result<()> {
    let workspace = dist::root().join(WORKSPACE);
    let known = names(&workspace)?;
    if let Some(unknown) = targets.iter().find(|name| !known.contains(name)) {
        bail!("there is no fuzz target {unknown}; there are {}", known.join(", "));
    }
    say("fuzz", "build");
    let folder = dist::target_dir().join("fuzz");
    let mut build = cargo();
    build
        .args(["build", "--release", "--bins", "--target", dist::HOST_TARGET])
        .args(if corpus == Corpus::Fresh { &UNOPTIMISED[..] } else { &[] })
        .args(quiet())
        .current_dir(&workspace)
        .env("CARGO_TARGET_DIR", &folder)
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"));
    show(&mut build)?;
    let programs = folder.join(dist::HOST_TARGET).join("release");
    let wanted: VecDeque<&String> =
        known.iter().filter(|name| targets.is_empty() || targets.contains(name)).collect();
    let queue = Mutex::new(wanted);
    let broken = Mutex::new(Vec::new());
    // A target is one thread.
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    let log = run::log();
    let worker = || {
        // Both values are changed in single steps, so a worker that panicked left them whole.
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        while let Some(name) = next() {
            say("fuzz", &format!("{name}: {runs} inputs"));
            if let Err(error) = one(name, &programs.join(name), &folder, &workspace, runs, corpus) {
                say("FAILED", &format!("fuzz {name}"));
                let mut broken = broken.lock().unwrap_or_else(PoisonError::into_inner);
                broken.push(format!("{name}: {error:#}"));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| run::with_log(log.clone(), worker));
        }
    });
    let broken = broken.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !broken.is_empty() {
        bail!("{}", broken.join("\n"));
    }
    Ok(())
}

/// The targets by name: a file each.
fn names(workspace: &Path) -> Result<Vec<String>> {
    let folder = workspace.join("fuzz_targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

fn one(name: &str, program: &Path, folder: &Path, workspace: &Path, runs: u64, corpus: Corpus) -> Result<()> {
    let broken = folder.join("broken").join(name);
    let found = match corpus {
        Corpus::Kept => folder.join("corpus").join(name),
        Corpus::Fresh => {
            let found = folder.join("corpus-of-tests").join(name);
            if found.exists() {
                fs::remove_dir_all(&found).with_context(|| format!("cannot clear {}", found.display()))?;
            }
            found
        }
    };
    for made in [&found, &broken] {
        fs::create_dir_all(made).with_context(|| format!("cannot make {}", made.display()))?;
    }
    let mut command = Command::new(program);
    command
        // The same inputs each time on a fresh corpus.
        .args([
            format!("-runs={runs}"),
            "-seed=1".into(),
            "-max_len=16384".into(),
            "-print_final_stats=0".into(),
        ])
        .arg(format!("-artifact_prefix={}/", broken.display()))
        .arg(&found)
        .arg(workspace.join("seeds").join(name))
        .current_dir(folder);
    output(&mut command).map(drop)
}
