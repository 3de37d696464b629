//! The command line: parsing, and one module for each command.

pub mod agent;
pub mod doctor;

use clap::{Parser, Subcommand};

/// Exit codes: in sync.
pub const IN_SYNC: u8 = 0;
/// Drift, or a difference.
pub const DRIFT: u8 = 1;
/// The command line or an input is wrong.
pub const USAGE: u8 = 2;
/// Something failed.
pub const FAILURE: u8 = 3;

/// Node security and drift sensor.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version = version())]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon.
    Agent(Box<agent::Agent>),
    /// Say what this kernel offers, which backend will be used and what is not seen here.
    Doctor(doctor::Doctor),
}

/// Version and the hash of the embedded kernel programs.
fn version() -> &'static str {
    concat!(env!("CARGO_PKG_VERSION"), " (eBPF object ", env!("HOLDFAST_EBPF_SHA256"), ")")
}
