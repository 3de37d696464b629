//! A flood of changes by several writers: only details are lost, and the losses are counted.
//!
//! In: a thousand managed files. Out: every file changed very often and found drifted, losses counted, and no compliant
//! verdict meanwhile. The flood starts while the daemon is stopped, with more changes than the ring holds. So some
//! records are lost for certain, however fast the daemon reads.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use sensor_common::limits::RING_BYTES;
use sensor_common::record::ChangeRecord;
use serde_json::json;

use super::simple;
use crate::guest::agent::RunningDaemon;
use crate::guest::disks::FileSystem;
use crate::guest::{Context, page, status, wait};

/// Argument of a writing process.
pub(crate) const WRITER: &str = "burst-writer";
const FILES: usize = 1000;
const WRITERS: usize = 4;
/// Changes before each merge: many times what the ring holds.
const CHANGES: usize = 100_000;
/// Changes of the longer scenario.
const MILLION: usize = 1_000_000;
const LIMIT: Duration = Duration::from_mins(6);

/// One writing process: `<directory>/<changes>`, where the last name is the number of changes. Each change opens a
/// file, writes to it and closes it. The written content is never the declared one.
pub(crate) fn write(place: &Path) -> Result<()> {
    let directory = place.parent().context("a path with a directory")?;
    let changes: usize = place.file_name().and_then(|n| n.to_str()).context("a number")?.parse()?;
    for change in 0..changes {
        let file = directory.join(format!("{:04}", change % FILES));
        let file = OpenOptions::new().write(true).open(&file)?;
        file.write_all_at(format!("{:08}", change % 100_000_000).as_bytes(), 0)?;
    }
    Ok(())
}

/// The scenario.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    burst(context, CHANGES)
}

/// The same with a million changes.
pub(super) fn million(context: &mut Context) -> Result<()> {
    burst(context, MILLION)
}

fn burst(context: &mut Context, changes: usize) -> Result<()> {
    let place = Path::new("/mnt/tmpfs");
    FileSystem::Tmpfs.mount(place)?;
    let directory = place.join("burst");
    let config = Path::new("/run/burst.json");
    simple::files(&directory, FILES, config)?;
    let mut agent = RunningDaemon::start(&["--standalone", "--config", "/run/burst.json"])?;
    agent.wait_for("the first gap to close", 0, |record| record["detail"]["until"].is_string())?;
    status::wait_for("compliant", LIMIT)?;

    let before = agent.records()?.len();
    agent.signal(Signal::SIGSTOP)?;
    let stopped = flood_the_stopped(context, &directory);
    agent.signal(Signal::SIGCONT)?;
    context.check("more_than_the_ring_holds", stopped);
    // The daemon writes this record after it has read the ring.
    agent.wait_for("the first drift", before, |record| record["kind"] == "drift")?;

    let start = Instant::now();
    let mut writers: Vec<Child> =
        (0..WRITERS).map(|_| writer(&directory, changes / WRITERS)).collect::<Result<_>>()?;
    let mut seen = Vec::new();
    wait::until("the writers to end", LIMIT, || {
        let verdict = status::verdict();
        if seen.last() != Some(&verdict) && !verdict.is_empty() {
            seen.push(verdict);
        }
        for writer in &mut writers {
            if writer.try_wait()?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })?;
    for writer in &mut writers {
        ensure!(writer.wait()?.success(), "a writer failed");
    }
    let wrote = start.elapsed();
    context.note("written");
    let found = wait::until("every file to be found", LIMIT, || {
        let verdict = status::verdict();
        if seen.last() != Some(&verdict) && !verdict.is_empty() {
            seen.push(verdict);
        }
        let drifted = status::drifted().unwrap_or_default().len();
        Ok((drifted == FILES).then_some(drifted))
    });
    let after = start.elapsed().saturating_sub(wrote);
    context.check(
        "every_drift_found",
        found
            .map(|n| format!("{n} of {FILES}"))
            .with_context(|| format!("{:?} drifted", status::drifted().map(|d| d.len()))),
    );
    context.check("never_compliant", never_compliant(&seen));
    context.check("losses_counted", losses());
    context.measured(
        "burst",
        format!(
            "{changes} changes in {:.1} s, found {:.1} s later",
            wrote.as_secs_f64(),
            after.as_secs_f64()
        ),
        json!({ "changes": changes, "seconds": wrote.as_secs_f64(), "after": after.as_secs_f64() }),
    );
    agent.stop()?;
    Ok(())
}

fn writer(directory: &Path, changes: usize) -> Result<Child> {
    Command::new("/proc/self/exe")
        .args(["act", WRITER])
        .arg(directory.join(changes.to_string()))
        .spawn()
        .context("start a writer")
}

/// While the daemon is stopped, one process after the other changes every file. Each process has a record for each
/// file, because another process changed the file before.
fn flood_the_stopped(context: &mut Context, directory: &Path) -> Result<String> {
    let room = RING_BYTES as usize / size_of::<ChangeRecord>();
    let processes = room / FILES + 2;
    for _ in 0..processes {
        ensure!(writer(directory, FILES)?.wait()?.success(), "a writer failed");
        context.note("writing while the daemon is stopped");
    }
    Ok(format!("{} changes, room for {room}", processes * FILES))
}

fn never_compliant(seen: &[String]) -> Result<String> {
    let first = seen.iter().position(|verdict| verdict == "drifted").context("never drifted")?;
    ensure!(!seen[first..].iter().any(|verdict| verdict == "compliant"), "verdicts were {seen:?}");
    Ok(seen.join(", "))
}

/// The metric and the status both count the ring's losses, and agree.
fn losses() -> Result<String> {
    let page = page::metrics()?;
    let counted: u64 = page
        .lines()
        .filter(|line| line.starts_with("holdfast_events_lost_total") && line.contains("stage=\"ring\""))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum();
    let lost = status::read()?["counters"]["records_lost"].as_u64().context("no counter")?;
    ensure!(counted == lost, "the metric says {counted}, the status {lost}");
    ensure!(lost > 0, "nothing was lost, so nothing is shown");
    Ok(format!("{lost} records lost"))
}
