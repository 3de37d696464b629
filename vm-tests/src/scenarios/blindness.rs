//! Ways to blind the sensor. Each ends in a gap or in an adoption of the pinned programs. None makes the node compliant
//! by mistake, and none ends in a panic.
//!
//! In: a node with a few managed files. Out: one check for each way.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{HashMap, Map, MapData};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use sensor_common::map::{InodeKey, Managed};
use serde_json::Value;
use zerocopy::FromBytes as _;

use super::restarts;
use super::simple::{self, is_drift};
use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::{Context, page, shell, status, wait};

const DIRECTORY: &str = "/etc/blindness";
const CONFIG: &str = "/run/blindness.json";
const FTRACE: &str = "/proc/sys/kernel/ftrace_enabled";
const PINS: &str = "/sys/fs/bpf/holdfast";
const SECURITY: &str = "/sys/kernel/security";
const LIMIT: Duration = Duration::from_mins(1);
/// More records than the ring holds.
const FLOOD: usize = 3000;

/// A node whose daemon writes the canary often and verifies rarely.
struct CanaryNode {
    files: Vec<PathBuf>,
    agent: RunningDaemon,
}

impl CanaryNode {
    fn start(more: &[&str]) -> Result<Self> {
        let files = simple::files(Path::new(DIRECTORY), 8, Path::new(CONFIG))?;
        let node = Self { files, agent: agent(more)? };
        compliant()?;
        Ok(node)
    }

    /// Restores every file and waits until the node is compliant.
    fn restore(&self) -> Result<()> {
        for file in &self.files {
            fs::write(file, simple::CONTENT)?;
        }
        compliant()
    }
}

/// Waits until the node is compliant.
fn compliant() -> Result<()> {
    status::wait_for("compliant", LIMIT).map(drop)
}

/// Starts the daemon with more arguments, and waits for its start record.
fn agent(more: &[&str]) -> Result<RunningDaemon> {
    let mut arguments = vec!["--standalone", "--config", CONFIG, "--canary-every", "1"];
    arguments.extend(more);
    RunningDaemon::start(&arguments)
}

/// All checks that need no special boot.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    let mut node = CanaryNode::start(&["--verify-every", "3"])?;
    context.check("anonymous_mmap", anonymous(&mut node));
    match ftrace(&mut node) {
        Ok(Some(printed)) => context.check("ftrace_enabled", Ok(printed)),
        Ok(None) => {
            context
                .skip("ftrace_enabled", "this kernel refuses to switch it off while programs are attached");
        }
        Err(error) => context.check("ftrace_enabled", Err(error)),
    }
    shell(&format!("echo 1 > {FTRACE}"))?;
    node.agent.stop()?;

    // From here on the daemon verifies only at its start and after events and gaps.
    let mut node = CanaryNode::start(&["--verify-every", "3600"])?;
    context.check("one_writer_fills_no_ring", one_writer(&mut node));
    context.check("full_ring", full_ring(&mut node));
    let (files, agent) = (node.files, node.agent);
    let result = killed(&files, agent);
    let agent = match result {
        Ok((printed, agent)) => {
            context.check("killed", Ok(printed));
            agent
        }
        Err(error) => {
            context.check("killed", Err(error));
            self::agent(&[])?
        }
    };
    context.check("pins_removed", unpinned(&files, agent));
    let mut node = CanaryNode::start(&["--verify-every", "3600"])?;
    let (printed, agent) = restarted(node.agent, "lsm", &node.files, |_| Ok(()))?;
    context.check("restarts", Ok(printed));
    node.agent = agent;
    context.check("removed_map_entry", removed_entry(&mut node));
    context.check("second_daemon", second(&mut node));
    context.check("ftrace_enabled_held_open", switched_off_and_on(&mut node, Path::new(FTRACE)));
    context.check("ftrace_enabled_elsewhere", switched_by_another_procfs(&mut node));
    shell(&format!("echo 1 > {FTRACE}"))?;
    let CanaryNode { files, agent } = node;
    let before = agent.records()?.len();
    agent.stop()?;
    match started_blind(files, before) {
        Ok(Some(printed)) => context.check("ftrace_disabled_at_start", Ok(printed)),
        Ok(None) => context.skip("ftrace_disabled_at_start", "this kernel refuses to switch it off"),
        Err(error) => context.check("ftrace_disabled_at_start", Err(error)),
    }
    shell(&format!("echo 1 > {FTRACE}"))?;
    Ok(())
}

