//! Changes of managed files: all CPU work that one change causes, in any process and in the kernel.
//!
//! Out: nanoseconds of work for a change, made in three ways. It runs in the measuring process, which starts after the watcher,
//! because the kernel audits no process that is older than the rule.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use super::files::BenchFile;
use super::usage::Busy;
use crate::guest::wait;

/// The pause between two independent changes.
pub(super) const APART: Duration = Duration::from_millis(50);
/// Longer than any work that a change causes afterwards.
pub(super) const QUIET: Duration = Duration::from_secs(2);

/// Changes of one file in a row.
const ROW: usize = 4_000;
/// Changes of several files, one after another.
const TURNS: usize = 10_000;
/// The number of these files.
pub(super) const TURN_FILES: usize = 1_000;
/// Changes with a pause after each.
const SINGLE: usize = 100;

/// Measures the changes in all three ways.
pub(super) fn measure() -> Result<BTreeMap<String, f64>> {
    let target = BenchFile::new(0);
    let targets: Vec<BenchFile> = (0..TURN_FILES).map(BenchFile::new).collect();
    // The single changes come first: frequent writers in the other two may make a watcher attach more.
    let single = all_work(SINGLE, APART, |_| target.rewrite())?;
    let turns = all_work(TURNS, Duration::ZERO, |turn| targets[turn % TURN_FILES].rewrite())?;
    let row = all_work(ROW, Duration::ZERO, |_| target.rewrite())?;
    Ok([("row", row), ("turns", turns), ("single", single)].map(|(n, v)| (n.to_owned(), v)).into())
}

/// All work for each of `count` changes with a pause after each, until the guest is idle again.
fn all_work(count: usize, pause: Duration, mut change: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    for turn in 0..10 {
        change(turn)?;
    }
    wait::pause(QUIET);
    let busy = Busy::start()?;
    for turn in 0..count {
        change(turn)?;
        if !pause.is_zero() {
            wait::pause(pause);
        }
    }
    wait::pause(QUIET);
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    Ok(busy.nanoseconds()? / count as f64)
}
