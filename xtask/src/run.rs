//! Running other programs, and telling what is being done.
//!
//! Comes in: a prepared `Command`. Goes out: success, its output, or an error that holds the command line, its
//! exit status and the end of what it printed. Nothing here knows what the programs are for.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Lines of a failed program's output that an error message repeats.
const TAIL_LINES: usize = 30;

/// Says on standard error what is about to be done, and for which part.
pub(crate) fn say(part: &str, what: &str) {
    if std::io::stderr().is_terminal() {
        eprintln!("\x1b[1;32m{part:>12}\x1b[0m {what}");
    } else {
        eprintln!("{part:>12} {what}");
    }
}

/// What keeps cargo from showing its progress, where nobody would see it.
pub(crate) fn quiet() -> Option<&'static str> {
    (!std::io::stderr().is_terminal()).then_some("--quiet")
}

/// The command line as a person would type it, for messages.
fn display(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a program whose output the user should see as it comes.
pub(crate) fn show(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", display(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", display(command));
    }
    Ok(())
}

/// Runs a program quietly and gives its standard output; on failure the error repeats the end of what it said.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", display(command)))?;
    let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.success() {
        return Ok(stdout);
    }
    let both = format!("{stdout}{}", String::from_utf8_lossy(&out.stderr));
    let lines: Vec<&str> = both.lines().collect();
    let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n    ");
    bail!("`{}` failed: {}\n    {tail}", display(command), out.status)
}

/// Where a program is found on the search path (the administrator's folders included), if anywhere.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

/// A cargo of the toolchain that runs us, free of the variables that cargo set for us.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(text);
        }
    }
    command
}
