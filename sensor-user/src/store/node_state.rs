//! The file of the node's state, for the daemon, `holdfast status` and people.
//!
//! In: milestones of applies, and waits. Out: the state that follows, in the file and in the log.

use super::{error::StoreError, files::Store};
use crate::clock::rfc3339;
use jiff::Timestamp;
use sensor_model::node_state::{Milestone, Standing, Wait, next};

const STATE: &str = "state.json";

impl Store {
    /// The node's state; `None` before the first milestone.
    ///
    /// # Errors
    /// The file cannot be read, or Holdfast did not write it.
    pub fn standing(&self) -> Result<Option<Standing>, StoreError> {
        self.json(&self.path.join(STATE))
    }

    /// Writes the node's state.
    pub(crate) fn set_standing(&self, standing: &Standing) -> Result<(), StoreError> {
        self.write_json(&self.path, STATE, standing)
    }
}

/// Writes the state that follows a milestone, and returns it. A milestone that is impossible in the present state is logged and
/// changes nothing.
///
/// # Errors
/// The state cannot be read or written.
pub fn note_milestone(
    store: &Store,
    milestone: Milestone,
    apply: Option<u64>,
    reason: &str,
    waiting_for: &str,
    now: Timestamp,
) -> Result<Standing, StoreError> {
    let before = store.standing()?.unwrap_or_default();
    let state = match next(before.state, milestone) {
        Ok(state) => state,
        Err(impossible) => {
            tracing::error!(%impossible, "An event that is impossible in the node's state was ignored.");
            return Ok(before);
        }
    };
    let since = if state == before.state { before.since.clone() } else { rfc3339(now) };
    let since = if since.is_empty() { rfc3339(now) } else { since };
    let standing = Standing {
        state,
        reason: reason.to_owned(),
        waiting_for: waiting_for.to_owned(),
        wait: milestone.wait(),
        since,
        apply: apply.or(before.apply),
    };
    store.set_standing(&standing)?;
    tracing::info!(state = state.as_str(), reason, waiting_for, "The state of the node's config.");
    Ok(standing)
}

/// Writes what the node waits for in its present state; `None` if it no longer waits.
///
/// # Errors
/// The state cannot be read or written.
pub(crate) fn note_wait(store: &Store, wait: Option<(Wait, &str)>) -> Result<(), StoreError> {
    let mut standing = store.standing()?.unwrap_or_default();
    if standing.since.is_empty() {
        standing.since = rfc3339(Timestamp::now());
    }
    standing.wait = wait.map(|(wait, _)| wait);
    wait.map_or("", |(_, what)| what).clone_into(&mut standing.waiting_for);
    store.set_standing(&standing)?;
    tracing::info!(waiting_for = standing.waiting_for, "The state of the node's config.");
    Ok(())
}
