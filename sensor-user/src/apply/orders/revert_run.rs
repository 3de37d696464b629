//! The process that writes back what drifted under a `revert` rule.
//!
//! In: the request of the daemon, and the configs and policies that the daemon uses. Out: a result for each thing. The request only
//! names things: the configs decide what is written, and the policies whether. During the process no apply starts. A running daemon
//! is notified before the first write, and accepts the process as Holdfast. Without its answer nothing is written.

use super::files::OrderDirectory;
use super::revert_files::{RevertFiles, RevertRequest, RevertedThing, RevertedThings};
use crate::{
    agent::{
        ordered_reverts::OrderedRevert,
        write_back::{WriteBack as _, WriteBackError, WriteBackRequest, WrittenBack},
    },
    apply::{
        ApplyError,
        operator::{OperatorDaemon, running_operator},
        repairs::{announce, keep_applies_away},
        waits_or_none,
    },
    desired::{self, DaemonInputs, Desired, DesiredError, Inputs, NamedSources},
    observation::{Observer, RootError},
    repair::{Restorer, order, revert::Reverter},
    store::{Store, StoreError, UnknownApplied},
};
use sensor_model::{
    drift_policy::DriftAction,
    expectation::{Expectation, Thing},
};
use std::{io, path::PathBuf, sync::Arc};

/// The error of a command without a request.
const NO_REQUEST: &str = "there is no request to write back: only the daemon calls this command";

/// The host on which things are written back.
#[derive(Debug, Clone)]
pub struct RevertHost {
    /// What the options of the daemon name.
    pub sources: NamedSources,
    /// Paths with files of Holdfast itself, beside the state directory. They are not moved to the quarantine.
    pub own: Vec<PathBuf>,
}

/// Nothing of a request was written.
#[derive(Debug, thiserror::Error)]
enum RevertRunError {
    /// Another process holds the lock.
    #[error("an apply is under way, which may write the same paths; the daemon tries again after it")]
    ApplyUnderWay,
    /// The Machine Config Operator's daemon manages the node.
    #[error("{0}; nothing was written, and the daemon tries again")]
    Operator(OperatorDaemon),
    /// An apply was interrupted.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The store of applies, which has the lock, cannot be made.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Which config was applied last cannot be read.
    #[error(transparent)]
    Applied(#[from] UnknownApplied),
    /// The host's root cannot be opened.
    #[error(transparent)]
    Root(#[from] RootError),
    /// A config or a policy cannot be used.
    #[error(transparent)]
    Desired(#[from] DesiredError),
    /// The results cannot be kept, so nothing more is written.
    #[error("cannot keep the results in the state directory: {0}; the daemon tries again")]
    Results(#[from] io::Error),
    /// The running daemon expects another state.
    #[error(
        "the running daemon expects another state of these paths, because a config or a policy changed; nothing was written, and the \
         daemon tries again"
    )]
    Unexpected,
    /// The running daemon did not answer the announcement.
    #[error(
        "the running daemon gave no answer, so it may expect another state of these paths; nothing was written, and the daemon tries again"
    )]
    NoAnswer,
}

/// A thing is not written back.
#[derive(Debug, thiserror::Error)]
enum ThingRefusal {
    /// No expectation.
    #[error("{}: no config and no rule of a drift policy declares it", .0.display())]
    NotDeclared(PathBuf),
    /// Another rule.
    #[error("{}: the rule of the drift policy is `{}`, and only a rule `revert` writes back", path.display(), action.as_str())]
    OtherRule {
        /// The path of the thing.
        path: PathBuf,
        /// The action of the rule.
        action: DriftAction,
    },
}

/// Writes the things of the request back, and keeps the results for the daemon. Gives whether all of them are as declared.
///
/// # Errors
/// There is no request that can be read, or the results cannot be kept.
pub async fn run_reverts(host: &RevertHost) -> io::Result<bool> {
    let files = RevertFiles::new(&host.sources.state());
    let Some(request) = files.request()? else {
        return Err(io::Error::new(io::ErrorKind::NotFound, NO_REQUEST));
    };
    let RevertRequest { id, last_usable, things: ordered } = request;
    let mut results = RevertedThings { id, things: Vec::new() };
    // After each thing, so that a process that is ended early leaves the results of what it wrote.
    let mut keep = |result: RevertedThing| {
        results.things.push(result);
        files.set_results(&results)
    };
    if let Err(error) = revert(&ordered, host, last_usable, &mut keep).await {
        tracing::error!(%error, "Cannot write back what drifted.");
        let left = ordered
            .iter()
            .filter(|ordered| !results.things.iter().any(|result| result.thing == ordered.thing));
        let failed: Vec<_> =
            left.map(|ordered| RevertedThing::failed(ordered.thing.clone(), &error)).collect();
        results.things.extend(failed);
        files.set_results(&results)?;
    }
    Ok(results.things.iter().all(|thing| thing.error.is_none()))
}

