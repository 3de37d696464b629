//! The command line: parsing, and one module for each command.
//!
//! In: arguments. Out: text or JSON on standard output, and an exit code. A command parses its arguments, calls a room, and prints
//! the answer. Only `agent` keeps running. Only `agent`, `repair`, `apply`, `rollback`,
//! `order` and `quarantine` change managed paths.

pub mod adopt;
pub mod agent;
pub mod apply;
mod background;
pub mod baseline;
pub mod check;
pub mod completions;
pub mod describe;
pub mod desired;
pub mod detach;
pub mod doctor;
pub mod exit;
pub mod explain;
pub mod history;
mod ignore_errors;
pub mod image;
pub mod log;
mod log_errors;
pub mod look;
pub mod make_index;
pub mod order;
pub mod output;
pub mod plan;
mod progress;
pub mod quarantine;
pub mod render;
pub mod repair;
pub mod rollback;
pub mod scan;
pub mod schemas;
pub mod sources;
pub mod status;
mod stderr;
mod text;
pub mod who;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use output::Screen;

pub use exit::{BadInput, DRIFT, FAILURE, IN_SYNC, NOT_RECONCILABLE, USAGE, error_line, exit_code};

/// Node security and drift sensor.
///
/// Exit codes: 0 in sync or no change, 1 drift or changes, 2 wrong usage or input, 3 failure, 4 not reconcilable.
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
    Agent(Box<agent::AgentCommand>),
    /// Compare the host with its configuration once, without the daemon.
    Check(check::Check),
    /// Show the verdict of the running daemon: what has drifted, since when and by whom.
    Status(status::Status),
    /// Show who changed a path last, when and how.
    Who(who::Who),
    /// Show what declares a path, how it differs now, and what happens when it drifts.
    Explain(explain::Explain),
    /// Index the layers of an OS image, and compare this host with them.
    Image(image::ImageCommand),
    /// Print what is at paths now, as JSON, to compare with later: for what no config, image or package describes.
    Baseline(baseline::BaselineCommand),
    /// Read and check the forensic log.
    Log(log::Log),
    /// Apply a config to this host; restore the old one if that fails.
    Apply(apply::Apply),
    /// List past applies with plan, duration and result.
    History(history::History),
    /// Apply an earlier config again: the one before the current one by default.
    Rollback(rollback::Rollback),
    /// Write the expected state back.
    Repair(repair::Repair),
    /// List, restore or remove what a drift policy moved out of closed directories.
    Quarantine(quarantine::QuarantineCommand),
    /// Print a MachineConfig that declares the present state of paths.
    Adopt(adopt::Adopt),
    /// Show what changes from one config to another, in which steps, and whether they drain or reboot the node.
    Plan(Box<plan::PlanCommand>),
    /// Print a pool's rendered MachineConfig.
    Render(render::Render),
    /// Test what this kernel offers, which backend the daemon would use, and what it cannot see here.
    Doctor(doctor::Doctor),
    /// Remove what an ended daemon left on this host: detach its kernel programs and deny rules, and remove its run directory.
    Detach(detach::Detach),
    /// Print a completion script for a shell.
    Completions(completions::Completions),
    /// Read configs and policies for the daemon.
    #[command(hide = true)]
    Desired(desired::Read),
    /// Make the index of the booted ostree commit, for the daemon.
    #[command(hide = true)]
    MakeIndex(make_index::MakeIndex),
    /// Compare what the image has and the daemon does not watch, for the daemon.
    #[command(hide = true)]
    Scan(scan::ScanCommand),
    /// Observe things on file systems that may not answer, for the daemon.
    #[command(hide = true)]
    Look(look::Look),
    /// Plan and apply what the node's reporter handed in, for the daemon.
    #[command(hide = true)]
    Order(order::Order),
}

/// The whole command line. The parser, the completions and the documents are made from it.
pub fn command() -> clap::Command {
    // Lists of values suit `check`. In commands with a path argument they would take that path as one more value.
    Cli::command().mut_subcommand("check", |check| {
        check.mut_arg("config", |arg| arg.num_args(1..)).mut_arg("policy", |arg| arg.num_args(1..))
    })
}

/// Parses the arguments of this process. For `--help`, `--version` and wrong usage it prints and ends the process.
pub fn parse() -> Cli {
    let mut command = command();
    match Cli::from_arg_matches(&command.get_matches_mut()) {
        Ok(cli) => cli,
        Err(error) => error.format(&mut command).exit(),
    }
}

/// Runs a command; gives the exit code.
///
/// # Errors
/// Why the command has no answer. [`exit_code`] distinguishes input errors from failures.
pub fn run(command: Command, screen: &mut Screen) -> anyhow::Result<u8> {
    match command {
        Command::Agent(agent) => agent.run(),
        Command::Check(check) => check.run(screen),
        Command::Status(status) => status.run(screen),
        Command::Who(who) => who.run(screen),
        Command::Explain(explain) => explain.run(screen),
        Command::Image(image) => image.run(screen),
        Command::Baseline(baseline) => baseline.run(screen),
        Command::Log(log) => log.run(screen),
        Command::Apply(apply) => apply.run(screen),
        Command::History(history) => history.run(screen),
        Command::Rollback(rollback) => rollback.run(screen),
        Command::Repair(repair) => repair.run(screen),
        Command::Quarantine(quarantine) => quarantine.run(screen),
        Command::Adopt(adopt) => adopt.run(screen),
        Command::Plan(plan) => plan.run(screen),
        Command::Render(render) => render.run(screen),
        Command::Doctor(doctor) => doctor.run(screen),
        Command::Detach(detach) => detach.run(screen),
        Command::Completions(completions) => completions.run(&mut self::command(), screen),
        Command::Desired(read) => read.run(screen),
        Command::MakeIndex(make_index) => make_index.run(),
        Command::Scan(scan) => scan.run(),
        Command::Look(look) => look.run(),
        Command::Order(order) => order.run(screen),
    }
}

/// Version and the hash of the embedded kernel programs.
fn version() -> &'static str {
    concat!(env!("CARGO_PKG_VERSION"), " (eBPF object ", env!("HOLDFAST_EBPF_SHA256"), ")")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
