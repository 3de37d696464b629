//! Whether the kernel accepts every program, of both sets.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::guest::Context;

/// Loads everything; each hook must be attached, waiting, or absent from the kernel.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    // It exits with 1 if it cannot see something. The checks below judge this.
    let out = Command::new(crate::guest::agent::HOLDFAST).args(["doctor", "--hooks"]).output()?;
    let printed = String::from_utf8_lossy(&out.stdout);
    for mode in ["lsm", "fentry"] {
        let lines: Vec<&str> = printed.lines().filter(|line| line.starts_with(mode)).collect();
        context.check(mode, accepted(&lines));
    }
    Ok(())
}

fn accepted(lines: &[&str]) -> Result<String> {
    ensure!(lines.len() > 20, "only {} hooks: {lines:?}", lines.len());
    for line in lines {
        let fine =
            line.ends_with("Attached") || line.ends_with("Waiting") || line.contains("has no function");
        ensure!(fine, "{line}");
    }
    Ok(format!("{} hooks", lines.len()))
}
