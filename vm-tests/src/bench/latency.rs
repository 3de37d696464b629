//! The time from a write to the verdict's record in the forensic log.
//!
//! In: a running daemon, with or without a reporter beside it. Out: the times. It compares no number with a limit.

use std::time::Instant;

use anyhow::{Result, ensure};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use serde_json::{Value, json};

use super::changes::{APART, QUIET};
use super::files::BenchFile;
use super::stage::{LOG, one};
use super::usage::nanoseconds;
use crate::guest::agent::RunningDaemon;
use crate::guest::{Context, wait};

/// Changes whose time is measured.
const TIMED: usize = 200;

/// Measures the time from before a write to the verdict's record in the log, for drift and recovery in turns. The names of the measurements begin
/// with `stage`.
pub(super) fn measure(context: &mut Context, stage: &str, agent: &RunningDaemon) -> Result<()> {
    context.note(format!("{stage}from write to verdict"));
    let inotify = Inotify::init(InitFlags::empty())?;
    inotify.add_watch(LOG, AddWatchFlags::IN_MODIFY)?;
    let before = agent.records()?.len();
    let mut times: [Vec<u64>; 2] = [Vec::new(), Vec::new()];
    for turn in 0..TIMED {
        let target = BenchFile::new(turn / 2);
        wait::pause(APART);
        let start = Instant::now();
        if turn % 2 == 0 {
            target.spoil()?;
        } else {
            target.rewrite()?;
        }
        inotify.read_events()?;
        times[turn % 2].push(nanoseconds(start.elapsed()));
    }
    wait::pause(QUIET);
    let kinds: Vec<Value> =
        agent.records()?.drain(before..).map(|mut record| record["kind"].take()).collect();
    for (kind, times) in ["drift", "recovered"].into_iter().zip(&mut times) {
        let found = kinds.iter().filter(|found| **found == kind).count();
        ensure!(found == TIMED / 2, "{found} records of the kind {kind} for {} changes", TIMED / 2);
        times.sort_unstable();
        let data = json!({ "median_ns": times[times.len() / 2], "p99_ns": times[times.len() * 99 / 100] });
        one(context, &format!("{stage}{kind} latency"), data);
    }
    Ok(())
}