/// Starts the daemon while nothing is attached and the programs are switched off. It never reports the node as
/// compliant, and detects changes as before once they are on again. `None` if this kernel refuses to switch them off.
fn started_blind(files: Vec<PathBuf>, before: usize) -> Result<Option<String>> {
    let backend = |agent: &RunningDaemon| -> Result<String> {
        let records = agent.records()?;
        let start = records.iter().rfind(|record| record["kind"] == "start").context("no start record")?;
        Ok(start["detail"]["backend"].to_string())
    };
    remove_pins(Path::new(PINS))?;
    let off = OpenOptions::new().write(true).open(FTRACE)?.write_all(b"0\n");
    if off.is_err() || fs::read_to_string(FTRACE)?.trim() != "0" {
        return Ok(None);
    }
    change(&files[1])?;
    let mut node = CanaryNode { files, agent: agent(&["--verify-every", "3"])? };
    ensure!(!backend(&node.agent)?.contains("fanotify"), "it gave the programs up");
    let file = node.files[1].clone();
    node.agent.wait_for("the gap", before, |record| record["detail"]["reason"] == "ftrace-disabled")?;
    detects_again(&mut node, &file, before, "ftrace-disabled")?;
    let backend = backend(&node.agent)?;
    node.agent.stop()?;
    Ok(Some(format!("gap, never compliant, and seeing through {backend} since")))
}

/// Booted without `bpf` among the security modules.
pub(super) fn without_lsm(context: &mut Context) -> Result<()> {
    let list = fs::read_to_string("/sys/kernel/security/lsm")?;
    ensure!(!list.trim().split(',').any(|name| name == "bpf"), "bpf is active: {list}");
    let mut node = CanaryNode::start(&["--verify-every", "3600"])?;
    context.check("backend", backend(&node));
    context.check("drift", drift(&mut node));
    context.check("anonymous_mmap", anonymous(&mut node));
    let (printed, agent) = restarted(node.agent, "fentry", &node.files, |round| {
        // Without the list of security modules the daemon must try, while the programs of the last daemon still run.
        if round == restarts::LAST {
            umount2(SECURITY, MntFlags::MNT_DETACH)?;
        }
        Ok(())
    })?;
    context.check("restarts", Ok(printed));
    agent.stop()?;
    Ok(())
}

/// Restarts the daemon three times, after `prepare`.
fn restarted(
    agent: RunningDaemon,
    backend: &str,
    files: &[PathBuf],
    prepare: impl Fn(usize) -> Result<()>,
) -> Result<(String, RunningDaemon)> {
    let start = |round| {
        prepare(round)?;
        self::agent(&["--verify-every", "3600"])
    };
    restarts::three_times(agent, backend, files, start, |agent, file| drift_of(agent, file).map(drop))
}

fn backend(node: &CanaryNode) -> Result<String> {
    let records = node.agent.records()?;
    let start = records.iter().find(|record| record["kind"] == "start").context("no start record")?;
    ensure!(start["detail"]["backend"] == "fentry", "{start}");
    Ok("fentry".to_owned())
}

/// Changes a file by a shell; returns the change's record.
fn drift_of(agent: &mut RunningDaemon, file: &Path) -> Result<Value> {
    let skip = agent.records()?.len();
    let pid = change(file)?;
    let record = agent.wait_for("drift", skip, |record| is_drift(record, file))?;
    ensure!(record["actor"]["pid"] == pid, "{pid} did it, but: {record}");
    Ok(record)
}

/// Changes a file by a shell that has then ended; returns its process id.
fn change(file: &Path) -> Result<u32> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", "echo drift >> \"$0\""])
        .arg(file)
        .stdin(Stdio::null())
        .spawn()?;
    let pid = child.id();
    ensure!(child.wait()?.success(), "the change failed");
    Ok(pid)
}

fn drift(node: &mut CanaryNode) -> Result<String> {
    let file = node.files[0].clone();
    let record = drift_of(&mut node.agent, &file)?;
    node.restore()?;
    Ok(record["operation"].to_string())
}

/// For anonymous memory some hooks get a null pointer. With and without the hooks on reads and writes.
fn anonymous(node: &mut CanaryNode) -> Result<String> {
    let map = || -> Result<()> {
        for pages in 1..200 {
            let region = vm_memory::MmapRegion::<()>::new(pages * 4096).context("map")?;
            drop(region);
        }
        // The kernel maps a thread's stack, and protects its guard page.
        std::thread::spawn(|| ()).join().map_err(|_| anyhow::anyhow!("a thread failed"))
    };
    map()?;
    let file = OpenOptions::new().append(true).open(&node.files[7])?;
    wait::pause(Duration::from_secs(2));
    map()?;
    drop(file);
    drift(node)
}

