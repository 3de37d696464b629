//! Deny rules refuse a user without rights again and again. No change of another user loses its actor, and log and memory stay small.
//!
//! In: a file that a deny rule protects and whose mode lets everybody write, and a file that root edits. Out: refused
//! opens, and mounts that are not visible to the host, with a command line of 100 KB. While the daemon is stopped they
//! exceed the ring by far. While it runs, one process after the other makes them. Then the user makes more control groups than the
//! kernel programs keep, with a process in each.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use sensor_common::limits::{GROUP_ENTRIES, RING_BYTES};
use sensor_common::record::ChangeRecord;
use serde_json::Value;

use crate::guest::agent::RunningDaemon;
use crate::guest::{Context, page, shell, status, wait};

/// Argument of a process that is refused.
pub(crate) const FLOODER: &str = "flooder";

const DIRECTORY: &str = "/etc/flood";
const DENIED: &str = "/etc/flood/denied.conf";
const EDITED: &str = "/etc/flood/edited.conf";
const ATTEMPTED: &str = "/etc/flood/attempted.conf";
const LOG: &str = "/var/log/holdfast/forensic.jsonl";
const LIMIT: Duration = Duration::from_mins(1);
/// More than the ring holds, both of opens and of mounts.
const ATTEMPTS: usize = 2 * RING_BYTES as usize / size_of::<ChangeRecord>();
/// Number of processes, one after the other, and of attempts of each.
const PROCESSES: usize = 100;
const EACH: usize = 20;
/// The control groups that belong to a user.
const OF_USER: &str = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service";
/// Number of groups that the user makes, and of those that get a process. The kernel programs no longer have their paths then.
const GROUPS: u32 = GROUP_ENTRIES * 3 / 2;
const GROUPS_WITH_PROCESS: u32 = GROUP_ENTRIES / 2;
/// Size of an entry, and of the log's growth in all.
const ENTRY: usize = 16 << 10;
const LOG_ROOM: u64 = 512 << 10;
const MEMORY_ROOM: u64 = 16 << 20;

const CONFIG: &str = machine_config!(
    "99-worker-flood",
    r#"      - path: /etc/flood/denied.conf
        mode: 438
        contents: {source: "data:,content%0A"}
      - path: /etc/flood/edited.conf
        mode: 420
        contents: {source: "data:,content%0A"}
      - path: /etc/flood/attempted.conf
        mode: 420
        contents: {source: "data:,content%0A"}
"#
);

const POLICY: &str = r"apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: flood}
spec:
  rules:
  - path: /etc/flood/denied.conf
    action: deny
";

/// One process: `<directory>/<attempts>`, where the last name is the number of attempts. Each attempt opens the
/// protected file, mounts something where it may not, and mounts something in its own namespace.
pub(crate) fn attempt(place: &Path) -> Result<()> {
    let attempts: usize = place.file_name().and_then(|n| n.to_str()).context("a number")?.parse()?;
    for _ in 0..attempts {
        ensure!(OpenOptions::new().write(true).open(DENIED).is_err(), "it was not refused");
    }
    let bind = || mount(Some("/mnt"), "/mnt", None::<&str>, MsFlags::MS_BIND, None::<&str>);
    for _ in 0..attempts {
        ensure!(bind().is_err(), "a user mounted something");
    }
    if unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).is_err() {
        // This kernel lets no user do this.
        return Ok(());
    }
    for _ in 0..attempts / 2 {
        bind().context("mount in a namespace of its own")?;
        umount2("/mnt", MntFlags::MNT_DETACH)?;
    }
    Ok(())
}

