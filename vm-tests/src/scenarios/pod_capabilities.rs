//! The capabilities of the sensor's container: each one that the `DaemonSet` lists is needed.
//!
//! In: the command of a container. Out: what the daemon does without each of the capabilities.

use std::process::Command;

use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::thread::{CapabilitySet, capability_is_in_bounding_set, remove_capability_from_bounding_set};

use crate::guest::agent::RunningDaemon;

/// The manifest with the list.
const DAEMONSET: &str = include_str!("../../../deploy/kustomize/base/daemonset.yaml");

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

/// The names in the manifest.
fn listed() -> impl Iterator<Item = &'static str> {
    let list = DAEMONSET.lines().map(str::trim).skip_while(|line| *line != "add:").skip(1);
    list.map_while(|line| line.strip_prefix("- ")).filter_map(|line| line.split(' ').next())
}

/// Leaves this process, and those that it becomes, the capabilities of the manifest but one.
pub(super) fn limit_capabilities(without: Option<&str>) -> Result<()> {
    let kept: Vec<&str> = listed().filter(|name| Some(*name) != without).collect();
    ensure!(kept.len() > 5, "the manifest lists {kept:?}");
    let bounding = (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit));
    // The kernel returns an error for the first number without a capability.
    for capability in bounding.take_while(|capability| capability_is_in_bounding_set(*capability).is_ok()) {
        if !capability.iter_names().any(|(name, _)| kept.contains(&name)) {
            remove_capability_from_bounding_set(capability).context("cannot limit the capabilities")?;
        }
    }
    Ok(())
}

/// Starts the container without each of the capabilities.
pub(super) fn each_is_needed(
    container: &dyn Fn(&str) -> Result<Command>,
) -> Vec<(&'static str, Result<String>)> {
    let start = |name: &str, text: &str| -> Result<String> {
        ensure!(listed().any(|listed| listed == name), "the manifest does not list it");
        let output = RunningDaemon::try_out(container(name)?)?;
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