/// Gives each result to `keep`.
async fn revert(
    things: &[OrderedRevert],
    host: &RevertHost,
    last_usable: bool,
    keep: &mut dyn FnMut(RevertedThing) -> io::Result<()>,
) -> Result<(), RevertRunError> {
    let (root, state) = (&host.sources.root, host.sources.state());
    if let Some(process) = running_operator(root) {
        return Err(RevertRunError::Operator(OperatorDaemon::Runs(process)));
    }
    // The lock is in the store, which a node without an apply does not have yet.
    Store::open(&state)?;
    let _lock = keep_applies_away(&state).map_err(|error| match error {
        ApplyError::Locked(_) => RevertRunError::ApplyUnderWay,
        error => error.into(),
    })?;
    // As in the daemon, a rule writes to no file system whose server may hang.
    let observer = Arc::new(Observer::guarded(root)?);
    let load = |last_usable| -> Result<_, RevertRunError> {
        Ok(desired::load_with_config(&inputs(&host.sources, last_usable)?, &*observer)?)
    };
    let whole = match load(last_usable) {
        // The daemon goes on with what it read before the files could not be used any more.
        Err(error) if !last_usable => load(true).map_err(|_| error)?,
        loaded => loaded?,
    };
    let mut due = Vec::new();
    for ordered in things {
        match under_revert(&whole.desired, &ordered.thing) {
            Ok(expectation) => due.push((expectation, ordered)),
            Err(refusal) => keep(RevertedThing::failed(ordered.thing.clone(), &refusal))?,
        }
    }
    if due.is_empty() {
        return Ok(());
    }
    due.sort_by_cached_key(|(expectation, _)| order(expectation));
    let expectations = || due.iter().map(|(expectation, _)| *expectation);
    let daemon = announce(&state, expectations()).await.map_err(|_| RevertRunError::Unexpected)?;
    if daemon.as_ref().is_some_and(|daemon| !daemon.is_answered) {
        return Err(RevertRunError::NoAnswer);
    }
    let mut reverter = Reverter::new(root, &state, host.own.clone());
    reverter.recover(&observer);
    Restorer::new(Arc::clone(&observer), root).remove_leftovers(expectations());
    let orders = OrderDirectory::new(&state);
    for (expectation, ordered) in due {
        if orders.ordered().is_some() && orders.end().is_none() {
            // An ordered apply waits for the lock.
            return Err(RevertRunError::ApplyUnderWay);
        }
        let wanted = WriteBackRequest {
            observer: &observer,
            config: &whole.rendered,
            expectation,
            ids: &whole.desired.ids,
            actors: &ordered.actors,
            // The lock keeps the others away.
            writers: &[],
        };
        keep(result_of(ordered, reverter.write_back(wanted).await))?;
    }
    Ok(())
}

/// The inputs of a daemon with these options after its start.
fn inputs(sources: &NamedSources, last_usable: bool) -> Result<Inputs, UnknownApplied> {
    let options = DaemonInputs { allow_empty: true, with_cluster_policies: true };
    let mut inputs = sources.clone().daemon_inputs(options, waits_or_none);
    inputs.own_process = false;
    inputs.prefer_operator_config();
    inputs.allow_no_config();
    if let Some(applied) = Store::applied_in(&inputs.state)? {
        inputs.use_applied(applied);
    }
    if last_usable && !inputs.use_last_usable() {
        tracing::warn!(
            "The daemon uses the last usable configs and policies, and the state directory has none."
        );
    }
    Ok(inputs)
}

/// The expectation of a thing, if its rule is `revert`.
fn under_revert<'a>(desired: &'a Desired, thing: &Thing) -> Result<&'a Expectation, ThingRefusal> {
    let expectation = desired.expectations.iter().find(|expectation| expectation.thing == *thing);
    let path = || thing.path().to_path_buf();
    let expectation = expectation.ok_or_else(|| ThingRefusal::NotDeclared(path()))?;
    match desired.policy.decide_about(expectation, None).action {
        DriftAction::Revert => Ok(expectation),
        action => Err(ThingRefusal::OtherRule { path: path(), action }),
    }
}

fn result_of(ordered: &OrderedRevert, written: Result<WrittenBack, WriteBackError>) -> RevertedThing {
    let thing = ordered.thing.clone();
    match written {
        Ok(WrittenBack { before, actions, quarantined, left }) => {
            let error = left.map(|error| error.to_string());
            RevertedThing { thing, before, actions, quarantined, error }
        }
        Err(error) => RevertedThing::failed(thing, &error),
    }
}

#[cfg(test)]
#[path = "revert_run_tests.rs"]
mod tests;
