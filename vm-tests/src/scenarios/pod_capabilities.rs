//! The capabilities of the sensor's container: each one that the `DaemonSet` lists is needed, one of them only before kernel 5.11, and one
//! before 5.19.
//!
//! In: the command of a container. Out: what the daemon does without each of the capabilities.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::Value;

use crate::guest::agent::RunningDaemon;
use crate::guest::pod::listed;
use crate::guest::status;

const LIMIT: Duration = Duration::from_mins(1);

/// What the daemon says without a capability: a part of its output. In the list's order.
const WITHOUT: &[(&str, &str)] = &[
    ("BPF", "`bpf_map_delete_elem` failed: Operation not permitted"),
    ("SYS_ADMIN", "lacks CAP_SYS_ADMIN"),
    ("SYS_CHROOT", "lacks CAP_SYS_CHROOT"),
    ("SYS_PTRACE", "lacks CAP_SYS_PTRACE"),
    ("SYS_RESOURCE", "setrlimit(RLIMIT_MEMLOCK, RLIM_INFINITY) failed"),
    ("SETPCAP", "The bounding set stays as it is: that would take CAP_SETPCAP."),
    ("DAC_READ_SEARCH", "capability=\"CAP_DAC_READ_SEARCH\""),
    ("CHOWN", "cannot make the reporter's socket"),
];

/// The only kernel here that counts the memory of maps as locked memory: 5.11 and later count it in the control group. It is also the only one
/// on which each use of a map needs `CAP_BPF`, where unprivileged users may not use bpf: since 5.19 only loading does
/// ("bpf: refine `kernel.unprivileged_bpf_disabled` behaviour").
const OLD: &str = "5.10";
/// The capabilities that later kernels do not ask for.
const OF_OLD: [&str; 2] = ["SYS_RESOURCE", "BPF"];
/// What the daemon says without a capability that it does not need.
const RUNS: &str = "detection runs backend=\"lsm\"";

/// A managed file that only its owner, who is not root, may read.
pub(super) const PRIVATE: &str = "/etc/pod-private/file";
/// Its config.
pub(super) const PRIVATE_CONFIG: &str = machine_config!(
    "99-worker-private",
    r#"      - {path: /etc/pod-private/file, mode: 384, user: {id: 4711}, contents: {source: "data:,private"}}
"#
);

/// What does not work without a capability that the daemon itself says it lacks, and then runs.
pub(super) fn effects(container: &dyn Fn(&str) -> Result<Command>) -> [(&'static str, Result<String>); 2] {
    [
        ("without_SETPCAP_the_bounding_set_stays", bounding_set_stays(container)),
        ("without_DAC_READ_SEARCH_a_private_file_is_not_read", private_is_unread(container)),
    ]
}

fn bounding_set_stays(container: &dyn Fn(&str) -> Result<Command>) -> Result<String> {
    let agent = RunningDaemon::start_by(container("SETPCAP")?)?;
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid()))?;
    let set = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        Ok(u64::from_str_radix(line.context("no such set")?, 16)?)
    };
    let (bounding, effective) = (set("CapBnd")?, set("CapEff")?);
    ensure!(bounding & !effective != 0 && effective & !bounding == 0, "{status}");
    agent.stop()?;
    Ok(format!("{bounding:016x}"))
}

fn private_is_unread(container: &dyn Fn(&str) -> Result<Command>) -> Result<String> {
    let agent = RunningDaemon::start_by(container("DAC_READ_SEARCH")?)?;
    let is_private = |thing: &&Value| thing["path"] == PRIVATE;
    let status = status::wait_until("the private file to differ", LIMIT, |status| {
        status["drifted"].as_array().into_iter().flatten().any(|thing| is_private(&thing))
    })?;
    agent.stop()?;
    let found = status["drifted"].as_array().into_iter().flatten().find(is_private);
    let difference = &found.context("no drift")?["differences"][0];
    ensure!(difference["kind"] == "unreadable", "{difference}");
    Ok(difference.to_string())
}

/// Starts the container without each of the capabilities, on this kernel.
pub(super) fn without_each(
    kernel: &str,
    container: &dyn Fn(&str) -> Result<Command>,
) -> Vec<(&'static str, Result<String>)> {
    let start = |name: &str, text: &str| -> Result<String> {
        ensure!(listed().any(|listed| listed == name), "the manifest does not list it");
        let output = RunningDaemon::try_out(container(name)?)?;
        let text = if OF_OLD.contains(&name) && kernel != OLD { RUNS } else { text };
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
