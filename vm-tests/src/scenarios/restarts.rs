//! A restarted daemon detects every change from its first moment on, with the same backend as before.
//!
//! In: a running daemon, a function that starts it, and a function that edits a file so that the backend can name the
//! actor. Out: the daemon after three restarts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::simple;
use crate::guest::agent::RunningDaemon;
use crate::guest::{status, wait};

/// Seconds after each start at which a file is edited. Programs of an earlier daemon may still run at the first time,
/// and are removed at the last. Only one restart waits for all of them.
const EDITS: [&[u64]; 3] = [&[0], &[0, 8], &[0, 8, 20]];

/// The number of the last restart.
pub(super) const LAST: usize = EDITS.len() - 1;

const LIMIT: Duration = Duration::from_mins(1);

/// Kills the daemon, stops it and kills it again. After each start it edits files, which must be compliant before. The
/// daemon must report each edit; `edit` returns an error otherwise.
pub(super) fn three_times(
    mut agent: RunningDaemon,
    backend: &str,
    files: &[PathBuf],
    start: impl Fn(usize) -> Result<RunningDaemon>,
    edit: impl Fn(&mut RunningDaemon, &Path) -> Result<()>,
) -> Result<(String, RunningDaemon)> {
    for (round, edits) in EDITS.into_iter().enumerate() {
        let before = agent.records()?.len();
        if round == 1 {
            agent.stop()?;
        } else {
            agent.kill()?;
        }
        agent = start(round)?;
        let started = Instant::now();
        for (after, file) in edits.iter().zip(files) {
            wait::pause(Duration::from_secs(*after).saturating_sub(started.elapsed()));
            edit(&mut agent, file).with_context(|| format!("{after} s after restart {round}"))?;
        }
        let records = agent.records()?;
        let since = || records.iter().skip(before);
        let start = since().find(|record| record["kind"] == "start").context("no start record")?;
        ensure!(start["detail"]["backend"] == backend, "another backend than before: {start}");
        let blind = since().find(|record| {
            record["kind"] == "gap"
                && record["detail"]["reason"].as_str().is_some_and(|it| it.contains("canary"))
        });
        ensure!(blind.is_none(), "blind after restart {round}: {blind:?}");
        for file in &files[..edits.len()] {
            fs::write(file, simple::CONTENT)?;
        }
        status::wait_for("compliant", LIMIT)?;
    }
    Ok((format!("{backend} each time, every edit reported"), agent))
}
