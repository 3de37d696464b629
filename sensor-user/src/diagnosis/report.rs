//! The diagnosis of a host, from all tests.

use super::{
    backends::{TestedBackend, test_all},
    error::DiagnosisError,
    facts::{Fact, FactState, facts},
    unseen::{UnseenChange, not_seen},
};
use crate::{
    agent::{privileges, reports::BackendName},
    observation::Observer,
};
use serde::Serialize;
use std::{path::Path, sync::Arc};

/// The value of [`Diagnosis::schema`].
const SCHEMA: &str = "holdfast.doctor/v1";

/// What the tests found.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Diagnosis {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Whether Holdfast detects changes here as well as on any host.
    pub healthy: bool,
    /// Facts about the kernel and the host.
    pub facts: Vec<Fact>,
    /// The backend that the daemon would use; null if none works.
    pub backend: Option<BackendName>,
    /// Each backend, tested.
    pub modes: Vec<TestedBackend>,
    /// Changes that the daemon would not see at once on this host.
    pub not_seen: Vec<UnseenChange>,
    /// The capabilities that the daemon keeps while it watches.
    pub keeps: Vec<KeptCapability>,
}

/// A capability that the daemon keeps.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct KeptCapability {
    /// The capability, by the kernel's name.
    pub capability: &'static str,
    /// What the daemon needs it for.
    pub why: &'static str,
}

/// Tests this host.
///
/// # Errors
/// The root directory cannot be opened, or the canary has no directory.
pub fn diagnose() -> Result<Diagnosis, DiagnosisError> {
    let root = Path::new("/");
    let modes = test_all(&Arc::new(Observer::new(root)?))?;
    let facts = facts(root);
    let chosen = modes.iter().find(|tested| tested.is_accepted);
    let not_seen = not_seen(chosen);
    Ok(Diagnosis {
        schema: SCHEMA,
        healthy: chosen.is_some_and(|chosen| chosen.usable && chosen.mode != BackendName::Fanotify)
            && not_seen.is_empty()
            && facts.iter().all(|fact| fact.state != FactState::Bad),
        backend: chosen.map(|chosen| chosen.mode),
        not_seen,
        keeps: chosen.map(kept_with).unwrap_or_default(),
        facts,
        modes,
    })
}

/// The capabilities that the daemon would keep with a backend on a host without a cluster.
fn kept_with(backend: &TestedBackend) -> Vec<KeptCapability> {
    privileges::kept_with(backend.mode, true)
        .map(|kept| KeptCapability { capability: kept.name, why: kept.why })
        .collect()
}
