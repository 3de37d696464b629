//! CPU time and memory of the guest and the daemon.
//!
//! In: procfs. Out: nanoseconds in which the CPU was not idle, CPU time and memory of a process, memory of its kernel maps. With
//! one CPU and counted instructions, "not idle" is all work of the guest.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Counts the work of the whole guest since its creation.
#[derive(Debug)]
pub(super) struct Busy {
    start: Instant,
    idle: u64,
}

impl Busy {
    /// Starts to count.
    pub(super) fn start() -> Result<Self> {
        Ok(Self { idle: idle()?, start: Instant::now() })
    }

    /// Nanoseconds since the start in which the CPU was not idle.
    pub(super) fn nanoseconds(&self) -> Result<f64> {
        let wall = self.start.elapsed();
        let idle = idle()?.saturating_sub(self.idle);
        #[expect(clippy::cast_precision_loss, reason = "a run takes seconds, far from 2^52 nanoseconds")]
        Ok(wall.as_secs_f64() * 1e9 - idle as f64)
    }
}

/// Nanoseconds for which the only CPU was idle since boot.
fn idle() -> Result<u64> {
    let text = fs::read_to_string("/proc/timer_list").context("cannot read /proc/timer_list")?;
    let sum = |key: &str| -> u64 {
        let values = text.lines().filter_map(|line| line.trim().strip_prefix(key));
        values.filter_map(|rest| rest.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
    };
    Ok(sum(".idle_sleeptime") + sum(".iowait_sleeptime"))
}

/// CPU time of a process in nanoseconds, all threads.
pub(super) fn cpu_time(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        let first = text.split_whitespace().next().context("an empty schedstat")?;
        sum += first.parse::<u64>()?;
    }
    Ok(sum)
}

/// A field of `/proc/PID/status` in KiB.
pub(super) fn memory(pid: u32, field: &str) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    Ok(number.with_context(|| format!("no {field} in the status of process {pid}"))?.parse()?)
}

/// Links of kernel programs that a process holds open.
pub(super) fn links(pid: u32) -> Result<usize> {
    Ok(descriptors(pid, "bpf_link")?.len())
}

/// Programs that are loaded into the kernel, by any process.
pub(super) fn programs() -> Result<usize> {
    Ok(crate::guest::programs::loaded()?.len())
}

/// The kernel's figure for the memory of the maps that a process holds open.
pub(super) fn map_memory(pid: u32) -> Result<u64> {
    let mut seen = BTreeSet::new();
    let mut sum = 0;
    for number in descriptors(pid, "bpf-map")? {
        let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"))?;
        let field = |key: &str| -> Option<u64> {
            text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
        };
        if field("map_id:").is_some_and(|id| seen.insert(id)) {
            sum += field("memlock:").unwrap_or(0);
        }
    }
    Ok(sum)
}

/// Descriptors of a process whose anonymous inode has `kind` in its name.
fn descriptors(pid: u32, kind: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(PathBuf::from(format!("/proc/{pid}/fd")))? {
        let entry = entry?;
        if fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().contains(kind)) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(found)
}

/// Nanoseconds of a stretch of time.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
