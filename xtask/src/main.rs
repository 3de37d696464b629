//! `cargo xtask`: every chore of the project, self-installing.
//!
//! In: the command line. Out: built objects under `target/dist`, tools and guests in the cache (`~/.cache/holdfast`, or
//! `$HOLDFAST_CACHE`), progress on standard error. It never changes the machine's package sources, and it downloads through apt
//! and cargo only.

mod alerts;
mod apt;
mod bench;
mod cache;
mod checks;
mod coverage;
mod demo;
mod dist;
mod fuzz;
mod image;
mod kernels;
mod kube;
mod layers;
mod manifests;
mod matrix;
mod parts;
mod pod_monitor;
mod qemu;
mod queue;
mod reference;
mod rpm;
mod run;
mod toolchain;
mod tools;
mod unpacked;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use matrix::Selection;
use vm_tests::scenarios::Guest;

/// Chores of Holdfast. Each command installs what it needs into the cache the first time.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fetch everything that the other commands need: compiler sources and linker.
    Setup,
    /// Build the eBPF object and the programs `holdfast` and `holdfast-cluster` into `target/dist`.
    Build {
        /// Build only the eBPF object, `target/dist/holdfast.bpf.o`; in a debug build `holdfast-debug.bpf.o`.
        #[arg(long)]
        ebpf: bool,
        /// Build the programs with the dev profile, and kernel programs that print lines.
        #[arg(long)]
        debug: bool,
    },
    /// Show the main job: a node in a virtual machine, an edit behind a login and sudo, and what Holdfast makes of it.
    Demo {
        /// Kernel series: 6.1, 6.12 or 7.x.
        #[arg(long, default_value = "6.12")]
        kernel: String,
        /// Show a debug build of holdfast, which is quicker to make.
        #[arg(long)]
        debug: bool,
        /// Show the node of a cluster: a pod on a real kubelet, edits by a login and by a pod, and what kubectl prints.
        #[arg(long, conflicts_with = "image")]
        cluster: bool,
        /// Show an ostree host: a program of its image that a login replaces, the layer, and what ran it.
        #[arg(long)]
        image: bool,
    },
    /// Run the fuzz targets of the parsers, coverage-guided, with the stable compiler.
    Fuzz {
        /// Only these; all without any.
        target: Vec<String>,
        /// Inputs to try for each.
        #[arg(long, default_value_t = 1_000_000)]
        runs: u64,
    },
    /// Make `docs/cli.md`, `docs/schemas`, `deploy/crds`, man pages and completion scripts from the command line and the types, and
    /// manifests from other files.
    Generate {
        /// Only say whether the kept files are what would be made.
        #[arg(long)]
        check: bool,
    },
    /// Run the tests: what a merge needs, only what needs no kernel, or everything.
    ///
    /// Each part writes a log to `target/test-logs`, each virtual machine one to `target/vm-logs`. A table with the time
    /// of each part comes at the end, and behind it the cause of each failure.
    Test {
        /// Only formatting, lints and the tests that need no virtual machine.
        #[arg(long)]
        quick: bool,
        /// Only these kernel series, and everything that can run on them.
        #[arg(long, conflicts_with = "quick")]
        kernel: Vec<String>,
        /// Every scenario on every kernel that it can run on. Only `docs/vectors.md` and a release need it.
        #[arg(long, conflicts_with = "quick")]
        full: bool,
    },
    /// Build the image of both programs, with the list of its components, into `target/dist`.
    Image {
        /// Build it a second time in a copy of the sources, and fail if anything differs. It takes as long as two releases.
        #[arg(long)]
        check_reproducible: bool,
    },
    /// Check that no module takes from one below it in the tables of `docs/architecture.md`, and that files form no circle.
    Layers,
    /// Build or fetch the programs of a Kubernetes cluster, and print where they are. The first time takes 15 minutes.
    KubeAssets {
        /// The release: a folder of `vm-tests/kube-assets`.
        #[arg(default_value = kube::NEWEST, value_parser = [kube::NEWEST, kube::OLDER])]
        release: String,
    },
    /// Measure what watching costs, in executed instructions, and compare it with the budgets.
    Bench {
        /// Kernel series.
        #[arg(long, default_value = "6.12")]
        kernel: String,
        /// What to print.
        #[arg(long, short, value_enum, default_value_t = bench::BenchFormat::Table)]
        output: bench::BenchFormat,
        /// Write `docs/performance.md`.
        #[arg(long)]
        write_docs: bool,
        /// Measure only what comparing two configs costs; no virtual machine is needed.
        #[arg(long)]
        compare: bool,
        /// Measure only what the index of an OS image costs.
        #[arg(long, conflicts_with_all = ["compare", "cluster", "only_many"])]
        images: bool,
        /// Measure only what the cluster side costs, with a real API server: half an hour.
        #[arg(long, conflicts_with_all = ["compare", "only_many"])]
        cluster: bool,
        /// Measure only the rows with a boot of their own: with 100,000 inodes enrolled, and under the shipped rules.
        #[arg(long, conflicts_with_all = ["compare", "write_docs"])]
        only_many: bool,
        /// Show what the guest prints.
        #[arg(long, short)]
        verbose: bool,
    },
    /// Write `docs/vectors.md` from the newest runs of the scenario `vectors`.
    Coverage,
    /// Boot virtual machines and run scenarios in them; on kernel 6.12 by default.
    Vm {
        /// Kernel series: 5.10, 6.1, 6.12, 6.18 or 7.x; may be repeated. Without one it is 6.12.
        #[arg(long)]
        kernel: Vec<String>,
        /// All kernel series.
        #[arg(long, conflicts_with = "kernel")]
        all_kernels: bool,
        /// With the tests' build of holdfast; without `--kernel` each scenario on the kernels on which the tests boot it.
        #[arg(long, conflicts_with = "all_kernels")]
        as_tests: bool,
        /// Only this kind of guest: bare, systemd, trixie, ostree, selinux, kube or kube-trixie.
        #[arg(long)]
        guest: Option<String>,
        /// Only scenarios of this name.
        #[arg(long)]
        scenario: Option<String>,
        /// Give the guests a debug build of holdfast, which is quicker to make and whose kernel programs print lines.
        #[arg(long)]
        debug: bool,
        /// How many guests run at once.
        #[arg(long, default_value_t = matrix::AT_ONCE)]
        jobs: usize,
        /// How often each one runs, to find failures that are rare.
        #[arg(long, value_name = "TIMES", default_value_t = 1)]
        repeat: usize,
        /// Count instructions instead of running on two CPUs.
        #[arg(long)]
        icount: bool,
        /// Show what the guests print.
        #[arg(long, short)]
        verbose: bool,
    },
}

