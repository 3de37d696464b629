//! The tests of the project.
//!
//! In: the working tree. Out: success only if every part passed. A part that fails does not stop the others, so that one run
//! shows all failures. Two lanes of parts run beside each other, because a compiler, a linker or a test seldom uses two
//! processors. Virtual machines start when what they run is built, one at a time. With the end of each lane one more of them runs at once, and
//! after the second lane the tests with a control plane run beside them. They wait for seven tenths of their time. So the load is about the same
//! all the time: a guest without its share of the processors would miss its time limits.

use std::convert::Infallible;
use std::panic::resume_unwind;
use std::process::Command;
use std::sync::mpsc::channel;

use anyhow::{Result, ensure};

use crate::dist::{self, Profile};
use crate::matrix::Selection;
use crate::parts::TestParts;
use crate::run::{self, cargo, output, say, show};
use crate::{
    alerts, cache::Cache, fuzz, image, kernels, kube, reference, toolchain::EbpfToolchain, tools, unpacked,
};

/// The build feature for tests that makes an apply's system calls fail. It only adds code, so lints and tests run with it
/// alone; the virtual machines get the program without it.
const FAULTS: &str = "--features=sensor-user/fault-injection";

/// Version of cargo-deny.
const CARGO_DENY: &str = "0.20.2";

/// Runs the quick tests, and those on real kernels unless `quick`. A scenario runs only on the kernels where it finds most,
/// unless kernels are given or the run is to be `full`.
pub(crate) fn run(quick: bool, kernels: &[String], full: bool) -> Result<()> {
    let parts = TestParts::new(dist::root().join("target/test-logs"))?;
    if !quick {
        parts.run("kernels", all_kernels);
    }
    let profile = if full { Profile::Release } else { Profile::Merge };
    let full = full || !kernels.is_empty();
    let selection = Selection { kernels: kernels.to_vec(), full, profile, ..Selection::default() };
    std::thread::scope(|scope| {
        // Each lane has a sender as long as it runs.
        let (of_workspace, first) = channel::<Infallible>();
        let (of_others, second) = channel::<Infallible>();
        let lane = scope.spawn(|| {
            workspace(&parts, quick);
            drop(of_workspace);
        });
        built_for_guests(&parts, quick, profile);
        if !quick {
            // Before the other tools, whose installation would keep the cache locked for minutes.
            parts.run("systems of guests", || selection.fetch());
            scope.spawn(|| parts.run("virtual machines", || selection.run_beside(vec![first, second])));
        }
        others(&parts, quick, profile);
        drop(of_others);
        if !quick {
            with_other_programs(&parts, profile);
        }
        lane.join().unwrap_or_else(|panic| resume_unwind(panic));
    });
    if profile == Profile::Release {
        parts.run("virtual machine with the older kubelet", older_kubelet);
    }
    parts.finish()
}

/// The lane of what is built by the development profile.
fn workspace(parts: &TestParts, quick: bool) {
    // A test resolves every field and hook against each kernel's BTF. Without the BTF it would pass untested.
    let blobs = if quick { None } else { Some(("HOLDFAST_REQUIRE_BTF", "1")) };
    for (name, arguments) in [
        ("format", &["fmt", "--all", "--check"][..]),
        ("lints", &["clippy", "--workspace", FAULTS, "--all-targets", "--quiet", "--", "-D", "warnings"][..]),
        // All tests, also after one failed.
        ("tests", &["test", "--workspace", FAULTS, "--quiet", "--no-fail-fast"][..]),
    ] {
        let environment = blobs.into_iter().chain(seed());
        parts.run(name, || show(cargo().args(arguments).envs(environment).current_dir(dist::root())));
    }
    parts.run("generated files", || reference::generate(true, &[FAULTS]));
}

/// The tests that run programs of other projects.
fn with_other_programs(parts: &TestParts, profile: Profile) {
    parts.run("control plane", || control_plane(kube::NEWEST, profile));
    parts.run("layers and packages, against umoci and rpm", || unpacked::test(FAULTS));
    if profile == Profile::Release {
        parts.run("control plane of the older Kubernetes", || control_plane(kube::OLDER, profile));
    }
}

