//! The `holdfast` command.

// The print macros panic if the reader closed the pipe, and an apply would stop halfway. `cli::output::say` does not panic.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use holdfast::cli::{self, Command, output};
use std::io::IsTerminal as _;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Returns the memory that reading configs and kernel types took. The C library's allocator would keep it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let command = cli::parse().command;
    // A command other than `agent` logs warnings and errors only.
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
            output::say_last(&format!("error: {}", cli::error_line(&error)));
            ExitCode::from(cli::exit_code(&error))
        }
    }
}
