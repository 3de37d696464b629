//! Waiting for conditions that other processes fulfil.
//!
//! In: a condition and a limit. Out: the value that the condition gave, or an error that names the condition. Only this module tests
//! again after a pause, and scenarios use it for every wait. A long wait prints lines, because the host ends a guest that prints nothing.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::run;

/// The shortest pause between two tests.
const PAUSE: Duration = Duration::from_millis(20);
/// The pause is this many times as long as a test took. A test that starts a process, or asks an API server, would otherwise take the processor
/// from what it waits for.
const REST: u32 = 4;
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);

/// A limit is for a host that has nothing else to do. One that emulates three guests on two cores, and builds a program beside them,
/// was seen to need this many times as long.
const PATIENCE: u32 = 3;
/// The units of the scenarios themselves, which are still starting while a scenario runs.
const SCENARIO_UNITS: [&str; 2] = ["holdfast-scenario", "holdfast-guest"];
/// The time between two lines of a long wait.
const SAY_EVERY: Duration = Duration::from_secs(30);

/// Calls `look` until it gives a value, for [`PATIENCE`] times `limit` at most. `what` completes "gave up waiting for ...".
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let limit = limit * PATIENCE;
    let start = Instant::now();
    let mut said = start;
    loop {
        let looked = Instant::now();
        if let Some(found) = look()? {
            return Ok(found);
        }
        let rest = (looked.elapsed() * REST).clamp(PAUSE, LONGEST);
        if start.elapsed() > limit {
            bail!("gave up waiting for {what} after {} s", limit.as_secs());
        }
        if said.elapsed() > SAY_EVERY {
            eprintln!("waiting for {what} since {} s", start.elapsed().as_secs());
            said = Instant::now();
        }
        pause(rest);
    }
}

/// Waits until systemd has finished starting, but for the unit of the scenario.
pub fn for_systemd() -> Result<()> {
    until("systemd to finish starting", Duration::from_secs(90), || {
        let jobs = run("systemctl", &["list-jobs", "--no-legend"])?;
        let is_own = |line: &str| SCENARIO_UNITS.iter().any(|unit| line.contains(unit));
        Ok(jobs.lines().all(is_own).then_some(()))
    })
}

/// Pauses. Only for scenarios whose subject is time, such as one that shows that nothing happens.
#[expect(clippy::disallowed_methods, reason = "the guest has no event loop")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
