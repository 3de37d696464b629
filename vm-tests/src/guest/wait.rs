//! Waiting for what another process does.
//!
//! Comes in: a condition and a limit. Goes out: what the condition gave, or an error that names what never came.
//! This is the one place in the guest that looks again after a pause; everything else waits through it.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Pause between two looks; short beside what an emulated guest does in one.
const PAUSE: Duration = Duration::from_millis(20);

/// Looks until `look` gives something, for `limit` at most. `what` completes "gave up waiting for ...".
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if start.elapsed() > limit {
            bail!("gave up waiting for {what} after {} s", limit.as_secs());
        }
        pause(PAUSE);
    }
}

/// Lets time pass. Only for scenarios whose subject is time, such as one that shows that nothing happens.
#[expect(clippy::disallowed_methods, reason = "the guest has no event loop")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