/// The scenario.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    shell(&format!(
        "mkdir -p {DIRECTORY} && for f in {DENIED} {EDITED} {ATTEMPTED}; do echo content > $f; chmod 644 $f; done && chmod 666 {DENIED}"
    ))?;
    fs::write("/run/flood.yaml", CONFIG)?;
    fs::write("/run/flood-policy.yaml", POLICY)?;
    let arguments = ["--standalone", "--config", "/run/flood.yaml", "--policy", "/run/flood-policy.yaml"];
    let mut agent =
        RunningDaemon::start(&[&arguments[..], &["--canary-every", "1", "--verify-every", "3600"]].concat())?;
    status::wait_for("compliant", LIMIT)?;
    wait::until("the first gap to close", LIMIT, || {
        let records = agent.records()?;
        Ok(records.iter().any(|record| record["detail"]["until"].is_string()).then_some(()))
    })?;
    // Resets the peak, which otherwise includes the memory for reading the kernel's types at the start.
    fs::write(format!("/proc/{}/clear_refs", agent.pid()), "5")?;
    let before = (agent.records()?.len(), fs::metadata(LOG)?.len(), peak(&agent)?, mounts()?);

    context.check("without_a_reader", without_a_reader(&mut agent));
    context.note("one process after the other");
    for _ in 0..PROCESSES {
        flooder(EACH)?;
    }
    context.check("while_the_daemon_reads", edit(&mut agent));
    context.check("from_groups_that_nobody_knows", from_unknown_groups(&mut agent));
    let attempts = ATTEMPTS + PROCESSES * EACH;
    context.check("every_refusal_is_recorded_or_counted", counted(&agent, before.0, attempts));
    let memory = peak(&agent)?.saturating_sub(before.2);
    let grown = fs::metadata(LOG)?.len() - before.1;
    context.check("mounts_of_users_are_no_records", {
        let mounts = mounts()? - before.3;
        if mounts < 1.0 { Ok(String::new()) } else { Err(anyhow::anyhow!("{mounts} records of mounts")) }
    });
    context.check("the_log_stays_small", {
        let longest = fs::read_to_string(LOG)?.lines().map(str::len).max().unwrap_or_default();
        within(grown, LOG_ROOM).and_then(|printed| {
            ensure!(longest < ENTRY, "an entry has {longest} bytes");
            Ok(format!("{printed}; the longest entry has {longest}"))
        })
    });
    context.check("memory_stays_small", within(memory, MEMORY_ROOM));
    let gaps: Vec<Value> =
        agent.records()?.into_iter().skip(before.0).filter(|record| record["kind"] == "gap").collect();
    context.check("no_gap_opens", {
        if gaps.is_empty() { Ok(String::new()) } else { Err(anyhow::anyhow!("{gaps:?}")) }
    });
    agent.stop()?;
    context.check("all_counts_are_in_the_log", in_the_log(before.0, attempts));
    Ok(())
}

/// Runs a process of a user without rights, with a long command line.
fn flooder(attempts: usize) -> Result<()> {
    let status = Command::new("/proc/self/exe")
        .arg0("x".repeat(100 << 10))
        .args(["act", FLOODER, &format!("{DIRECTORY}/{attempts}")])
        .uid(1000)
        .gid(1000)
        .status()?;
    ensure!(status.success(), "what should be refused was not, or something else failed: {status}");
    Ok(())
}

/// More attempts than the ring holds, and then an edit by root, whose record has its actor.
fn without_a_reader(agent: &mut RunningDaemon) -> Result<String> {
    let lost = lost()?;
    agent.signal(Signal::SIGSTOP)?;
    let flooded = flooder(ATTEMPTS);
    let skip = agent.records()?.len();
    let changed = change();
    agent.signal(Signal::SIGCONT)?;
    flooded?;
    named(agent, skip, changed?)?;
    ensure!(self::lost()? <= lost, "records found no room");
    Ok(format!("{ATTEMPTS} refused opens and as many mounts"))
}

/// A user attempts a change from hundreds of control groups that only a search would find, and then root edits a file.
fn from_unknown_groups(agent: &mut RunningDaemon) -> Result<String> {
    let received = || page::sum("holdfast_events_total", |line| line.contains("\"set-attributes\""));
    let before = received()?;
    shell(&format!("mkdir -p {OF_USER}/first && chown -R 1000:1000 {OF_USER}"))?;
    agent.signal(Signal::SIGSTOP)?;
    // Only root moves a process into the groups of a user; its children are there, too.
    fs::write(format!("{OF_USER}/first/cgroup.procs"), "0")?;
    let attempts = format!(
        "cd {OF_USER} && seq 1 {GROUPS} | xargs mkdir && for n in $(seq 1 {GROUPS_WITH_PROCESS}); do \
         (echo 0 > $n/cgroup.procs && exec chmod 666 {ATTEMPTED} 2> /dev/null); done; exit 0"
    );
    let made = Command::new("/bin/sh").args(["-c", &attempts]).uid(1000).gid(1000).status();
    fs::write("/sys/fs/cgroup/cgroup.procs", "0")?;
    let skip = agent.records()?.len();
    let changed = change();
    agent.signal(Signal::SIGCONT)?;
    ensure!(made?.success(), "the user cannot make groups");
    let began = Instant::now();
    named(agent, skip, changed?)?;
    let took = began.elapsed();
    let received = received()? - before;
    ensure!(received >= f64::from(GROUPS_WITH_PROCESS), "only {received} attempts were recorded");
    Ok(format!("{received} attempts; root's edit was recorded after {took:?}"))
}

