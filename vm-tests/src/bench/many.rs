//! Opens of unmanaged files while 100,000 inodes are enrolled.
//!
//! In: a bare guest with one CPU whose nanoseconds are executed instructions. Out: the opens without and with the daemon, and the
//! memory of its maps. It has its own boot and base, because so many names make each path look-up of the kernel longer.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::changes::QUIET;
use super::stage::{LOG, SETTLE, one, operations, prepare};
use super::{files, usage};
use crate::guest::agent::RunningDaemon;
use crate::guest::{Context, wait};
use crate::scenario::Scenario;

/// The scenario. No test runs it.
pub const SCENARIO: Scenario = Scenario {
    name: "bench-many",
    shows: "what opens cost while 100,000 inodes are enrolled, in executed instructions",
    limit: 1800,
    run,
    ..Scenario::USUAL
};

/// Managed files.
const FILES: usize = 100_000;
/// The operations that are measured.
const OPENS: [&str; 2] = ["open-read", "open-write"];
/// The interval at which the guest reports that it still waits. The host treats a silent guest as stuck, and a second of the guest's
/// time may take several of the host's.
const APART: Duration = Duration::from_secs(2);
/// How long the guest waits for the daemon, in the guest's time.
const LIMIT: Duration = Duration::from_mins(10);

fn run(context: &mut Context) -> Result<()> {
    prepare()?;
    context.note("writing the managed files");
    files::make_empty(FILES)?;
    wait::pause(SETTLE);
    operations(context, "many, base", &OPENS)?;
    context.note("starting");
    let agent =
        RunningDaemon::spawn(&["--standalone", "--config", files::CONFIGS, "--verify-every", "36000"])?;
    verified(context, &agent, FILES)?;
    wait::pause(QUIET);
    let data = json!({ "bytes": usage::map_memory(agent.pid())?, "enrolled": FILES });
    one(context, "many, maps", data);
    operations(context, "many, ours", &OPENS)?;
    agent.stop().map(drop)
}

/// Waits for the end of the first verification of at least `files` files, and reports that it waits.
pub(super) fn verified(context: &mut Context, agent: &RunningDaemon, files: usize) -> Result<()> {
    let is_end = |record: &Value| record["kind"] == "gap" && record["detail"]["until"].is_string();
    for _ in 0..LIMIT.as_secs() / APART.as_secs() {
        wait::pause(APART);
        let records = agent.records()?;
        if let Some(start) = records.iter().find(|record| record["kind"] == "start")
            && records.iter().any(is_end)
        {
            let drifted = records.iter().filter(|record| record["kind"] == "drift").count();
            ensure!(drifted == 0, "{drifted} files differ");
            let things = start["detail"]["things"].as_u64().context("the start record has no `things`")?;
            ensure!(things >= files as u64, "the daemon knows of {things} things only");
            return Ok(());
        }
        context.note(format!("starting: {} records in {LOG}", records.len()));
    }
    bail!("the first verification did not end within {} s", LIMIT.as_secs())
}
