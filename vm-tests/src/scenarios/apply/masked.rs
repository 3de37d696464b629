//! Actions on a masked unit.

use anyhow::{Result, ensure};

use super::node::{Wish, apply, apply_manifest, property, result};
use crate::guest::run;

/// A restart of a unit that an administrator masked fails. A restart of a unit that the config masks is skipped. Neither stops
/// the unit.
pub(super) fn masked(wish: &Wish) -> Result<String> {
    let pid = property("ssh.service", "MainPID")?;
    ensure!(pid != "0", "ssh.service does not run");
    run("systemctl", &["mask", "ssh.service"])?;
    let report = apply(wish, 3);
    run("systemctl", &["unmask", "ssh.service"])?;
    let report = report?;
    result(&report, "rolled-back")?;
    let failed = report["reason"].as_str().unwrap_or_default();
    ensure!(failed.contains("restart ssh.service: the unit is masked, and not by the config"), "{failed}");
    ensure!(property("ssh.service", "MainPID")? == pid, "it was stopped or restarted");
    let masks = format!("{}      - {{name: ssh.service, mask: true}}\n", wish.manifest());
    let report = apply_manifest(&masks, 0)?;
    result(&report, "done")?;
    let skipped = report["problems"][0].as_str().unwrap_or_default();
    ensure!(skipped.contains("restart ssh.service: skipped: the config masks the unit"), "{report:#}");
    ensure!(property("ssh.service", "MainPID")? == pid, "it was stopped or restarted");
    Ok(format!("{failed}; {skipped}"))
}
