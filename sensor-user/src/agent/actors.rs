//! The actors that a record of drift names, and whether the policy allows them.
//!
//! In: the actors of an episode and of the open drift, the policy. Out: the policy's action, and the named actors. No state.

use super::episode::{ACTORS, brief};
use super::open_drift::{MORE_ACTORS, OpenDrift};
use super::verifier::Verifier;
use crate::desired::Desired;
use sensor_model::drift_policy::{DriftAction, PolicyActor};
use sensor_model::protocol::ThingId;
use sensor_model::record::{Actor, Record};

/// The policy's action for a drift of a thing by an actor, and whether the actor is allowed. `was_allowed`: the actor was
/// allowed when the drift was reported, and its executable was the right one then.
pub(super) fn decide(
    desired: &Desired,
    thing: ThingId,
    actor: Option<&Actor>,
    was_allowed: bool,
    verifier: &mut Verifier,
) -> (DriftAction, bool) {
    let expectation = &desired.expectations[thing.index()];
    // Records of an older version may name Holdfast; see `Verdicts::report_drift`.
    let subject = actor.filter(|actor| !actor.holdfast).map(PolicyActor::from);
    let policy = &desired.policy;
    let without = subject.map(|subject| PolicyActor { exe: None, ..subject });
    let decision = policy.decide_about(expectation, without.as_ref());
    if decision.allowed {
        return (decision.action, true);
    }
    let by_exe = policy.decide_about(expectation, subject.as_ref());
    // The daemon opens an executable only if the policy names its path.
    if by_exe.allowed && (was_allowed || actor.is_some_and(|actor| verifier.is_host_file(actor))) {
        return (by_exe.action, true);
    }
    (decision.action, false)
}

/// The same for all possible actors: the policy must allow each of them. `more`: some are not named.
pub(super) fn decide_of_all(
    desired: &Desired,
    thing: ThingId,
    actor: Option<&Actor>,
    actors: &[Actor],
    more: bool,
    was_allowed: bool,
    verifier: &mut Verifier,
) -> (DriftAction, bool) {
    for actor in actors {
        let decided = decide(desired, thing, Some(actor), was_allowed, verifier);
        if !decided.1 {
            return decided;
        }
    }
    decide(desired, thing, actor.filter(|_| !more), was_allowed, verifier)
}

/// Adds the actors of an open drift to the actors of the changes since then: either may have caused the differences.
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
    // The record names the newest.
    let beyond = actors.len().saturating_sub(ACTORS);
    actors.drain(..beyond);
    // A drift without a named actor has an unnamed one.
    let has_more = beyond > 0 || open.more_actors || open.actor.is_none();
    if has_more && !record.detail.contains_key(MORE_ACTORS) {
        record.detail.insert(MORE_ACTORS.into(), beyond.max(1).into());
    }
    record.actors = actors;
}

/// Whether two actors are one process.
pub(super) fn is_same(one: &Actor, other: &Actor) -> bool {
    (one.pid, one.start_ns) == (other.pid, other.start_ns)
}