/// Holds the switch of the programs open. Meanwhile, and within one interval of the canary, it switches them off,
/// changes a file and switches them on again. No program saw the change, so the daemon must not have reported the file
/// as compliant.
fn switched_off_and_on(node: &mut CanaryNode, path: &Path) -> Result<String> {
    let skip = node.agent.records()?.len();
    let switch = OpenOptions::new().write(true).open(path)?;
    node.agent.wait_for("the gap", skip, |record| {
        record["kind"] == "gap" && record["detail"]["reason"] == "ftrace-opened"
    })?;
    node.agent.wait_for("who opened it", skip, |record| {
        record["kind"] == "tamper" && record["path"] == FTRACE && record["actor"]["pid"] == std::process::id()
    })?;
    // The gap lasts as long as the tunable is open. Writes of the canary do not end it.
    let beat = || page::sum("holdfast_canary_seen_timestamp", |_| true);
    let first = beat()?;
    wait::until("three beats", LIMIT, || Ok((beat()? >= first + 3.0).then_some(())))?;
    ensure!(status::verdict() == "unknown", "it can be switched off and is {}", status::verdict());
    let file = node.files[6].clone();
    // A tunable accepts only what is written at offset 0.
    let off = switch.write_all_at(b"0\n", 0);
    change(&file)?;
    let on = switch.write_all_at(b"1\n", 0);
    drop(switch);
    node.agent.wait_for("drift that no hook saw", skip, |record| is_drift(record, &file))?;
    node.agent.wait_for("the gap to close", skip, |record| {
        record["detail"]["reason"] == "ftrace-opened" && record["detail"]["until"].is_string()
    })?;
    node.restore()?;
    let switched = if off.is_ok() && on.is_ok() { "switched off and on" } else { "this kernel refuses it" };
    Ok(format!("gap while it was open ({switched}), drift found"))
}

/// The same through another mount of procfs, whose inode for the tunable is another one.
fn switched_by_another_procfs(node: &mut CanaryNode) -> Result<String> {
    const ELSEWHERE: &str = "/run/procfs";
    fs::create_dir_all(ELSEWHERE)?;
    shell(&format!("mount -t proc proc {ELSEWHERE}"))?;
    let printed = switched_off_and_on(node, &Path::new(ELSEWHERE).join("sys/kernel/ftrace_enabled"));
    shell(&format!("umount {ELSEWHERE}"))?;
    printed
}

/// A second daemon ends at once and names the first one. The first one keeps detecting.
fn second(node: &mut CanaryNode) -> Result<String> {
    let pid = node.agent.pid();
    for more in [&[][..], &["--listen", "none", "--state", "/run/other", "--run", "/run/other"]] {
        let arguments = ["agent", "--standalone", "--config", CONFIG];
        let output = Command::new(HOLDFAST).args(arguments).args(more).output()?;
        let printed = String::from_utf8_lossy(&output.stderr);
        ensure!(
            !output.status.success() && printed.contains(&format!("process {pid}")),
            "{more:?}: {printed}"
        );
    }
    drift(node)
}

/// Switches the programs off without the daemon, if the kernel permits it: otherwise `None`.
fn ftrace(node: &mut CanaryNode) -> Result<Option<String>> {
    let skip = node.agent.records()?.len();
    let off = OpenOptions::new().write(true).open(FTRACE)?.write_all(b"0\n");
    let is_off = fs::read_to_string(FTRACE)?.trim() == "0";
    if off.is_err() || !is_off {
        // Nothing was switched off, so no event may have been lost.
        drift(node)?;
        return Ok(None);
    }
    let gap = node.agent.wait_for("a gap", skip, |record| {
        record["kind"] == "gap" && record["detail"]["reason"] == "ftrace-opened"
    })?;
    ensure!(gap["verdict"] == "unknown", "{gap}");
    ensure!(status::verdict() == "unknown", "blind and {}", status::verdict());
    let file = node.files[1].clone();
    change(&file)?;
    detects_again(node, &file, skip, "ftrace-opened")?;
    Ok(Some("gap, drift found, never compliant, and seeing again".to_owned()))
}

