//! Kernel parameters, and runs of programs.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// Consent to every apply and its reboot, because a scenario has no terminal for the question.
pub const CONSENT: [(&str, &str); 2] = [("HOLDFAST_YES", "1"), ("HOLDFAST_REBOOT", "1")];

/// The value of a kernel parameter.
pub fn parameter(name: &str) -> Option<String> {
    let line = fs::read_to_string("/proc/cmdline").ok()?;
    line.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .find(|(n, _)| *n == name)
        .map(|(_, v)| v.to_owned())
}

/// Runs a program to its end. It gives the output, or an error that contains the output.
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let out = Command::new(program)
        .args(arguments)
        .envs(CONSENT)
        .output()
        .with_context(|| format!("cannot start {program} {}", arguments.join(" ")))?;
    let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        let stderr = String::from_utf8_lossy(&out.stderr);
        bail!("{program} {}: {}: {}{}", arguments.join(" "), out.status, stdout.trim(), stderr.trim());
    }
    Ok(stdout)
}

/// Runs a shell line to its end. It gives the output, or an error that contains the output.
pub fn shell(line: &str) -> Result<String> {
    run("/bin/sh", &["-c", line])
}

/// The same with the processor time that the line took, in milliseconds. Nothing else may end meanwhile that this process started.
pub fn shell_time(line: &str) -> Result<(String, i64)> {
    let spent = || getrusage(UsageWho::RUSAGE_CHILDREN).map(|usage| usage.user_time() + usage.system_time());
    let before = spent()?;
    let output = shell(line)?;
    Ok((output, (spent()? - before).num_milliseconds()))
}
