//! Orders of the daemon's loop to write back, in the mode `manage`.
//!
//! In: things that drifted under a `revert` rule. Out: an implementation of [`RevertOrders`]: a request in a file, a unit of the
//! host's systemd that writes, and its results. A thread does that, because the process in the unit waits for an answer of the loop.

use super::{
    files::OrderDirectory,
    revert_files::{RevertFiles, RevertRequest, RevertedThing, RevertedThings},
    revert_run::RevertHost,
    unit::{OrderUnit, UnitStartError, start_unit},
};
use crate::{
    agent::{
        ordered_reverts::{OrderedRevert, RevertOrders, RevertResult},
        write_back::{WriteBackError, WrittenBack},
    },
    apply::actions::transient,
    clock::{Clock as _, SystemClock},
    desired::NamedSources,
};
use sensor_model::expectation::Thing;
use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// The name of the unit that writes back.
const NAME: &str = "holdfast-revert.service";
/// The unit that writes back. Its process has the lock that an ordered apply waits for, for a longer time than this.
const UNIT: OrderUnit = OrderUnit {
    name: NAME,
    description: "Writes the declared state of this node back",
    what: "revert",
    limit: Some(Duration::from_secs(90)),
};
/// The pause before each question whether it still runs.
const PAUSE: Duration = Duration::from_millis(250);
/// The time after which a unit counts as over that was never seen to run, and left no results.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Longest time that the unit may take, with its end.
const LIMIT: Duration = Duration::from_mins(5);
/// Size of the thread's stack.
const STACK_BYTES: usize = 1 << 20;

/// A thing of an order has no result of the process.
#[derive(Debug, thiserror::Error)]
enum RevertOrderError {
    /// The request cannot be kept.
    #[error("cannot write the request to the state directory: {0}; the daemon tries again")]
    Request(io::Error),
    /// The thread, or its runtime, cannot be made.
    #[error("cannot start a thread for {NAME}: {0}; the daemon tries again")]
    Thread(io::Error),
    /// The unit cannot be started.
    #[error("cannot start {NAME}: {0}; the daemon tries again")]
    Start(UnitStartError),
    /// The unit does not end.
    #[error("{NAME} did not end within {} minutes; `journalctl -u {NAME}` shows why", LIMIT.as_secs() / 60)]
    NotOver,
    /// The unit ended early.
    #[error(
        "{NAME} ended without a result for this path; `journalctl -u {NAME}` shows why; the daemon tries again"
    )]
    NoResult,
    /// The results cannot be read.
    #[error("cannot read the results of {NAME}: {0}; the daemon tries again")]
    Results(io::Error),
    /// The process gave this reason.
    #[error("{0}")]
    Process(String),
}

/// Writes back on one node, by units of its systemd.
#[derive(Debug)]
pub struct NodeReverts {
    unit: RevertUnit,
    under_way: Option<oneshot::Receiver<Vec<RevertResult>>>,
}

impl NodeReverts {
    /// For the host of a daemon with these options.
    pub fn new(mut host: RevertHost) -> Self {
        // The unit has another working directory.
        host.sources.state = Some(host.sources.state());
        let NamedSources { root, state, configs, policies, .. } = &mut host.sources;
        let paths = configs.iter_mut().chain(policies).chain(state).chain([root]).chain(&mut host.own);
        for path in paths {
            if let Ok(absolute) = std::path::absolute(&*path) {
                *path = absolute;
            }
        }
        let state = host.sources.state();
        let (files, directory) = (RevertFiles::new(&state), OrderDirectory::new(&state));
        Self { unit: RevertUnit { host, state, files, directory }, under_way: None }
    }

    /// Has a thread do the work, whose results the loop takes later.
    fn work(&mut self, request: RevertRequest, is_new: bool) {
        let (send, receive) = oneshot::channel();
        self.under_way = Some(receive);
        let (unit, theirs) = (self.unit.clone(), request.clone());
        let thread = std::thread::Builder::new().name("reverts".to_owned()).stack_size(STACK_BYTES);
        let spawned = thread.spawn(move || {
            // Without a receiver the daemon is about to end. The next one finds the files, which stay until the loop has the results.
            drop(send.send(unit.results(theirs, is_new)));
        });
        if let Err(error) = spawned {
            let (send, receive) = oneshot::channel();
            drop(send.send(failed_all(request, RevertOrderError::Thread(error))));
            self.under_way = Some(receive);
        }
    }
}

