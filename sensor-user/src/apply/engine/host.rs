//! The engine of one host, and what its applies come to.

use crate::{
    apply::{error::ApplyError, interrupts::Interrupts, password::ShadowLock, request::Options},
    clock::boot_id,
    observation::Observer,
    store::{self, Store},
};
use jiff::Timestamp;
use sensor_model::{
    journal::machine::Rest,
    node_state::{NodeEvent, Wait},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// What became of an apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Its number.
    pub id: u64,
    /// How it came to rest.
    pub rest: Rest,
    /// The old config is there, or on its way.
    pub goes_back: bool,
    /// Why it went back, could not go on, or reboots although no plan says so.
    pub reason: String,
    /// What was left as somebody else wrote it, acts that were skipped, what failed on the way back, and how the host differs
    /// from the old config.
    pub problems: Vec<String>,
    /// What differs at the end and the drift policy ignores or only observes.
    pub tolerated: Vec<String>,
    /// What the comparison with the config that came back found.
    pub back: AfterRollback,
}

/// What became of an apply that was interrupted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovered {
    /// None was.
    Nothing,
    /// It was not even begun, or is over now.
    Over(Applied),
    /// Another process is at work on it.
    AtWork,
}

/// How a host stands to the config that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterRollback {
    /// None came back, or it is not over.
    No,
    /// The host is as it says.
    AsDeclared,
    /// The host differs from it.
    Differs,
    /// No config was kept, or it cannot be read.
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
    /// For the host of the options.
    ///
    /// # Errors
    /// A state directory that cannot be made.
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

    /// With signals that ask it to stop.
    #[must_use]
    pub fn heeding(mut self, interrupts: &Interrupts) -> Self {
        self.interrupts = Some(interrupts.clone());
        self
    }

    /// With other drift policies than those of the host's service; none changes nothing.
    #[must_use]
    pub fn with_policies(mut self, policies: &[PathBuf]) -> Self {
        self.policies = policies.to_vec();
        self
    }

    /// What it keeps.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// A plan starts from the config that it was made for, and from no other.
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

    /// The lock of the shadow file.
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