/// While the programs are off, the daemon still finds a changed file. When the file is restored, it is still not
/// compliant. Then the programs are switched on, the gap closes, and a change has its actor.
fn detects_again(node: &mut CanaryNode, file: &Path, skip: usize, reason: &str) -> Result<()> {
    node.agent.wait_for("drift found blindly", skip, |record| is_drift(record, file))?;
    fs::write(file, simple::CONTENT)?;
    status::wait_for("unknown", LIMIT)?;
    for _ in 0..20 {
        ensure!(status::verdict() != "compliant", "compliant while blind");
        wait::pause(Duration::from_millis(200));
    }
    fs::write(FTRACE, "1\n")?;
    node.agent.wait_for("the gap to close", skip, |record| {
        record["detail"]["reason"] == reason && record["detail"]["until"].is_string()
    })?;
    compliant()?;
    drift(node).map(drop)
}

/// If one process writes to a file again and again before the next verification, the programs report each of its
/// operations once.
fn one_writer(node: &mut CanaryNode) -> Result<String> {
    const OPERATIONS: &[&str] = &["open-write", "set-attributes", "release"];
    let file = node.files[0].clone();
    let before = (events(OPERATIONS)?, lost()?, node.agent.records()?.len());
    node.agent.signal(Signal::SIGSTOP)?;
    for _ in 0..FLOOD {
        fs::write(&file, "drift\n")?;
    }
    node.agent.signal(Signal::SIGCONT)?;
    let record = node.agent.wait_for("drift", before.2, |record| is_drift(record, &file))?;
    ensure!(record["actor"]["pid"] == std::process::id(), "{record}");
    let events = events(OPERATIONS)? - before.0;
    // One record each, and perhaps those of the last restore.
    ensure!((1.0..=6.0).contains(&events), "{events} records of {FLOOD} changes");
    ensure!(lost()? <= before.1, "records were lost");
    node.restore()?;
    executes_another(node)?;
    Ok(format!("{events} records of {FLOOD} changes"))
}

/// The programs report the changes of a process again after it has executed another program, with that program.
fn executes_another(node: &mut CanaryNode) -> Result<()> {
    let file = node.files[1].clone();
    let skip = node.agent.records()?.len();
    shell("cp /bin/busybox /run/tee")?;
    node.agent.signal(Signal::SIGSTOP)?;
    let wrote = shell(&format!("echo drift > {0}; exec /run/tee -a {0} < /proc/version", file.display()));
    node.agent.signal(Signal::SIGCONT)?;
    wrote?;
    let record = node.agent.wait_for("drift", skip, |record| is_drift(record, &file))?;
    ensure!(record["actor"]["exe"] == "/run/tee", "{record}");
    node.restore()
}

/// Number of records of these operations.
fn events(operations: &[&str]) -> Result<f64> {
    page::sum("holdfast_events_total", |line| {
        operations.iter().any(|operation| line.contains(&format!("\"{operation}\"")))
    })
}

/// Number of records that found no room.
fn lost() -> Result<f64> {
    page::sum("holdfast_events_lost_total", |line| line.contains("stage=\"ring\""))
}

/// Stops the daemon, fills the ring, then changes every file.
fn full_ring(node: &mut CanaryNode) -> Result<String> {
    let skip = node.agent.records()?.len();
    node.agent.signal(Signal::SIGSTOP)?;
    for n in 0..FLOOD {
        let noise = Path::new(DIRECTORY).join(format!("noise-{n}"));
        fs::write(&noise, "")?;
        fs::remove_file(&noise)?;
    }
    for file in &node.files {
        change(file)?;
    }
    node.agent.signal(Signal::SIGCONT)?;
    for file in node.files.clone() {
        node.agent.wait_for("drift after the flood", skip, |record| is_drift(record, &file))?;
    }
    let lost = lost()?;
    ensure!(lost > 0.0, "nothing was lost, so nothing is shown");
    node.restore()?;
    Ok(format!("{lost} records lost"))
}