fn main() -> ExitCode {
    match work(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn work(command: Command) -> Result<()> {
    match command {
        Command::Setup => {
            let cache = cache::Cache::open()?;
            toolchain::EbpfToolchain::ensure(&cache)?;
            let qemu = qemu::Qemu::ensure(&cache)?;
            run::say("setup", &qemu.version()?);
            for series in kernels::series() {
                kernels::ensure(&cache, series)?;
            }
            kube::KubeAssets::ensure(&cache, kube::NEWEST)?;
            vm::GuestParts::ensure(cache, &Guest::WITH_A_DISK)?;
            run::say("setup", "everything is in place");
            Ok(())
        }
        Command::Build { ebpf: true, debug } => dist::build_ebpf(profile(debug)).map(drop),
        Command::Build { debug, .. } => {
            dist::build_holdfast(profile(debug))?;
            dist::build_cluster(profile(debug)).map(drop)
        }
        Command::Image { check_reproducible: true } => image::check_reproducible(),
        Command::Image { .. } => image::build().map(drop),
        Command::Demo { kernel, debug, cluster, image } => {
            let story = match (cluster, image) {
                (true, _) => demo::Story::Cluster,
                (_, true) => demo::Story::Image,
                _ => demo::Story::Host,
            };
            demo::run(story, &kernel, profile(debug))
        }
        Command::Layers => layers::check(),
        Command::KubeAssets { release } => kube_assets(&release),
        Command::Coverage => coverage::write(),
        Command::Fuzz { target, runs } => fuzz::run(&target, runs, fuzz::Corpus::Kept),
        Command::Generate { check } => reference::generate(check, &[]),
        Command::Test { quick, kernel, full } => checks::run(quick, &kernel, full),
        Command::Bench { output, write_docs, compare: true, .. } => bench::compare::run(output, write_docs),
        Command::Bench { output, write_docs, images: true, .. } => bench::images::run(output, write_docs),
        Command::Bench { kernel, output, write_docs, verbose, cluster: true, .. } => {
            bench::cluster::run(&kernel, output, write_docs, verbose)
        }
        Command::Bench { kernel, output, write_docs, verbose, only_many, .. } => {
            bench::Bench { kernel, output, write_docs, only_many, verbose }.run()
        }
        Command::Vm {
            kernel,
            all_kernels,
            as_tests,
            guest,
            scenario,
            debug,
            jobs,
            repeat: rounds,
            icount,
            verbose,
        } => {
            // The tests boot some scenarios on no kernel by themselves.
            let is_default = as_tests && kernel.is_empty();
            let kernels = match &kernel[..] {
                [] if !all_kernels && !as_tests => vec!["6.12".to_owned()],
                _ => kernel,
            };
            let profile = if as_tests && !debug { dist::Profile::Merge } else { profile(debug) };
            Selection {
                kernels,
                guest,
                scenario,
                full: !is_default,
                profile,
                at_once: jobs,
                icount,
                verbose,
                rounds,
            }
            .run()
        }
    }
}

fn kube_assets(release: &str) -> Result<()> {
    let assets = kube::KubeAssets::ensure(&cache::Cache::open()?, release)?;
    for (name, path) in assets.rows() {
        println!("{name:<24} {}", path.display());
    }
    Ok(())
}

fn profile(debug: bool) -> dist::Profile {
    if debug { dist::Profile::Dev } else { dist::Profile::Release }
}
