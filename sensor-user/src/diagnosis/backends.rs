//! The test of each backend, by the trial with which the daemon chooses one.
//!
//! In: an observer of the host. Out: for each backend whether it works, why it does not, whether the daemon would use it, and the
//! state of its hooks.

use super::error::DiagnosisError;
use crate::{
    agent::{
        reports::BackendName,
        trial::{self, FailureCause, Judgement},
    },
    clock::SystemClock,
    fanotify::FanotifyBackend,
    kernel::{
        hooks::{ProgramSet, WhyOff},
        load::HookState,
    },
    observation::Observer,
};
use serde::Serialize;
use std::{
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

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
    /// Whether the daemon would use it if no backend before it can be used. It also uses programs that run only once function
    /// tracing is on again.
    #[serde(skip)]
    pub(super) is_accepted: bool,
}

impl TestedBackend {
    /// Kernel programs, by the judgement of the daemon's trial.
    fn new(set: ProgramSet, judged: Result<Judgement, FailureCause>, hooks: Vec<TestedHook>) -> Self {
        let (usable, is_accepted, reason) = match judged {
            Ok(Judgement::Runs) => (true, true, None),
            Ok(Judgement::RunsLater(reason)) => (false, true, Some(reason.to_string())),
            Ok(Judgement::Blind(reason)) => (false, false, Some(reason.to_string())),
            Err(cause) => (false, false, Some(cause.to_string())),
        };
        Self { mode: set.into(), usable, reason, hooks, is_accepted }
    }
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
    let active = trial::lsm_is_active();
    let programs = |set| test_programs(set, active, &directory.0);
    Ok(vec![programs(ProgramSet::Lsm), programs(ProgramSet::Fentry), test_fanotify(observer)])
}

/// Tries a set of programs as the daemon does, but leaves no programs behind. It also loads LSM programs that the kernel does
/// not call, to show the state of their hooks.
fn test_programs(set: ProgramSet, active: Option<bool>, directory: &Path) -> TestedBackend {
    let mut backlog = Vec::new();
    let tried = trial::try_programs(set, active, &[directory], None, Some(0), &mut backlog);
    let (judged, hooks) = match tried {
        Ok(tried) => {
            let hooks = tried.sensor.hooks.iter();
            let hooks = hooks.map(|(hook, state)| TestedHook::new(hook, state.clone())).collect();
            tried.sensor.detach();
            (Ok(tried.judgement), hooks)
        }
        Err(cause) => (Err(cause), Vec::new()),
    };
    // The reason of a failed load says more than that the kernel would not call the programs.
    let judged =
        judged.and_then(|judgement| trial::cause_without_trial(set, active).map_or(Ok(judgement), Err));
    TestedBackend::new(set, judged, hooks)
}

fn test_fanotify(observer: &Arc<Observer>) -> TestedBackend {
    let reason = FanotifyBackend::new(Arc::clone(observer), Arc::new(SystemClock))
        .err()
        .map(|error| error.to_string());
    let usable = reason.is_none();
    TestedBackend { mode: BackendName::Fanotify, usable, reason, hooks: Vec::new(), is_accepted: usable }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sensor_model::protocol::GapReason;

    #[test]
    fn a_backend_is_accepted_exactly_if_the_daemon_would_use_it() {
        let tested = |judged| {
            let tested = TestedBackend::new(ProgramSet::Fentry, judged, Vec::new());
            (tested.usable, tested.is_accepted, tested.reason)
        };
        let reason = GapReason::FtraceDisabled;
        assert_eq!(tested(Ok(Judgement::Runs)), (true, true, None));
        assert_eq!(tested(Ok(Judgement::RunsLater(reason))), (false, true, Some(reason.to_string())));
        assert_eq!(tested(Ok(Judgement::Blind(reason))), (false, false, Some(reason.to_string())));
        let inactive = FailureCause::InactiveLsm;
        let text = inactive.to_string();
        assert_eq!(tested(Err(inactive)), (false, false, Some(text)));
    }
}