/// Kills the daemon, changes a file, starts it again: the daemon reports the change with its actor.
fn killed(files: &[PathBuf], agent: RunningDaemon) -> Result<(String, RunningDaemon)> {
    agent.kill()?;
    let pid = change(&files[2])?;
    // More records than the ring holds: the new daemon's canary finds no room before the daemon has read the ring.
    for n in 0..FLOOD {
        let noise = Path::new(DIRECTORY).join(format!("noise-{n}"));
        fs::write(&noise, "")?;
        fs::remove_file(&noise)?;
    }
    change(&files[3])?;
    let mut agent = started_again(true)?;
    let record = agent.wait_for("drift of when it was dead", 0, |record| {
        is_drift(record, &files[2]) && record["actor"]["pid"] == pid
    })?;
    ensure!(record["operation"] != "sweep", "{record}");
    agent.wait_for("drift whose record found no room", 0, |record| is_drift(record, &files[3]))?;
    for file in &files[2..4] {
        fs::write(file, simple::CONTENT)?;
    }
    compliant()?;

    agent.stop()?;
    let pid = change(&files[3])?;
    let mut agent = started_again(true)?;
    agent.wait_for("drift of when it was stopped", 0, |record| {
        is_drift(record, &files[3]) && record["actor"]["pid"] == pid
    })?;
    fs::write(&files[3], simple::CONTENT)?;
    compliant()?;
    Ok(("killed and stopped: adopted, both changes named".to_owned(), agent))
}

/// Starts the daemon. Its newest start record must say whether it adopted the pinned programs.
fn started_again(adopted: bool) -> Result<RunningDaemon> {
    let agent = agent(&["--verify-every", "3600"])?;
    let records = agent.records()?;
    let mut starts = records.iter().filter(|record| record["kind"] == "start");
    let first = starts.next().context("no start record")?;
    let start = starts.next_back().context("only one start record")?;
    ensure!(start["detail"]["adopted"] == adopted, "{start}");
    ensure!(start["detail"]["backend"] == first["detail"]["backend"], "another backend than before: {start}");
    Ok(agent)
}

/// Stops the daemon, removes its pins, changes a file, starts it again: a gap opens, and the daemon finds the change.
fn unpinned(files: &[PathBuf], agent: RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    agent.stop()?;
    remove_pins(Path::new(PINS))?;
    change(&files[4])?;
    let mut agent = started_again(false)?;
    agent.wait_for("the gap", before, |record| record["detail"]["reason"] == "sensor-start")?;
    agent.wait_for("drift of when nothing was attached", before, |record| is_drift(record, &files[4]))?;
    agent.wait_for("the gap to close", before, |record| {
        record["detail"]["reason"] == "sensor-start" && record["detail"]["until"].is_string()
    })?;
    ensure!(status::verdict() == "drifted", "the verdict is {}", status::verdict());
    fs::write(&files[4], simple::CONTENT)?;
    compliant()?;
    agent.stop()?;
    Ok("gap, and the change found".to_owned())
}

/// Removes a file's entry from the programs' map without the daemon, then changes the file: no hook reports it. After
/// the next canary the daemon finds the change all the same, and from then on the programs report changes of the file
/// again.
fn removed_entry(node: &mut CanaryNode) -> Result<String> {
    let skip = node.agent.records()?.len();
    let file = node.files[5].clone();
    remove_entry(fs::metadata(&file)?.ino())?;
    change(&file)?;
    node.agent.wait_for("the gap", skip, |record| {
        record["detail"]["reason"] == "entry-removed" && record["path"].as_str() == file.to_str()
    })?;
    node.agent.wait_for("drift that no hook saw", skip, |record| is_drift(record, &file))?;
    node.restore()?;
    let record = drift_of(&mut node.agent, &file)?;
    node.restore()?;
    Ok(format!("gap, drift found, and the next change seen: {}", record["operation"]))
}

/// Removes every entry of this inode number from the map of managed inodes.
fn remove_entry(ino: u64) -> Result<()> {
    const KEY: usize = size_of::<InodeKey>();
    let maps = fs::read_dir(PINS)?.filter_map(|entry| Some(entry.ok()?.path().join("MANAGED")));
    let pin = maps.into_iter().find(|path| path.exists()).context("no map of managed inodes is pinned")?;
    let map = Map::from_map_data(MapData::from_pin(&pin)?)?;
    let mut managed: HashMap<MapData, [u8; KEY], [u8; size_of::<Managed>()]> = map.try_into()?;
    let keys: Vec<[u8; KEY]> = managed.keys().collect::<Result<_, _>>()?;
    let is_of_file = |key: &&[u8; KEY]| InodeKey::read_from_bytes(*key).is_ok_and(|key| key.ino == ino);
    let of_file: Vec<&[u8; KEY]> = keys.iter().filter(is_of_file).collect();
    ensure!(of_file.len() == 1, "{} entries of inode {ino}", of_file.len());
    Ok(managed.remove(of_file[0])?)
}

fn remove_pins(directory: &Path) -> Result<()> {
    ensure!(fs::read_dir(directory)?.next().is_some(), "nothing is pinned below {}", directory.display());
    fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))
}
