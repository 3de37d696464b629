//! Tasks on one processor interrupt each other also inside kernel programs. No change names a wrong program.
//!
//! In: files that processes replace, all on the first processor. Out: for each file one record of drift with the process, its
//! program and its ancestors. A program that is unknown is counted, and no other one is named. A kernel that preempts lazily
//! may stop a task inside a program. It skips a tracing program while another instance of it waits on the same processor.

use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::simple;
use crate::guest::agent::RunningDaemon;
use crate::guest::disks::FileSystem;
use crate::guest::{Context, page, programs, status, wait};

/// Number of processes that start others at the same time.
const WORKERS: usize = 8;
/// Files of each.
const EACH: usize = 60;
const LIMIT: Duration = Duration::from_mins(4);

/// The scenario.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    let place = Path::new("/mnt/tmpfs");
    FileSystem::Tmpfs.mount(place)?;
    let config = Path::new("/run/preempted.json");
    let files = simple::files(&place.join("preempted"), WORKERS * EACH, config)?;
    let mut agent = RunningDaemon::start(&["--standalone", "--config", "/run/preempted.json"])?;
    agent.wait_for("the first gap to close", 0, |record| record["detail"]["until"].is_string())?;
    status::wait_for("compliant", LIMIT)?;
    let before = agent.records()?.len();
    context.note("writing");
    let written = std::thread::scope(|scope| -> Result<Vec<(PathBuf, u32)>> {
        let workers: Vec<_> = files.chunks(EACH).map(|files| scope.spawn(|| write(files))).collect();
        let mut written = Vec::new();
        for worker in workers {
            written.extend(worker.join().map_err(|_| anyhow!("a worker panicked"))??);
        }
        Ok(written)
    })?;
    context.note("written");
    let drifts = wait::until("every file to be found", LIMIT, || {
        let records = agent.records()?;
        let drifts: Vec<Value> =
            records.into_iter().skip(before).filter(|record| record["kind"] == "drift").collect();
        Ok((drifts.len() >= files.len()).then_some(drifts))
    })?;
    let mut unknown = 0_u32;
    let mut wrong = Vec::new();
    for (file, pid) in &written {
        let about = drifts.iter().find(|record| simple::is_drift(record, file));
        let actor = about.map_or(&Value::Null, |record| &record["actor"]);
        if is_unknown(actor) {
            unknown += 1;
        } else if !is_named(actor, *pid) {
            wrong.push(format!("{} by a child of {pid}: {actor}", file.display()));
        }
    }
    let skipped = skipped()?;
    // The daemon counts them at each canary write.
    let lost = wait::until("the lost processes to be counted", LIMIT, || {
        let lost = page::sum("holdfast_events_lost_total", |line| line.contains("stage=\"process\""))?;
        Ok((lost >= f64::from(unknown)).then_some(lost))
    })?;
    context.measured(
        "preempted",
        format!("the kernel skipped programs {skipped} times; {lost} processes lost"),
        json!({ "skipped": skipped, "lost": lost }),
    );
    context.check("no_change_names_a_wrong_program", {
        match wrong.first() {
            None => Ok(format!("{} files", files.len())),
            Some(first) => Err(anyhow!("{} of {} are wrong, as {first}", wrong.len(), files.len())),
        }
    });
    context.check("unknown_programs_are_counted_and_rare", {
        if usize::try_from(unknown)? * 20 <= files.len() {
            Ok(format!("{unknown} unknown"))
        } else {
            Err(anyhow!("{unknown} of {} programs are unknown", files.len()))
        }
    });
    agent.stop()?;
    Ok(())
}

/// Replaces each file's content by a program that a shell starts. Gives each file with the number of its shell.
fn write(files: &[PathBuf]) -> Result<Vec<(PathBuf, u32)>> {
    // A thread of its own: children inherit the processor.
    let mut first = CpuSet::new();
    first.set(0)?;
    sched_setaffinity(Pid::from_raw(0), &first).context("stay on the first processor")?;
    let mut written = Vec::new();
    for file in files {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", "/bin/cp /proc/version \"$F\"; true"])
            .env("F", file)
            .spawn()?;
        written.push((file.clone(), shell.id()));
        ensure!(shell.wait()?.success(), "the copy to {} failed", file.display());
    }
    Ok(written)
}

/// Whether the actor is `cp`, a child of this shell.
fn is_named(actor: &Value, shell: u32) -> bool {
    let is_copy = actor["argv"][0] == "/bin/cp" && actor["argv"][1] == "/proc/version";
    is_copy && actor["pid"] != shell && actor["ancestors"][0]["pid"] == shell
}

/// Whether only the name of the actor's task is known, and not its program.
fn is_unknown(actor: &Value) -> bool {
    actor["argv"] == json!(["[cp]"]) && actor["exe"].is_null()
}

/// How many calls of all loaded programs the kernel skipped.
fn skipped() -> Result<u64> {
    let mut sum = 0;
    for program in programs::descriptors()? {
        let number = program.as_fd().as_raw_fd();
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
        let count = text.lines().find_map(|line| line.strip_prefix("recursion_misses:"));
        sum += count.context("a count in `fdinfo`")?.trim().parse::<u64>()?;
    }
    Ok(sum)
}
