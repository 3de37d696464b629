//! The capabilities of the sensor's container: each one that the `DaemonSet` lists is needed, one of them only before kernel 5.11.
//!
//! In: the command of a container. Out: what the daemon does without each of the capabilities.

use std::process::Command;

use anyhow::{Result, anyhow, ensure};

use crate::guest::agent::RunningDaemon;
use crate::guest::pod::listed;

/// What the daemon says without a capability: a part of its output. In the list's order.
const WITHOUT: &[(&str, &str)] = &[
    ("BPF", "capability=\"CAP_BPF\""),
    ("SYS_ADMIN", "lacks CAP_SYS_ADMIN"),
    ("SYS_CHROOT", "lacks CAP_SYS_CHROOT"),
    ("SYS_PTRACE", "lacks CAP_SYS_PTRACE"),
    ("SYS_RESOURCE", "setrlimit(RLIMIT_MEMLOCK, RLIM_INFINITY) failed"),
    ("SETPCAP", "The bounding set stays as it is: that would take CAP_SETPCAP."),
    ("DAC_READ_SEARCH", "capability=\"CAP_DAC_READ_SEARCH\""),
    ("CHOWN", "cannot make the reporter's socket"),
];

/// The only kernel here that counts the memory of maps as locked memory: 5.11 and later count it in the control group.
const WITH_LOCKED_MAPS: &str = "5.10";
/// What the daemon says without a capability that it does not need.
const RUNS: &str = "detection runs backend=\"lsm\"";

/// Starts the container without each of the capabilities, on this kernel.
pub(super) fn without_each(
    kernel: &str,
    container: &dyn Fn(&str) -> Result<Command>,
) -> Vec<(&'static str, Result<String>)> {
    let start = |name: &str, text: &str| -> Result<String> {
        ensure!(listed().any(|listed| listed == name), "the manifest does not list it");
        let output = RunningDaemon::try_out(container(name)?)?;
        let text = if name == "SYS_RESOURCE" && kernel != WITH_LOCKED_MAPS { RUNS } else { text };
        ensure!(output.contains(text), "no {text:?} in:\n{output}");
        Ok(text.to_owned())
    };
    let mut results: Vec<_> = WITHOUT.iter().map(|(name, text)| (*name, start(name, text))).collect();
    let untested: Vec<&str> =
        listed().filter(|name| WITHOUT.iter().all(|(tested, _)| tested != name)).collect();
    let all_tested = if untested.is_empty() { Ok(String::new()) } else { Err(anyhow!("{untested:?}")) };
    results.push(("any_untested_capability", all_tested));
    results
}
