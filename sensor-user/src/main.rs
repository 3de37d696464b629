//! The `holdfast` command.

// Where the reader is gone they panic, which ends the process in the middle of its work: `cli::output::say` does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use holdfast::cli::{self, Command, output};
use std::io::IsTerminal as _;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Gives back to the kernel what was used to read configs and kernel types; the C library's allocator keeps it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let command = cli::parse().command;
    // A command that answers a question says only what went wrong beside it.
    let level = if matches!(command, Command::Agent(_)) { LevelFilter::INFO } else { LevelFilter::WARN };
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().with_default_directive(level.into()).from_env_lossy())
        .with_ansi(std::io::stderr().is_terminal() && output::wants_colour())
        .with_writer(|| output::Errors)
        .init();
    let mut screen = output::Screen::stdout();
    let result = cli::run(command, &mut screen).and_then(|code| {
        screen.flush()?;
        Ok(code)
    });
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::say_last(&format!("error: {}", cli::told(&error)));
            ExitCode::from(cli::exit_code(&error))
        }
    }
}
