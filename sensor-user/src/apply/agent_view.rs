//! The daemon's view of applies, and its recovery of an apply whose process has ended.
//!
//! In: the store of a host. Out: an implementation of [`Applies`] for the daemon's loop.

use super::{ApplyError, ApplyOptions, Engine, OperatorRule, Recovered, ResumeLimit, Systemd};
use crate::agent::applies::{Applies, AppliesError, JournalVersion, Overwritten};
use crate::observation::Observer;
use crate::store::Store;
use sensor_model::{journal::codec::ParsedJournal, node_state::Standing};
use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

/// The applies of a host, for the daemon.
#[derive(Debug)]
pub struct AgentView {
    root: PathBuf,
    state: PathBuf,
    store: Option<Store>,
}

impl AgentView {
    /// For the host at `root`, with its state directory.
    pub fn new(root: &Path, state: &Path) -> Self {
        Self { root: root.to_owned(), state: state.to_owned(), store: existing(state) }
    }

    /// The store, which the first apply makes.
    fn store(&mut self) -> Option<&Store> {
        if self.store.is_none() {
            self.store = existing(&self.state);
        }
        self.store.as_ref()
    }

    async fn recovered(
        &self,
        observer: &Arc<Observer>,
        policies: &[PathBuf],
    ) -> Result<Recovered, ApplyError> {
        let to = ApplyOptions {
            root: self.root.clone(),
            state: self.state.clone(),
            operator: OperatorRule::Never,
            asks_daemon: false,
        };
        // The daemon's observer does not touch file systems of servers. The apply may have to write there.
        let everywhere = Observer::new(&self.root).map_or_else(|_| Arc::clone(observer), Arc::new);
        let engine = Engine::new(to, &everywhere)?.with_policies(policies);
        let mut runner = Systemd::new(&self.root);
        runner.inhibit("an interrupted apply is recovered").await;
        let mut say = |line: &str| tracing::info!(line, "Recovers an interrupted apply.");
        engine.recover(&mut runner, ResumeLimit::NoOsChange, &mut say).await
    }
}

/// The store of a host. [`Applies::current`] reports an error once, at the start of the daemon.
fn existing(state: &Path) -> Option<Store> {
    Store::open_existing(state).ok().flatten()
}

impl Applies for AgentView {
    fn current(&mut self) -> Result<Option<(u64, PathBuf)>, AppliesError> {
        match self.store() {
            Some(store) => store.current(),
            None => Store::current_in(&self.state),
        }
        .map_err(AppliesError::new)
    }

    fn config(&self, id: u64) -> PathBuf {
        self.store.as_ref().map(|store| store.config(id)).unwrap_or_default()
    }

    fn journal_version(&mut self) -> Option<JournalVersion> {
        let journal = std::fs::metadata(self.store()?.path().join("journal")).ok()?;
        Some((journal.ino(), journal.ctime(), journal.ctime_nsec()))
    }

    fn journal(&self) -> Result<Option<ParsedJournal>, AppliesError> {
        self.store.as_ref().map_or(Ok(None), |store| store.open_journal().map_err(AppliesError::new))
    }

    fn is_idle(&self) -> bool {
        self.store.as_ref().is_some_and(|store| matches!(store.lock(), Ok(Some(_))))
    }

    fn node_state(&self) -> Option<Standing> {
        self.store.as_ref()?.standing().ok().flatten()
    }

    fn take_overwritten(&self) -> Result<Vec<Overwritten>, AppliesError> {
        let Some(store) = &self.store else { return Ok(Vec::new()) };
        let Some(apply) = store.generations().ok().and_then(|generations| generations.last().copied()) else {
            return Ok(Vec::new());
        };
        let taken = store.take_unrecorded(apply).map_err(AppliesError::new)?;
        let overwritten = taken.into_iter().map(|taken| Overwritten {
            apply,
            path: taken.path,
            time: taken.time,
            found: taken.found,
        });
        Ok(overwritten.collect())
    }

    fn recover<'a>(
        &'a mut self,
        observer: &'a Arc<Observer>,
        policies: &'a [PathBuf],
    ) -> Pin<Box<dyn Future<Output = bool> + 'a>> {
        Box::pin(async move {
            match self.recovered(observer, policies).await {
                Ok(Recovered::Over(over)) => {
                    tracing::warn!(apply = over.id, result = ?over.end, reason = over.reason, "Recovered an interrupted apply.");
                    true
                }
                Ok(Recovered::Nothing) => true,
                Ok(Recovered::AtWork) => false,
                Err(error) => {
                    tracing::error!(%error, "Cannot recover an interrupted apply.");
                    true
                }
            }
        })
    }
}
