//! `cargo xtask`: every chore of the project, self-installing.
//!
//! Comes in: the command line. Goes out: built objects under `target/dist`, tools and guests under the
//! cache (`~/.cache/holdfast`, or `$HOLDFAST_CACHE`), progress on standard error.
//! It never changes the machine's package sources, and it downloads through apt and cargo only.

mod apt;
mod cache;
mod checks;
mod dist;
mod kernels;
mod matrix;
mod qemu;
mod run;
mod toolchain;
mod tools;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

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
    /// Build the eBPF object and the `holdfast` binary into `target/dist`.
    Build {
        /// Build only the eBPF object, `target/dist/holdfast.bpf.o`.
        #[arg(long)]
        ebpf: bool,
        /// Build `holdfast` with the dev profile.
        #[arg(long)]
        debug: bool,
    },
    /// Run the tests: everything, or only what needs no kernel.
    Test {
        /// Only formatting, lints and the tests that need no virtual machine.
        #[arg(long)]
        quick: bool,
        /// Only these kernel series.
        #[arg(long)]
        kernel: Vec<String>,
    },
    /// Boot one virtual machine and run one scenario in it.
    Vm {
        /// Kernel series: 5.10, 6.1, 6.12, 6.18 or 7.x.
        #[arg(long, default_value = "6.12")]
        kernel: String,
        /// Kind of guest: bare or systemd.
        #[arg(long, default_value = "bare")]
        guest: String,
        /// Name of the scenario.
        #[arg(long, default_value = "smoke")]
        scenario: String,
        /// Count instructions instead of running on two CPUs.
        #[arg(long)]
        icount: bool,
        /// Show what the guest prints.
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
            vm::Parts::ensure(&cache, true)?;
            run::say("setup", "everything is in place");
            Ok(())
        }
        Command::Build { ebpf: true, .. } => dist::build_ebpf().map(drop),
        Command::Build { debug, .. } => {
            let profile = if debug { dist::Profile::Dev } else { dist::Profile::Release };
            dist::build_holdfast(profile).map(drop)
        }
        Command::Test { quick, kernel } => checks::run(quick, &kernel),
        Command::Vm { kernel, guest, scenario, icount, verbose } => {
            let wanted = matrix::Wanted { kernel, guest, scenario };
            matrix::run_one(&wanted, icount, verbose)
        }
    }
}
