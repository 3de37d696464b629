//! Coverage-guided runs of the fuzz targets, with the stable compiler.
//!
//! Comes in: a number of inputs to try, and targets or none for all. Goes out: success only if no input broke a
//! property; an input that did is left under `target/fuzz/broken` and named. What was found worth keeping stays in
//! `target/fuzz/corpus`. Nothing here measures time: a run ends after a number of inputs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::dist;
use crate::run::{cargo, output, quiet, say, show};

/// Inputs for each target in the tests: enough to leave the seeds' neighbourhood, short enough for each run.
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

/// Builds all targets and runs those asked for, or all.
pub(crate) fn run(targets: &[String], runs: u64) -> Result<()> {
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
        .args(quiet())
        .current_dir(&workspace)
        .env("CARGO_TARGET_DIR", &folder)
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"));
    show(&mut build)?;
    let programs = folder.join(dist::HOST_TARGET).join("release");
    let mut broken = Vec::new();
    for name in known.iter().filter(|name| targets.is_empty() || targets.contains(name)) {
        say("fuzz", &format!("{name}: {runs} inputs"));
        if let Err(error) = one(name, &programs.join(name), &folder, &workspace, runs) {
            broken.push(format!("{name}: {error:#}"));
        }
    }
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

fn one(name: &str, program: &Path, folder: &Path, workspace: &Path, runs: u64) -> Result<()> {
    let (corpus, broken): (PathBuf, PathBuf) =
        (folder.join("corpus").join(name), folder.join("broken").join(name));
    for made in [&corpus, &broken] {
        fs::create_dir_all(made).with_context(|| format!("cannot make {}", made.display()))?;
    }
    let mut command = Command::new(program);
    command
        // The same inputs each time on an empty corpus, so that a failure in the tests is one for everybody.
        .args([
            format!("-runs={runs}"),
            "-seed=1".into(),
            "-max_len=4096".into(),
            "-print_final_stats=0".into(),
        ])
        .arg(format!("-artifact_prefix={}/", broken.display()))
        .arg(&corpus)
        .arg(workspace.join("seeds").join(name))
        .current_dir(folder);
    output(&mut command).map(drop)
}
