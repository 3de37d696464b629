//! The engine of one host, and the results of its applies.
//!
//! In: the options of a host. Out: an engine with its store. Opening it writes nothing but missing directories of the store.

use crate::{
    apply::{error::ApplyError, interrupts::Interrupts, password::ShadowLock, request::ApplyOptions},
    clock::boot_id,
    observation::Observer,
    store::{self, Store},
    sys::CallError,
};
use jiff::Timestamp;
use sensor_model::{
    journal::machine::MachineEnd,
    node_state::{Milestone, Wait},
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
    pub rolls_back: bool,
    /// Whether an action failed and the reboot is its fallback.
    pub is_fallback: bool,
    /// The reason for a rollback, for a halt, or for a reboot that the plan does not have; empty otherwise. For people.
    pub reason: String,
    /// Paths that were left as another process wrote them, skipped acts, failures of the rollback, and differences from the old
    /// config.
    pub problems: Vec<String>,
    /// Of these, the paths that were left as another process wrote them.
    pub left: Vec<String>,
    /// Differences at the end that the drift policy ignores or only observes.
    pub tolerated: Vec<String>,
    /// The comparison with the old config after a rollback.
    pub after_rollback: AfterRollback,
}

/// The result of continuing an interrupted apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovered {
    /// No apply was interrupted.
    Nothing,
    /// It ended now, or stopped at its limit.
    Over(Applied),
    /// Another process has the lock.
    AtWork,
}

/// How a host compares with the config that was restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterRollback {
    /// There was no rollback, or it has not ended.
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
    pub(super) options: ApplyOptions,
    pub(super) observer: Arc<Observer>,
    pub(super) store: Store,
    pub(super) boot_id: String,
    pub(super) interrupts: Option<Interrupts>,
    /// The drift policies of the command line; if empty, those of the service.
    pub(super) policies: Vec<PathBuf>,
}

impl Engine {
    /// An engine for the host of the options.
    ///
    /// # Errors
    /// The state directory cannot be made.
    pub fn new(options: ApplyOptions, observer: &Arc<Observer>) -> Result<Self, ApplyError> {
        let store = Store::open(&options.state)?;
        let proc = Path::new("/proc");
        let boot_id = boot_id(proc).map_err(|error| CallError::new(proc, "read the boot id", error))?;
        Ok(Self {
            options,
            observer: Arc::clone(observer),
            store,
            boot_id,
            interrupts: None,
            policies: Vec::new(),
        })
    }

    /// Lets signals stop its applies at a safe point.
    #[must_use]
    pub fn heeding(mut self, interrupts: &Interrupts) -> Self {
        self.interrupts = Some(interrupts.clone());
        self
    }

    /// Uses these drift policies; if empty, those of the host's service.
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
            current => Err(ApplyError::Overtaken(current)),
        }
    }

    pub(super) fn refused(&self, reason: &str) {
        if let Err(error) = self.note(Milestone::Refused, reason) {
            tracing::error!(%error, "Cannot write the node's state.");
        }
    }

    /// Takes the lock of the shadow file.
    pub(super) async fn shadow(&self) -> Result<ShadowLock, ApplyError> {
        let mut waited = false;
        let mut note = |what: &str| {
            waited = true;
            self.waits(Some((Wait::Lock, what)));
        };
        let taken = ShadowLock::take(&self.observer, &mut note).await;
        if waited {
            self.waits(None);
        }
        taken
    }

    pub(super) fn waits(&self, wait: Option<(Wait, &str)>) {
        if let Err(error) = store::note_wait(&self.store, wait) {
            tracing::error!(%error, "Cannot write what the apply waits for to the node's state.");
        }
    }

    pub(super) fn note(&self, milestone: Milestone, reason: &str) -> Result<(), ApplyError> {
        store::note_milestone(&self.store, milestone, None, reason, "", Timestamp::now())?;
        Ok(())
    }
}
