//! The `holdfast-cluster` command, which is `kubectl holdfast` under the name `kubectl-holdfast`, and its completion under the name
//! `kubectl_complete-holdfast`.

use clap::Parser as _;
use holdfast_cluster::cli::{Cli, Command, complete_plugin, run, run_plugin};
use holdfast_cluster::plugin::{COMPLETER, FAILED, PROGRAM, Plugin, PluginError};
use holdfast_cluster::text::fit;
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// What is logged by default. The client's errors are ours to report, with the object that was not written.
const LOGGED: &str = "info,kube_client=off";

/// Longest error of `kubectl holdfast`, in bytes.
const ERROR_BYTES: usize = 8 << 10;

fn main() -> ExitCode {
    let program = std::env::args_os().next().unwrap_or_default();
    if Path::new(&program).file_stem().is_some_and(|name| name == PROGRAM) {
        return answered(run_plugin(Plugin::parse()));
    }
    if Path::new(&program).file_stem().is_some_and(|name| name == COMPLETER) {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        return answered(complete_plugin(words.skip(1).collect()));
    }
    let cli = Cli::parse();
    if matches!(cli.command, Command::Kubectl(_) | Command::Image(_)) {
        return answered(run(cli.command));
    }
    let directives = std::env::var("RUST_LOG").unwrap_or_else(|_| LOGGED.to_owned());
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(directives))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match run(cli.command) {
        Ok(code) => code.into(),
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "The command failed.");
            ExitCode::FAILURE
        }
    }
}

/// The exit code of `kubectl holdfast`, after its error. Parts of an error may be a node's own words.
fn answered(answer: anyhow::Result<u8>) -> ExitCode {
    answer.map_or_else(
        |error| {
            // The reader of the output has ended, as `head` does after its lines.
            if !is_closed(&error) {
                eprintln!("error: {}", fit(&format!("{error:#}"), ERROR_BYTES));
            }
            FAILED.into()
        },
        ExitCode::from,
    )
}

/// Whether the reader of the output has closed it. A connection to the cluster may break in the same way, and that is to be said.
fn is_closed(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<PluginError>() {
        Some(PluginError::Output(error)) => error.kind() == std::io::ErrorKind::BrokenPipe,
        _ => false,
    }
}
