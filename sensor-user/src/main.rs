//! The `holdfast` command.

use clap::Parser;
use holdfast::cli::{Cli, Command, FAILURE};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
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
