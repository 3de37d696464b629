//! The command line: parsing, and one module for each command.
//!
//! In: arguments. Out: text or JSON on standard output, an exit code. Each command reads what it needs, prints what it found and
//! ends. Only `agent` keeps running, and only `agent`, `repair`, `apply` and `rollback` change the host.

pub mod adopt;
pub mod agent;
pub mod apply;
mod aside;
pub mod check;
pub mod completions;
pub mod desired;
pub mod doctor;
pub mod explain;
pub mod history;
pub mod log;
pub mod look;
pub mod output;
pub mod people;
pub mod plan;
pub mod render;
pub mod repair;
pub mod rollback;
pub mod sources;
pub mod status;
pub mod who;

use crate::desired::DesiredError;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use output::Screen;
use sensor_model::{
    drift_policy::DriftPolicyError, expectations::ExpectationError, machine_config::ManifestError,
    merge::MergeError,
};

/// Exit codes: in sync.
pub const IN_SYNC: u8 = 0;
/// Drift, or a difference.
pub const DRIFT: u8 = 1;
/// The command line or an input is wrong.
pub const USAGE: u8 = 2;
/// Something failed.
pub const FAILURE: u8 = 3;
/// A config cannot be applied to a running node.
pub const NOT_RECONCILABLE: u8 = 4;

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
    Agent(Box<agent::Agent>),
    /// Compare the host with its configuration once, without the daemon.
    Check(check::Check),
    /// Show the verdict of the running daemon: what has drifted, since when and by whom.
    Status(status::Status),
    /// Show who changed a path last, when and how.
    Who(who::Who),
    /// Show what declares a path, how it differs now, and what happens when it drifts.
    Explain(explain::Explain),
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
    /// Print a MachineConfig that declares the present state of paths.
    Adopt(adopt::Adopt),
    /// Show what changes from one config to another, in which steps, and whether they drain or reboot the node.
    Plan(Box<plan::PlanCommand>),
    /// Print a pool's rendered MachineConfig.
    Render(render::Render),
    /// Test what this kernel offers, which backend the daemon would use, and what it cannot see here.
    Doctor(doctor::Doctor),
    /// Print a completion script for a shell.
    Completions(completions::Completions),
    /// Read configs and policies for the daemon.
    #[command(hide = true)]
    Desired(desired::Read),
    /// Look at things on file systems that may not answer, for the daemon.
    #[command(hide = true)]
    Look(look::Look),
}

/// An input that is wrong: a flag's value, or a file that it names.
#[derive(Debug, thiserror::Error)]
#[error("{}", told(.0))]
pub struct BadInput(anyhow::Error);

impl BadInput {
    /// An input is wrong for this reason.
    pub fn because(reason: impl Into<String>) -> anyhow::Error {
        Self(anyhow::Error::msg(reason.into())).into()
    }

    /// An error is caused by an input.
    pub fn wrap(error: impl Into<anyhow::Error>) -> anyhow::Error {
        Self(error.into()).into()
    }
}

/// The whole command line. Parsers, completions and documentation all come from here.
pub fn command() -> clap::Command {
    // Lists of values suit `check`. In commands with a path argument they would take that path as one more value.
    Cli::command().mut_subcommand("check", |check| {
        check.mut_arg("config", |arg| arg.num_args(1..)).mut_arg("policy", |arg| arg.num_args(1..))
    })
}

/// Parses the arguments of this process; prints and ends where clap does.
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
/// Why the command has no answer; [`exit_code`] tells input errors from failures.
pub fn run(command: Command, screen: &mut Screen) -> anyhow::Result<u8> {
    match command {
        Command::Agent(agent) => agent.run(),
        Command::Check(check) => check.run(screen),
        Command::Status(status) => status.run(screen),
        Command::Who(who) => who.run(screen),
        Command::Explain(explain) => explain.run(screen),
        Command::Log(log) => log.run(screen),
        Command::Apply(apply) => apply.run(screen),
        Command::History(history) => history.run(screen),
        Command::Rollback(rollback) => rollback.run(screen),
        Command::Repair(repair) => repair.run(screen),
        Command::Adopt(adopt) => adopt.run(screen),
        Command::Plan(plan) => plan.run(screen),
        Command::Render(render) => render.run(screen),
        Command::Doctor(doctor) => doctor.run(screen),
        Command::Completions(completions) => completions.run(screen),
        Command::Desired(read) => read.run(screen),
        Command::Look(look) => look.run(),
    }
}

/// An error with its causes in one line. A cause that its error already contains is not repeated.
pub fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text.extend([": ", &cause]);
        }
    }
    text
}

/// The exit code of an error.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        let input = cause.is::<BadInput>()
            || cause.is::<ManifestError>()
            || cause.is::<MergeError>()
            || cause.is::<ExpectationError>()
            || cause.is::<DriftPolicyError>()
            || cause.downcast_ref::<DesiredError>().is_some_and(DesiredError::is_input);
        if input {
            return USAGE;
        }
    }
    FAILURE
}

/// Version and the hash of the embedded kernel programs.
fn version() -> &'static str {
    concat!(env!("CARGO_PKG_VERSION"), " (eBPF object ", env!("HOLDFAST_EBPF_SHA256"), ")")
}

/// A runtime for commands that have to ask systemd.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn a_cause_is_told_once() {
        let cause = || io::Error::from(io::ErrorKind::NotFound);
        let opened = crate::observation::RootError { root: "/x".into(), source: cause() };
        let error = anyhow::Error::from(opened).context("--host-root");
        assert_eq!(told(&error), format!("--host-root: cannot open the host root /x: {}", cause()));
        assert_eq!(told(&anyhow::Error::from(cause()).context("read")), format!("read: {}", cause()));
    }

    #[test]
    fn only_bad_input_is_the_users_fault() {
        assert_eq!(exit_code(&BadInput::because("no")), USAGE);
        assert_eq!(exit_code(&BadInput::because("no").context("more")), USAGE);
        assert_eq!(exit_code(&anyhow::anyhow!("no")), FAILURE);
        let manifest = sensor_model::machine_config::parse("a.yaml", b"kind: MachineConfig").unwrap_err();
        assert_eq!(exit_code(&manifest.into()), USAGE);
        // A broken pipe of standard output never reaches this function.
        let gone = io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(exit_code(&anyhow::Error::from(gone).context("ask the daemon")), FAILURE);
    }
}
