//! Programs of util-linux.
//!
//! In: a command. Out: what it printed, or why it failed.

use std::process::{Command, Stdio};

/// Most characters of the program's words in a reason.
const REASON: usize = 300;

/// What a program printed.
///
/// # Errors
/// Why it failed, in its own words.
pub(super) fn printed(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let run = command.env("LC_ALL", "C").stdin(Stdio::null()).output();
    let output = run.map_err(|error| format!("the program {program} does not start: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let words: String = words.lines().next().unwrap_or_default().chars().take(REASON).collect();
    Err(if words.is_empty() { format!("{program}: {}", output.status) } else { words })
}
