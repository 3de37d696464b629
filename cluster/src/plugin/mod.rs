//! `kubectl holdfast`: what nodes report, and the forensic log of one node, with the rights of the caller.
//!
//! In: a command line and the config of `kubectl`. Out: tables, JSON or YAML on standard output. `status` reads
//! objects of the API. The other commands ask the reporter of one node, through a port that the API server forwards; `plan` and `diff` with
//! `--report` read the node's DriftReport alone. All texts of nodes are untrusted: tables show their hidden characters as escapes.

mod access;
mod complete;
mod diff;
mod error;
mod exit;
mod history;
#[cfg(test)]
mod hostile_tests;
mod node_log;
#[cfg(test)]
mod node_tests;
mod output;
mod pages;
mod plan;
mod report;
#[cfg(test)]
mod stale_tests;
mod status;
#[cfg(test)]
mod tests;
mod tunnel;

pub use access::AccessOptions;
pub use complete::{COMPLETER, COMPLETION_TIME, NO_FILES, complete};
pub use error::PluginError;
pub use exit::{DIFFERS, FAILED, IN_SYNC};
pub use output::{OutputFormat, Screen};

use access::Access;
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use diff::Diff;
use history::{Explain, Log, Who};
use output::OutputOptions;
use plan::PlanOfNode;

/// The name of the program under which `kubectl` finds it.
pub const PROGRAM: &str = "kubectl-holdfast";

/// Nodes that differ from their MachineConfigs, and who changed them.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, bin_name = "kubectl holdfast", version)]
pub struct Plugin {
    #[command(flatten)]
    arguments: PluginArguments,
}

/// The arguments after the program's name.
#[derive(Debug, clap::Args)]
pub struct PluginArguments {
    #[command(flatten)]
    access: AccessOptions,
    #[command(flatten)]
    output: OutputOptions,
    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(Debug, Subcommand)]
enum PluginCommand {
    /// Show the state of each node. A node is `Stale` if its reporter is silent.
    Status,
    /// Show what the apply of the next config does to a node, and how far it is.
    Plan(PlanOfNode),
    /// Show every thing of a node that differs, since when, and who changed it.
    Diff(Diff),
    /// Show who changed a path of a node last.
    Who(Who),
    /// Show how a path of a node differs now, and its last change.
    Explain(Explain),
    /// Show the newest entries of a node's forensic log.
    Log(Log),
    /// Print the completion script of a shell.
    Completion {
        /// The shell.
        shell: Shell,
    },
}

/// Runs `kubectl holdfast`, and prints its answer.
///
/// # Errors
/// Why there is no answer.
pub async fn run(plugin: Plugin, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
    run_command(plugin.arguments, screen).await
}

/// The same with the arguments of `holdfast-cluster kubectl`.
///
/// # Errors
/// Why there is no answer.
pub async fn run_command(arguments: PluginArguments, screen: &mut Screen<'_>) -> Result<u8, PluginError> {
    let PluginArguments { access, output, command } = arguments;
    screen.set_format(output.format);
    if let PluginCommand::Completion { shell } = command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Plugin::command(), PROGRAM, &mut script);
        screen.bytes(&script)?;
        return Ok(IN_SYNC);
    }
    let access = Access::new(access).await?;
    match command {
        PluginCommand::Status => status::run(&access, screen).await,
        PluginCommand::Plan(plan) => plan.run(&access, screen).await,
        PluginCommand::Diff(diff) => diff.run(&access, screen).await,
        PluginCommand::Who(who) => who.run(&access, screen).await,
        PluginCommand::Explain(explain) => explain.run(&access, screen).await,
        PluginCommand::Log(log) => log.run(&access, screen).await,
        PluginCommand::Completion { .. } => Ok(IN_SYNC),
    }
}
