//! The bench: what watching costs, in executed instructions.
//!
//! In: a bare guest with one CPU whose nanoseconds are executed instructions. Out: one measurement for each stage, which
//! `cargo xtask bench` puts into a table. One boot measures the base, Holdfast, the base again, and the other watchers last.
//! `cargo xtask test` never runs the bench, and this module compares no number with a limit.

pub mod api;
mod changes;
pub mod cluster;
mod files;
mod latency;
pub mod live;
pub mod many;
pub mod operations;
mod peers;
pub mod sealed;
mod stage;
mod usage;

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use crate::guest::agent::RunningDaemon;
use crate::guest::{Context, wait};
use crate::scenario::Scenario;
use changes::{QUIET, TURN_FILES};
use files::BenchFile;
use stage::{FILES, SETTLE, changes, detach, one, operations, prepare, writers};
use usage::{Busy, nanoseconds};

/// The scenario. No test runs it.
pub const SCENARIO: Scenario = Scenario {
    name: "bench",
    shows: "what watching costs, in executed instructions",
    limit: 1800,
    run,
    ..Scenario::USUAL
};

/// How long the work of an idle guest is measured.
const IDLE: Duration = Duration::from_mins(1);
/// Changes without a pause, to measure losses.
const BURST: usize = 100_000;

fn run(context: &mut Context) -> Result<()> {
    prepare()?;
    context.note("writing the managed files");
    files::make(FILES)?;
    wait::pause(SETTLE);
    base(context, "base-1")?;
    ours(context)?;
    detach()?;
    wait::pause(SETTLE);
    base(context, "base-2")?;
    peers::run(context)
}

/// The guest without a watcher.
fn base(context: &mut Context, stage: &str) -> Result<()> {
    operations(context, stage, &operations::ALL)?;
    idle(context, stage)?;
    changes(context, stage)
}

/// The work of an idle guest in each second.
fn idle(context: &mut Context, stage: &str) -> Result<()> {
    let busy = Busy::start()?;
    wait::pause(IDLE);
    let each = busy.nanoseconds()? / IDLE.as_secs_f64();
    one(context, &format!("{stage} idle second"), json!(each));
    Ok(())
}

/// The same with the daemon, and what only the daemon has.
fn ours(context: &mut Context) -> Result<()> {
    context.note("ours: starting");
    let (began, busy) = (Instant::now(), Busy::start()?);
    let mut agent = RunningDaemon::start(&["--standalone", "--config", files::CONFIGS])?;
    let pid = agent.pid();
    // All work, also that of the process that reads the configs.
    let (wall, all, before) = (began.elapsed(), busy.nanoseconds()?, usage::cpu_time(pid)?);
    agent.wait_for("the first verification", 0, |record| record["detail"]["until"].is_string())?;
    let verified = usage::cpu_time(pid)? - before;
    one(context, "start", json!({ "wall_ns": nanoseconds(wall), "cpu_ns": all }));
    one(context, "first verification", json!(verified));
    wait::pause(QUIET);
    memory(context, "memory at start", pid)?;
    one(context, "map memory", json!(usage::map_memory(pid)?));
    let links = usage::links(pid)?;
    operations(context, "ours", &operations::ALL)?;
    idle(context, "ours")?;
    changes(context, "ours")?;
    latency::measure(context, "", &agent)?;
    writers(context, "ours", &agent, links)?;
    burst(context, &agent)?;
    memory(context, "memory at end", pid)?;
    agent.stop().map(drop)
}

fn memory(context: &mut Context, name: &str, pid: u32) -> Result<()> {
    let data = json!({
        "resident_kib": usage::memory(pid, "VmRSS")?,
        "anonymous_kib": usage::memory(pid, "RssAnon")?,
        "peak_kib": usage::memory(pid, "VmHWM")?,
    });
    one(context, name, data);
    Ok(())
}

/// Changes as fast as one CPU makes them.
fn burst(context: &mut Context, agent: &RunningDaemon) -> Result<()> {
    context.note("ours: burst");
    let targets: Vec<BenchFile> = (0..TURN_FILES).map(BenchFile::new).collect();
    let before = usage::cpu_time(agent.pid())?;
    let start = Instant::now();
    for turn in 0..BURST {
        targets[turn % TURN_FILES].rewrite()?;
    }
    let wall = nanoseconds(start.elapsed());
    wait::pause(QUIET);
    let data =
        json!({ "changes": BURST, "wall_ns": wall, "daemon_ns": usage::cpu_time(agent.pid())? - before });
    one(context, "burst", data);
    Ok(())
}
