//! The engine of one host, and what its applies come to.

use crate::{
    apply::{error::ApplyError, interrupts::Interrupts, password::ShadowLock, request::Options},
    clock::boot_id,
    observation::Observer,
    store::{self, Store},
};
use jiff::Timestamp;
use sensor_model::{
    journal::machine::MachineEnd,
    node_state::{NodeEvent, Wait},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// The result of an apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Its number.
    pub id: u64,
    /// How it ended.
    pub end: MachineEnd,
    /// Whether it rolls back or has rolled back.
    pub goes_back: bool,
    /// Why it rolled back, cannot go on, or reboots although the plan does not.
    pub reason: String,
    /// Paths that were left as another process wrote them, skipped acts, failures of the rollback, and differences from the
    /// old config.
    pub problems: Vec<String>,
    /// Differences at the end that the drift policy ignores or only observes.
    pub tolerated: Vec<String>,
    /// The comparison with the old config after a rollback.
    pub back: AfterRollback,
}

/// The result of going on with an interrupted apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovered {
    /// No apply was interrupted.
    Nothing,
    /// It ended now, or stopped where it may not go on.
    Over(Applied),
    /// Another process has the lock.
    AtWork,
}

/// How a host compares with the config that was restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterRollback {
    /// Nothing was rolled back, or not to its end.
    No,
    /// The host is as the config says.
    AsDeclared,
    /// The host differs from the config.
    Differs,
    /// The store has no such config, or it cannot be read.
    Uncompared,
}

/// Applies configs to one host.
#[derive(Debug)]
pub struct Engine {
    pub(super) options: Options,
    pub(super) observer: Arc<Observer>,
    pub(super) store: Store,
    pub(super) boot_id: String,
    pub(super) interrupts: Option<Interrupts>,
    /// Drift policies; none for the service's own.
    pub(super) policies: Vec<PathBuf>,
}

impl Engine {
    /// An engine for the host of the options.
    ///
    /// # Errors
    /// The state directory cannot be made.
    pub fn new(options: Options, observer: &Arc<Observer>) -> Result<Self, ApplyError> {
        let store = Store::open(&options.state)?;
        let proc = Path::new("/proc");
        let boot_id = boot_id(proc).map_err(|error| ApplyError::io(proc, "read the boot id", &error))?;
        Ok(Self {
            options,
            observer: Arc::clone(observer),
            store,
            boot_id,
            interrupts: None,
            policies: Vec::new(),
        })
    }

    /// Makes signals stop its applies at a safe point.
    #[must_use]
    pub fn heeding(mut self, interrupts: &Interrupts) -> Self {
        self.interrupts = Some(interrupts.clone());
        self
    }

    /// Uses other drift policies than those of the host's service, where any are given.
    #[must_use]
    pub fn with_policies(mut self, policies: &[PathBuf]) -> Self {
        self.policies = policies.to_vec();
        self
    }

    /// Its store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Checks that the config for which a plan was made is still the current one.
    pub(super) fn is_current(&self, planned: Option<u64>) -> Result<(), ApplyError> {
        match self.store.current()?.map(|(id, _)| id) {
            current if current == planned => Ok(()),
            Some(id) => Err(ApplyError::Overtaken(format!("number {id}"))),
            None => Err(ApplyError::Overtaken("none".to_owned())),
        }
    }

    pub(super) fn refused(&self, reason: &str) {
        if let Err(error) = self.note(NodeEvent::Refused, reason) {
            tracing::error!(%error, "The node's state cannot be noted.");
        }
    }

    /// Takes the lock of the shadow file.
    pub(super) async fn shadow(&self) -> Result<ShadowLock, ApplyError> {
        let mut waited = false;
        let mut told = |what: &str| {
            waited = true;
            self.waits(Some((Wait::Lock, what)));
        };
        let taken = ShadowLock::take(&self.observer, &mut told).await;
        if waited {
            self.waits(None);
        }
        taken
    }

    pub(super) fn waits(&self, wait: Option<(Wait, &str)>) {
        if let Err(error) = store::note_wait(&self.store, wait) {
            tracing::error!(%error, "What is waited for cannot be noted.");
        }
    }

    pub(super) fn note(&self, event: NodeEvent, reason: &str) -> Result<(), ApplyError> {
        store::note_event(&self.store, event, None, reason, "", Timestamp::now())?;
        Ok(())
    }
}
