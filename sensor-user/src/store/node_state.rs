//! How the node stands, kept where the daemon, `status` and people find it.

use super::files::Store;
use crate::apply::ApplyError;
use crate::clock::rfc3339;
use jiff::Timestamp;
use sensor_model::node_state::{NodeEvent, Standing, Wait, next};

/// Takes note of what happened; gives how the node stands now. What cannot happen in the present state is said in
/// the log and changes nothing.
///
/// # Errors
/// A state that cannot be read or written.
pub fn note(
    store: &Store,
    event: NodeEvent,
    apply: Option<u64>,
    reason: &str,
    waiting_for: &str,
    now: Timestamp,
) -> Result<Standing, ApplyError> {
    let before = store.standing()?.unwrap_or_default();
    let state = match next(before.state, event) {
        Ok(state) => state,
        Err(impossible) => {
            tracing::error!(%impossible, "The node's state stays as it is.");
            return Ok(before);
        }
    };
    let since = if state == before.state { before.since.clone() } else { rfc3339(now) };
    let since = if since.is_empty() { rfc3339(now) } else { since };
    let standing = Standing {
        state,
        reason: reason.to_owned(),
        waiting_for: waiting_for.to_owned(),
        wait: event.wait(),
        since,
        apply: apply.or(before.apply),
    };
    store.set_standing(&standing)?;
    tracing::info!(state = state.name(), reason, waiting_for, "The node's config.");
    Ok(standing)
}

/// Takes note of what the node waits for in the state that it is in; `None` when it waits for nothing any more.
///
/// # Errors
/// A state that cannot be read or written.
pub(crate) fn waits(store: &Store, wait: Option<(Wait, &str)>) -> Result<(), ApplyError> {
    let mut standing = store.standing()?.unwrap_or_default();
    if standing.since.is_empty() {
        standing.since = rfc3339(Timestamp::now());
    }
    standing.wait = wait.map(|(wait, _)| wait);
    wait.map_or("", |(_, what)| what).clone_into(&mut standing.waiting_for);
    store.set_standing(&standing)?;
    tracing::info!(waiting_for = standing.waiting_for, "The node's config.");
    Ok(())
}
