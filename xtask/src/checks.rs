//! The tests of the project, in the order in which a mistake is found soonest.
//!
//! Comes in: the working tree. Goes out: success only if every part passed. All parts run even after one failed, so
//! that one run shows everything; the closing lines repeat which.

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::matrix::Selection;
use crate::run::{cargo, output, say, show};
use crate::{alerts, cache::Cache, dist, fuzz, kernels, reference, toolchain::EbpfToolchain, tools};

/// The build feature for tests that makes an apply's system calls fail.
const FAULTS: &str = "--features=sensor-user/fault-injection";

/// Version of cargo-deny.
const CARGO_DENY: &str = "0.20.2";

/// The parts that ran, and what came of each.
#[derive(Debug, Default)]
struct Parts(Vec<(&'static str, Result<()>)>);

impl Parts {
    /// Runs a part, and says how long it took.
    fn run(&mut self, name: &'static str, work: impl FnOnce() -> Result<()>) {
        say("test", name);
        let start = Instant::now();
        let result = work();
        let came_of_it = if result.is_ok() { "passed" } else { "FAILED" };
        say(came_of_it, &format!("{name} ({:.0} s)", start.elapsed().as_secs_f64()));
        if let Err(error) = &result {
            // At once, too: whoever reads only a piece of a long output still sees why.
            say("", &format!("{error:#}"));
        }
        self.0.push((name, result));
    }

    /// An error that names those that failed.
    fn finish(self) -> Result<()> {
        let failed: Vec<String> = self
            .0
            .into_iter()
            .filter_map(|(name, result)| result.err().map(|error| format!("{name}: {error:#}")))
            .collect();
        if failed.is_empty() {
            say("test", "everything passed");
            return Ok(());
        }
        bail!("these parts failed:\n  {}", failed.join("\n  "))
    }
}

/// Runs them: the quick ones, and those on real kernels unless `quick`. What takes long runs only on some kernels
/// unless these are given or the run is to be `full`.
pub(crate) fn run(quick: bool, kernels: &[String], full: bool) -> Result<()> {
    let mut parts = Parts::default();
    // The test that resolves every field and hook against each kernel's BTF must not pass for want of one.
    let blobs = if quick { None } else { Some(("HOLDFAST_REQUIRE_BTF", "1")) };
    if !quick {
        parts.run("kernels", all_kernels);
    }
    for (name, arguments) in [
        ("format", &["fmt", "--all", "--check"][..]),
        ("lints", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"][..]),
        (
            "lints of the fault injection",
            &["clippy", "-p", "sensor-user", FAULTS, "--all-targets", "--quiet", "--", "-D", "warnings"][..],
        ),
        // With an apply that is killed, stopped and failing at every call; otherwise the program is the same.
        // All of them, also after one failed.
        ("tests", &["test", "--workspace", FAULTS, "--quiet", "--no-fail-fast"][..]),
    ] {
        let environment = blobs.into_iter().chain(seed());
        parts.run(name, || show(cargo().args(arguments).envs(environment).current_dir(dist::root())));
    }
    parts.run("generated files", || reference::generate(true, Some(FAULTS)));
    parts.run("kernel programs: format and lints", kernel_programs);
    if !quick {
        parts.run("dependencies", dependencies);
        parts.run("fuzz targets", || fuzz::run(&[], fuzz::RUNS_IN_TESTS, fuzz::Corpus::Fresh));
        parts.run("alerts", alerts::test);
        let full = full || !kernels.is_empty();
        let selection = Selection { kernels: kernels.to_vec(), full, ..Selection::default() };
        parts.run("virtual machines", || selection.run());
    }
    parts.finish()
}

/// What the property tests draw their cases from, unless the caller says: the same everywhere, as for the fuzz targets, so
/// that a change is judged and not chance. A plain `cargo test` draws others each time.
fn seed() -> Option<(&'static str, &'static str)> {
    const SEED: &str = "PROPTEST_RNG_SEED";
    std::env::var_os(SEED).is_none().then_some((SEED, "1"))
}

/// Fetches what the tests read of each kernel of the matrix.
fn all_kernels() -> Result<()> {
    let cache = Cache::open()?;
    kernels::series().try_for_each(|series| kernels::ensure(&cache, series).map(drop))
}

/// Licences, sources and banned crates of all three workspaces, by `.deny.toml`. Advisories need a database from
/// outside the package registries and are left to `cargo deny check`.
fn dependencies() -> Result<()> {
    // A debug build is made in half the time, and runs for a second.
    let deny = tools::cargo_tool(&Cache::open()?, "cargo-deny", CARGO_DENY, &["--debug"])?;
    // It reads the .deny.toml of the folder that it runs in.
    for workspace in ["", "sensor-ebpf", "sensor-model/fuzz"] {
        let mut command = Command::new(&deny);
        command
            .current_dir(dist::root())
            .arg("--manifest-path")
            .arg(dist::root().join(workspace).join("Cargo.toml"));
        output(command.args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"]))?;
    }
    Ok(())
}

/// The same for the workspace of the kernel programs, which is for another target.
fn kernel_programs() -> Result<()> {
    let toolchain = EbpfToolchain::ensure(&Cache::open()?)?;
    show(cargo().args(["fmt", "--check"]).current_dir(dist::root().join("sensor-ebpf")))?;
    for features in [&[][..], &dist::EBPF_LOG] {
        let mut clippy = dist::ebpf_cargo(&toolchain, "clippy");
        show(clippy.args(features).args(["--", "-D", "warnings"]))?;
    }
    Ok(())
}
