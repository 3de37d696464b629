//! Control groups of version 1. The daemon finds the group of an ended process even after the group's removal. A rule allows a
//! unit by its group.
//!
//! In: a bare guest with a controller bound to version 1. Out: a check for each. The daemon is stopped while a process
//! writes, so it cannot have looked up the process.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use super::simple;
use crate::guest::agent::RunningDaemon;
use crate::guest::{Context, shell, status, wait};

const LIMIT: Duration = Duration::from_mins(1);
const CONFIG: &str = "/run/groups.yaml";
const PINS: &str = "/sys/fs/bpf/holdfast";
const TOP: &str = "/run/pids";
const POD: &str = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f";
const CONTAINER: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const LATER: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";

const POLICY: &str = "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: groups}\nspec:\n  rules:\n  \
                      - path: /etc/groups/0002\n    action: deny\n    allowedActors: {units: [allowed.service]}\n";

/// The scenario.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    let files = simple::files(Path::new("/etc/groups"), 3, Path::new(CONFIG))?;
    for file in &files {
        shell(&format!("chmod 644 {}", file.display()))?;
    }
    fs::write("/run/groups-policy.yaml", POLICY)?;
    let start =
        || RunningDaemon::start(&["--standalone", "--config", CONFIG, "--policy", "/run/groups-policy.yaml"]);
    // Programs that still use the earlier hierarchy would read other numbers.
    let agent = start()?;
    status::wait_for("compliant", LIMIT)?;
    agent.kill()?;
    let old = group(CONTAINER);
    shell(&format!(
        "umask 022; mkdir {TOP} && mount -t cgroup -o pids pids {TOP} && mkdir -p {old} {TOP}/system.slice/allowed.service"
    ))?;
    let mut agent = start()?;
    status::wait_for("compliant", LIMIT)?;
    context.check("programs_of_another_hierarchy_are_replaced", replaced());
    context.check("a_process_that_has_ended", is_named(&mut agent, &files[0], CONTAINER));
    context.check("a_removed_group", is_named(&mut agent, &files[1], LATER));
    context.check("a_unit_is_allowed", allowed(&mut agent, &files[2]));
    Ok(())
}

fn replaced() -> Result<String> {
    let names = fs::read_dir(PINS)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<std::io::Result<Vec<_>>>()?;
    ensure!(names.len() == 2 && names.iter().all(|name| name.contains("-pids-")), "pinned are {names:?}");
    Ok(names.join(", "))
}

fn group(container: &str) -> String {
    format!("{TOP}/kubepods/besteffort/pod{POD}/{container}")
}

/// A process in a container's group writes; then the process and the group are removed.
fn is_named(agent: &mut RunningDaemon, file: &Path, container: &str) -> Result<String> {
    let before = agent.records()?.len();
    let (group, shown) = (group(container), file.display());
    agent.signal(Signal::SIGSTOP)?;
    let done = shell(&format!(
        "mkdir -p {group} && echo $$ > {group}/cgroup.procs && echo drift >> {shown} && \
         echo $$ > {TOP}/cgroup.procs && rmdir {group}"
    ));
    agent.signal(Signal::SIGCONT)?;
    done?;
    let record = agent.wait_for("the drift", before, |record| simple::is_drift(record, file))?;
    let actor = &record["actor"];
    ensure!(actor["container_id"] == container && actor["pod_uid"] == POD, "{actor}");
    ensure!(!Path::new("/proc").join(actor["pid"].to_string()).exists(), "it lives: {actor}");
    Ok(actor.to_string())
}

fn allowed(agent: &mut RunningDaemon, file: &Path) -> Result<String> {
    let before = agent.records()?.len();
    let change = format!("chmod 600 {}", file.display());
    ensure!(shell(&change).is_err(), "an actor without a rule was not refused");
    let record = agent.wait_for("the refusal", before, |record| record["kind"] == "denied")?;
    wait::until("the unit to be allowed", LIMIT, || {
        let done = shell(&format!("echo $$ > {TOP}/system.slice/allowed.service/cgroup.procs && {change}"));
        Ok(done.is_ok().then_some(()))
    })?;
    Ok(record.to_string())
}