fn edit(agent: &mut RunningDaemon) -> Result<String> {
    let skip = agent.records()?.len();
    let pid = change()?;
    named(agent, skip, pid)
}

/// Root changes a file by a shell that has then ended; returns its process id.
fn change() -> Result<u32> {
    let mut child = Command::new("/bin/sh").args(["-c", &format!("echo drift >> {EDITED}")]).spawn()?;
    let pid = child.id();
    ensure!(child.wait()?.success(), "the change failed");
    Ok(pid)
}

/// Expects drift by this process, and restores the file.
fn named(agent: &mut RunningDaemon, skip: usize, pid: u32) -> Result<String> {
    let record =
        agent.wait_for("drift", skip, |record| record["kind"] == "drift" && record["path"] == EDITED)?;
    ensure!(record["actor"]["pid"] == pid && record["operation"] != "sweep", "{pid} did it, but: {record}");
    fs::write(EDITED, "content\n")?;
    status::wait_for("compliant", LIMIT)?;
    Ok(record["operation"].to_string())
}

fn lost() -> Result<f64> {
    page::sum("holdfast_events_lost_total", |line| line.contains("stage=\"ring\""))
}

/// Number of records of mounts.
fn mounts() -> Result<f64> {
    page::sum("holdfast_events_total", |line| {
        ["\"mount\"", "\"unmount\"", "\"pivot-root\""].iter().any(|word| line.contains(word))
    })
}

/// Peak of the daemon's memory since the last reset, in bytes.
fn peak(agent: &RunningDaemon) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{}/status", agent.pid()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

fn within(found: u64, room: u64) -> Result<String> {
    ensure!(found <= room, "{found} bytes, room for {room}");
    Ok(format!("{found} bytes"))
}

/// The attempts with an entry of their own and those that the metric counts are all attempts.
fn counted(agent: &RunningDaemon, skip: usize, attempts: usize) -> Result<String> {
    let attempts = f64::from(u32::try_from(attempts)?);
    let recorded = || -> Result<f64> {
        let records = agent.records()?;
        let denied = records.iter().skip(skip).filter(|record| record["kind"] == "denied");
        let recorded = denied.filter(|record| record["detail"]["count"].is_null()).count();
        Ok(f64::from(u32::try_from(recorded)?))
    };
    let folded = || page::sum("holdfast_forensic_folded_total", |line| line.contains("\"denied\""));
    let all = wait::until("every refusal to be counted", LIMIT, || {
        Ok((recorded()? + folded()? >= attempts).then_some(()))
    });
    let (recorded, folded) = (recorded()?, folded()?);
    all.with_context(|| format!("{recorded} recorded, {folded} counted of {attempts}"))?;
    ensure!(
        recorded > 0.0 && recorded + folded <= attempts,
        "{recorded} recorded, {folded} counted of {attempts}"
    );
    Ok(format!("{recorded} recorded, {folded} counted"))
}

/// After the daemon's stop the entries contain what the metric counted.
fn in_the_log(skip: usize, attempts: usize) -> Result<String> {
    let text = fs::read_to_string(LOG)?;
    let mut all = 0;
    let mut of_user = 0;
    for line in text.lines().skip(skip) {
        let record: Value = serde_json::from_str(line)?;
        if record["kind"] != "denied" {
            continue;
        }
        all += record["detail"]["count"].as_u64().unwrap_or(1);
        of_user += u64::from(record["detail"]["uid"] == 1000 || record["actor"]["uid"] == 1000);
    }
    ensure!(all == attempts as u64, "{all} of {attempts}");
    ensure!(of_user > 0, "no entry names the user");
    Ok(format!("{all} refusals"))
}
