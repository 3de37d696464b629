//! Which actors a record of drift names, and whether the policy allows them.
//!
//! In: the actors of an episode and of the open drift, the policy. Out: the action, and the actors that are named.

use super::episode::{ACTORS, brief};
use super::open_drift::{MORE_ACTORS, OpenDrift};
use super::verifier::Looker;
use crate::desired::Desired;
use sensor_model::drift_policy::{DriftAction, PolicyActor};
use sensor_model::record::{Actor, Record};

/// The policy's action for a drift of a thing by an actor, and whether the actor is allowed. `was_allowed`: the actor was
/// allowed when the drift was reported, and its executable was the right one then.
pub(super) fn decide(
    desired: &Desired,
    id: u32,
    actor: Option<&Actor>,
    was_allowed: bool,
    looker: &mut Looker,
) -> (DriftAction, bool) {
    let thing = desired.expectations[id as usize].thing.path();
    // Records of an older version may name Holdfast; see `Verdicts::drifted`.
    let subject = actor.filter(|actor| !actor.holdfast).map(PolicyActor::from);
    let policy = &desired.policy;
    let without = subject.map(|subject| PolicyActor { exe: None, ..subject });
    let decision = policy.decide(&thing, without.as_ref());
    if decision.allowed {
        return (decision.action, true);
    }
    let by_exe = policy.decide(&thing, subject.as_ref());
    // The daemon opens only files that the policy names, not whatever a process executed.
    if by_exe.allowed && (was_allowed || actor.is_some_and(|actor| looker.is_host_file(actor))) {
        return (by_exe.action, true);
    }
    (decision.action, false)
}

/// The same of all possible actors: each has to be allowed. `more`: some are not named.
pub(super) fn decide_of_all(
    desired: &Desired,
    id: u32,
    actor: Option<&Actor>,
    actors: &[Actor],
    more: bool,
    was_allowed: bool,
    looker: &mut Looker,
) -> (DriftAction, bool) {
    for actor in actors {
        let decided = decide(desired, id, Some(actor), was_allowed, looker);
        if !decided.1 {
            return decided;
        }
    }
    decide(desired, id, actor.filter(|_| !more), was_allowed, looker)
}

/// Adds the actors of a drift that is still open to those of the changes since: what was found may be theirs.
pub(super) fn with_earlier(record: &mut Record, open: &OpenDrift) {
    let mut actors: Vec<Actor> =
        if open.actors.is_empty() { open.actor.iter().map(brief).collect() } else { open.actors.clone() };
    let since = if record.actors.is_empty() {
        record.actor.iter().map(brief).collect()
    } else {
        record.actors.clone()
    };
    for actor in since {
        actors.retain(|earlier| !is_same(earlier, &actor));
        actors.push(actor);
    }
    // The newest are named.
    let beyond = actors.len().saturating_sub(ACTORS);
    actors.drain(..beyond);
    // A drift without an actor was caused by an unnamed one.
    let has_more = beyond > 0 || open.more_actors || open.actor.is_none();
    if has_more && !record.detail.contains_key(MORE_ACTORS) {
        record.detail.insert(MORE_ACTORS.into(), beyond.max(1).into());
    }
    record.actors = actors;
}

/// Whether two are one process.
pub(super) fn is_same(one: &Actor, other: &Actor) -> bool {
    (one.pid, one.start_ns) == (other.pid, other.start_ns)
}
