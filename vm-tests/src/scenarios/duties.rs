//! The daemon's rights on a node, and its work while it runs: capabilities, reload, revert.
//!
//! In: a node with the daemon as its systemd service. Out: one check for each.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use anyhow::{Result, ensure};
use rustix::fs::XattrFlags;
use serde_json::Value;

use crate::guest::capabilities;
use crate::guest::service::Node;
use crate::guest::{run, shell};

/// The capabilities of a daemon with kernel programs, by the numbers in `linux/capability.h`: chown, `dac_override`,
/// fowner, fsetid, `linux_immutable`, `sys_ptrace`, mknod, setfcap, bpf.
const HELD: [u32; 9] = [0, 1, 3, 4, 9, 19, 27, 31, 39];
const POLICY: &str = "/etc/holdfast/policies/revert.yaml";
const SSHD: &str = "/etc/ssh/sshd_config.d/40-baseline.conf";

/// Every thread has exactly the capabilities that are kept, and can gain none.
pub(super) fn capabilities(node: &Node) -> Result<String> {
    let pid = node.property("MainPID")?;
    let found = capabilities::are_exactly(&pid, &HELD)?;
    let printed = &node.status()?["capabilities"];
    ensure!(printed.as_array().is_some_and(|names| names.len() == HELD.len()), "the status says {printed}");
    Ok(found)
}

/// A policy with a mistake changes nothing. The daemon follows a valid one from then on, and misses nothing meanwhile.
pub(super) fn reload(node: &Node) -> Result<String> {
    let starts = || starts(node);
    let pid = node.property("MainPID")?;
    let (before, first) = (starts()?.len(), node.records()?.len());
    fs::write(POLICY, policy("undo"))?;
    run("systemctl", &["reload", "holdfast.service"])?;
    let failed = "holdfast_config_last_reload_successful";
    crate::guest::wait::until("the mistake to be reported", std::time::Duration::from_mins(1), || {
        Ok((node.metric(failed)? < 0.5).then_some(()))
    })?;
    ensure!(starts()?.len() == before, "it started again with a policy that has a mistake");
    node.wait_for_verdict("compliant")?;
    fs::write(POLICY, policy("revert"))?;
    run("systemctl", &["reload", "holdfast.service"])?;
    node.wait_for("the daemon to begin anew", first, |record| {
        record["kind"] == "start" && record["detail"]["adopted"] == true
    })?;
    node.wait_for_verdict("compliant")?;
    ensure!(node.metric(failed)? > 0.5, "the metric of the mistake stays");
    ensure!(node.property("MainPID")? == pid, "it is another process");
    let gap = node.records()?.into_iter().skip(first).find(|record| record["kind"] == "gap");
    ensure!(gap.is_none(), "a reload is no gap: {gap:?}");
    Ok("a mistake changed nothing, the policy is followed".to_owned())
}

fn policy(action: &str) -> String {
    format!(
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {{name: sshd}}\nspec:\n  rules:\n  - path: \
         {SSHD}\n    action: {action}\n"
    )
}

/// The daemon restores a file of another owner, without permission to read, with file capabilities and an immutable flag.
pub(super) fn revert(node: &Node) -> Result<String> {
    let first = node.records()?.len();
    let declared = fs::read(SSHD)?;
    let other = "/etc/another";
    shell(&format!(
        "cp {SSHD} {other}; echo PermitRootLogin yes >> {other}; chown alice {other}; chmod 4000 {other}"
    ))?;
    // `cap_net_raw+ep`, by revision 2 of the format.
    let value: Vec<u8> =
        [0x0200_0001_u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    rustix::fs::setxattr(other, "security.capability", &value, XattrFlags::empty())?;
    // If the flag comes in the middle of a revert, the daemon tries again a second later.
    let pid = node.property("MainPID")?;
    shell(&format!("kill -STOP {pid}; mv {other} {SSHD}; chattr +i {SSHD}; kill -CONT {pid}"))?;
    let record = node.wait_for("the revert", first, |record| record["kind"] == "reverted")?;
    node.wait_for_verdict("compliant")?;
    let failed = node.records()?.into_iter().skip(first).find(|record| record["detail"]["error"].is_string());
    ensure!(failed.is_none(), "{failed:?}");
    let metadata = fs::metadata(SSHD)?;
    ensure!(metadata.uid() == 0 && metadata.permissions().mode() & 0o7777 == 0o600, "{metadata:?}");
    ensure!(fs::read(SSHD)? == declared, "the content is another one");
    Ok(record["detail"]["actions"].to_string())
}

pub(super) fn starts(node: &Node) -> Result<Vec<Value>> {
    Ok(node.records()?.into_iter().filter(|record| record["kind"] == "start").collect())
}
