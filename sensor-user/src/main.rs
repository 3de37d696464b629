//! The `holdfast` command.

use clap::Parser;
use holdfast::cli::{Cli, Command, FAILURE};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy(),
        )
        .with_writer(std::io::stderr)
        .init();
    let result = match cli.command {
        Command::Agent(agent) => agent.run(),
        Command::Doctor(doctor) => doctor.run(&mut std::io::stdout().lock()),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(FAILURE)
        }
    }
}
