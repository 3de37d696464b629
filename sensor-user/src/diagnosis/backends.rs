//! The test of each backend: its programs are loaded, and the record of a canary has to arrive.
//!
//! In: an observer of the host. Out: for each backend whether it works, why it does not, and the state of its hooks.

use super::error::DiagnosisError;
use crate::{
    agent::{
        canary::{CANARY_ID, Canary, CanaryState},
        kernel_programs::KernelPrograms,
        reports::HookMode,
    },
    clock::SystemClock,
    event,
    fanotify::FanotifyBackend,
    kernel::{
        hooks::{Mode, WhyOff},
        load::{self, HookState},
    },
    observation::Observer,
};
use sensor_model::protocol::GapReason;
use serde::Serialize;
use std::{
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Most records that are read up to that of the canary. Others may be on the ring before it.
const RECORDS: usize = 4096;

/// A backend, by its name in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BackendName {
    /// BPF LSM programs.
    Lsm,
    /// fentry programs.
    Fentry,
    /// Fanotify, without kernel programs.
    Fanotify,
}

impl BackendName {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        HookMode::from(self).name()
    }
}

impl From<BackendName> for HookMode {
    fn from(name: BackendName) -> Self {
        match name {
            BackendName::Lsm => Self::Lsm,
            BackendName::Fentry => Self::Fentry,
            BackendName::Fanotify => Self::Fanotify,
        }
    }
}

/// The test of one backend.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct TestedBackend {
    /// The backend.
    pub mode: BackendName,
    /// Whether it works here.
    pub usable: bool,
    /// Why it does not work; null if it works.
    pub reason: Option<String>,
    /// Each hook of the backend.
    pub hooks: Vec<TestedHook>,
}

/// One hook of a backend.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct TestedHook {
    /// The hook.
    pub hook: &'static str,
    /// `attached`, `waiting` or `off`.
    pub state: TestedHookState,
    /// Why it is off; null if it is not.
    pub reason: Option<String>,
    /// The same with all details.
    #[serde(skip)]
    pub loaded: HookState,
}

/// The state of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TestedHookState {
    /// Its program is attached.
    Attached,
    /// Its program is loaded. The daemon attaches it only while it needs it.
    Waiting,
    /// Its program is not attached; `reason` says why.
    Off,
}

impl TestedHook {
    pub(super) fn new(hook: &'static str, loaded: HookState) -> Self {
        let state = match &loaded {
            HookState::Attached | HookState::Adopted => TestedHookState::Attached,
            HookState::Waiting => TestedHookState::Waiting,
            HookState::Off(_) => TestedHookState::Off,
        };
        let mut hook = Self { hook, state, reason: None, loaded };
        hook.reason = hook.off().map(WhyOff::to_string);
        hook
    }

    /// Why the hook is off.
    pub(super) fn off(&self) -> Option<&WhyOff> {
        match &self.loaded {
            HookState::Off(off) => Some(off),
            _ => None,
        }
    }
}

/// A directory for the canary, apart from that of a running daemon.
#[derive(Debug)]
struct CanaryDirectory(PathBuf);

impl CanaryDirectory {
    fn make() -> Result<Self, DiagnosisError> {
        let path = std::env::temp_dir().join(format!("holdfast-doctor-{}", std::process::id()));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Self(path)),
            Err(source) => Err(DiagnosisError::CanaryDirectory { path, source }),
        }
    }
}

impl Drop for CanaryDirectory {
    fn drop(&mut self) {
        // A failure leaves a directory in the temporary directory, and nothing else.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Tests every backend, in the order in which the daemon tries them.
///
/// # Errors
/// The canary has no directory.
pub(super) fn test_all(observer: &Arc<Observer>) -> Result<Vec<TestedBackend>, DiagnosisError> {
    let directory = CanaryDirectory::make()?;
    let programs = |mode| test_programs(mode, &directory.0, observer);
    Ok(vec![programs(Mode::Lsm), programs(Mode::Fentry), test_fanotify(observer)])
}

/// Loads the programs in a mode and waits for the record of one canary. The daemon repeats that if others fill the ring.
fn test_programs(mode: Mode, directory: &Path, observer: &Observer) -> TestedBackend {
    let name = match mode {
        Mode::Lsm => BackendName::Lsm,
        Mode::Fentry => BackendName::Fentry,
    };
    let mut tested = TestedBackend { mode: name, usable: false, reason: None, hooks: Vec::new() };
    let loaded = match load::load(mode, None, Some(0)) {
        Ok(loaded) => loaded,
        Err(error) => {
            tested.reason = Some(error.to_string());
            return tested;
        }
    };
    let hooks = loaded.sensor.hooks.iter();
    tested.hooks = hooks.map(|(hook, state)| TestedHook::new(hook, state.clone())).collect();
    let mut kernel = KernelPrograms::new(loaded.maps);
    let mut ring = loaded.ring;
    let mut canary = match Canary::new(&[directory], observer, &mut kernel) {
        Ok(canary) => canary,
        Err(error) => {
            tested.reason = Some(error.to_string());
            return tested;
        }
    };
    canary.write(observer, &mut kernel);
    ring.drain(RECORDS, |bytes| {
        if event::decode(bytes).is_ok_and(|change| change.record.id == CANARY_ID) {
            canary.received();
        }
    });
    match canary.check(&mut kernel) {
        CanaryState::Alive => tested.usable = true,
        CanaryState::RecordLost => tested.reason = Some(GapReason::CanaryNotReceived.to_string()),
        CanaryState::Blind(reason) => tested.reason = Some(reason.to_string()),
    }
    loaded.sensor.detach();
    tested
}

fn test_fanotify(observer: &Arc<Observer>) -> TestedBackend {
    let reason = FanotifyBackend::new(Arc::clone(observer), Arc::new(SystemClock))
        .err()
        .map(|error| error.to_string());
    TestedBackend { mode: BackendName::Fanotify, usable: reason.is_none(), reason, hooks: Vec::new() }
}