/// The begin of the other lane: what the virtual machines run.
fn built_for_guests(parts: &TestParts, quick: bool, profile: Profile) {
    parts.run("kernel programs: format and lints", kernel_programs);
    if !quick {
        parts.run("programs of Kubernetes", || kube_assets(kube::NEWEST));
        if profile == Profile::Release {
            parts.run("programs of the older Kubernetes", || kube_assets(kube::OLDER));
        }
        parts.run("programs for guests", || programs_for_guests(profile));
    }
}

/// The rest of that lane, each part with a build folder of its own.
fn others(parts: &TestParts, quick: bool, profile: Profile) {
    if !quick {
        parts.run("dependencies", dependencies);
        parts.run("alerts", alerts::test);
        parts.run("fuzz targets", || fuzz::run(&[], fuzz::RUNS_IN_TESTS, fuzz::Corpus::Fresh));
    }
    if profile == Profile::Release {
        parts.run("image", image::check_reproducible);
    }
}

/// What the virtual machines run. No lint sees the product without the feature for tests, so warnings are errors here.
fn programs_for_guests(profile: Profile) -> Result<()> {
    dist::build_guest(Profile::Dev)?;
    dist::build_holdfast(profile)?;
    dist::build_cluster(profile)?;
    let log = run::written()?;
    let warnings: Vec<&str> = log.lines().filter(|line| line.starts_with("warning: ")).collect();
    ensure!(warnings.is_empty(), "the compiler warns: {}", warnings.join("; "));
    Ok(())
}

/// The seed of the property tests, unless the caller sets one. It is the same everywhere, as for the fuzz targets, so that
/// a result depends on the change and not on chance. A plain `cargo test` uses another seed each time.
fn seed() -> Option<(&'static str, &'static str)> {
    const SEED: &str = "PROPTEST_RNG_SEED";
    std::env::var_os(SEED).is_none().then_some((SEED, "1"))
}

/// Fetches what the tests read of each kernel of the matrix.
fn all_kernels() -> Result<()> {
    let cache = Cache::open()?;
    kernels::series().try_for_each(|series| kernels::ensure(&cache, series).map(drop))
}

/// Builds what the tests on a control plane need, and the guests with a kubelet.
fn kube_assets(release: &str) -> Result<()> {
    kube::KubeAssets::ensure(&Cache::open()?, release).map(drop)
}

/// Runs the tests that need the programs of Kubernetes, or Buildah. They are ignored elsewhere, since these take minutes to build. The
/// options of Cargo are those of the other tests, so that nothing is built twice. Tests that need more than the release has are named
/// and left out, and so is one of ten minutes before a merge.
fn control_plane(release: &str, profile: Profile) -> Result<()> {
    kube_assets(release)?;
    let mut left_out = Vec::new();
    if profile == Profile::Merge {
        say("skip", "kube::steady_tests: they take ten minutes, which `--full` has");
        left_out.extend(["--skip", "kube::steady_tests"]);
    }
    for (test, what) in kube::beyond(release) {
        say("skip", &format!("{test}: Kubernetes {release} has no {what}"));
        left_out.extend(["--skip", test]);
    }
    // What they run beside the cluster's own programs.
    show(
        cargo()
            .args([
                "build",
                "--workspace",
                FAULTS,
                "--quiet",
                "--bin",
                "holdfast-cluster",
                "--bin",
                "holdfast",
            ])
            .args(["--example", "played_sensor"])
            .current_dir(dist::root()),
    )?;
    show(
        cargo()
            .args([
                "test",
                "--workspace",
                FAULTS,
                "--quiet",
                "--bin",
                "xtask",
                "--",
                "--ignored",
                "kube::",
                "image::",
            ])
            .args(left_out)
            .env(kube::RELEASE, release)
            .current_dir(dist::root()),
    )
}

/// The pod on a kubelet of the older release. The release is in a variable, so another process runs it.
fn older_kubelet() -> Result<()> {
    show(
        cargo()
            .args(["run", "--quiet", "--package", "xtask", "--", "vm", "--scenario", "daemonset"])
            .env(kube::RELEASE, kube::OLDER)
            .current_dir(dist::root()),
    )
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
