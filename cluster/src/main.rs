//! The `holdfast-cluster` command.

use clap::Parser as _;
use holdfast_cluster::cli::{Cli, run};
use std::io::IsTerminal as _;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// What is logged by default. The client's errors are ours to report, with the object that was not written.
const LOGGED: &str = "info,kube_client=off";

fn main() -> ExitCode {
    let cli = Cli::parse();
    let directives = std::env::var("RUST_LOG").unwrap_or_else(|_| LOGGED.to_owned());
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(directives))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "The command failed.");
            ExitCode::FAILURE
        }
    }
}
