//! The node of the deny scenarios: its policy, its file, and a refused change.

use std::fs;

use anyhow::{Result, bail, ensure};

use crate::guest::agent::RunningDaemon;
use crate::guest::shell;

pub(super) const POLICY: &str = r"apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: deny}
spec:
  rules:
  - path: /etc/deny/protected.conf
    action: deny
    allowedActors:
      exes: [/run/allowed/busybox]
  - path: /etc/deny/program.conf
    action: degrade
    allowedActors:
      exes: [/run/allowed/busybox]
  - path: /etc/deny/reverted.conf
    action: revert
";

pub(super) const FILE: &str = "/etc/deny/protected.conf";

pub(super) fn refused(agent: &mut RunningDaemon, command: &str, operation: &str) -> Result<String> {
    let before = agent.records()?.len();
    let content = fs::read_to_string(FILE)?;
    match shell(command) {
        Ok(_) => bail!("`{command}` was not refused"),
        Err(error) => ensure!(format!("{error:#}").contains("not permitted"), "{error:#}"),
    }
    let after = fs::read_to_string(FILE)?;
    ensure!(after == content, "the content changed: {after}");
    let record = agent.wait_for("denied", before, |record| record["kind"] == "denied")?;
    ensure!(record["path"] == FILE && record["operation"] == operation, "{record}");
    ensure!(record["actor"]["pid"].is_u64(), "{record}");
    Ok(String::new())
}