impl RevertOrders for NodeReverts {
    fn recover(&mut self) {
        match self.unit.files.request() {
            Ok(Some(request)) => self.work(request, false),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "Cannot read the request to write back of an earlier daemon: it is dropped.");
                self.unit.remove_files();
            }
        }
    }

    fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    fn begin(&mut self, things: Vec<OrderedRevert>, last_usable: bool) {
        let id = SystemClock.now().as_nanosecond().to_string();
        self.work(RevertRequest { id, last_usable, things }, true);
    }

    fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<Vec<RevertResult>> {
        let Some(under_way) = &mut self.under_way else { return Poll::Pending };
        let over = ready!(Pin::new(under_way).poll(context));
        self.under_way = None;
        self.unit.remove_files();
        // A thread that panicked gives nothing. Its things are due again after their pauses.
        Poll::Ready(over.unwrap_or_default())
    }
}

/// The unit of one node, and its files.
#[derive(Debug, Clone)]
struct RevertUnit {
    host: RevertHost,
    state: PathBuf,
    files: RevertFiles,
    directory: OrderDirectory,
}

impl RevertUnit {
    /// Starts the unit for a new request, waits for its end, and reads its results.
    fn results(&self, request: RevertRequest, is_new: bool) -> Vec<RevertResult> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let run = runtime.map_err(RevertOrderError::Thread).and_then(|runtime| {
            runtime.block_on(async {
                if is_new {
                    self.start(&request).await?;
                }
                self.over().await
            })
        });
        match run {
            Ok(()) => self.taken(request),
            Err(error) => failed_all(request, error),
        }
    }

    async fn start(&self, request: &RevertRequest) -> Result<(), RevertOrderError> {
        self.files.set_request(request).map_err(RevertOrderError::Request)?;
        let RevertHost { sources, own } = &self.host;
        let mut options: Vec<(&str, &Path)> =
            vec![("--host-root", &*sources.root), ("--state", &*self.state)];
        for (name, paths) in [("--config", &sources.configs), ("--policy", &sources.policies), ("--own", own)]
        {
            options.extend(paths.iter().map(|path| (name, path.as_path())));
        }
        let start = start_unit(&sources.root, &self.directory, UNIT, &options);
        start.await.map_err(RevertOrderError::Start)
    }

    /// Waits for the end of the unit.
    async fn over(&self) -> Result<(), RevertOrderError> {
        let began = Instant::now();
        let mut was_active = false;
        while began.elapsed() < LIMIT {
            tokio::time::sleep(PAUSE).await;
            match transient::is_active(&self.host.sources.root, NAME).await {
                Ok(true) => was_active = true,
                // A unit that is only queued looks as one that has ended.
                Ok(false) if was_active || self.files.have_results() || began.elapsed() >= START_LIMIT => {
                    return Ok(());
                }
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "systemd gives no state of {NAME}."),
            }
        }
        Err(RevertOrderError::NotOver)
    }

    /// The results that the process left.
    fn taken(&self, request: RevertRequest) -> Vec<RevertResult> {
        let RevertedThings { id, things } = match self.files.results() {
            Ok(Some(results)) => results,
            Ok(None) => return failed_all(request, RevertOrderError::NoResult),
            Err(error) => return failed_all(request, RevertOrderError::Results(error)),
        };
        if id != request.id {
            return failed_all(request, RevertOrderError::NoResult);
        }
        let mut things: HashMap<Thing, RevertedThing> =
            things.into_iter().map(|result| (result.thing.clone(), result)).collect();
        let results = request.things.into_iter().map(|ordered| {
            let result = match things.remove(&ordered.thing) {
                Some(result) => written(result),
                None => Err(WriteBackError::new(RevertOrderError::NoResult)),
            };
            RevertResult { ordered, result }
        });
        results.collect()
    }

    fn remove_files(&self) {
        if let Err(error) = self.files.remove() {
            tracing::warn!(%error, "Cannot remove the request to write back, or its results.");
        }
    }
}

/// The result of the process for one thing.
fn written(result: RevertedThing) -> Result<WrittenBack, WriteBackError> {
    let RevertedThing { thing: _, before, actions, quarantined, error } = result;
    let left = error.map(|error| WriteBackError::new(RevertOrderError::Process(error)));
    match left {
        Some(error) if actions.is_empty() && quarantined.is_empty() => Err(error),
        left => Ok(WrittenBack { before, actions, quarantined, left }),
    }
}

/// The same error for each thing.
fn failed_all(request: RevertRequest, error: RevertOrderError) -> Vec<RevertResult> {
    let error = Arc::new(error);
    let things = request.things.into_iter();
    things
        .map(|ordered| RevertResult { ordered, result: Err(WriteBackError::new(Arc::clone(&error))) })
        .collect()
}

#[cfg(test)]
#[path = "reverts_tests.rs"]
mod tests;
