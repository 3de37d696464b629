//! The choice of a backend: the first one that loads and reports the canary's change. No version decides.
//!
//! In: directories for the canary. Out: a loaded sensor that answers the canary, or the cause for each backend that does not. It
//! owns nothing after the choice.

use super::canary::Canary;
use super::changes::Changes;
use super::kernel_programs::KernelPrograms;
use super::reports::BackendName;
use super::trial::{FailureCause, Judgement, cause_without_trial, lsm_is_active, try_programs};
use crate::attribution::{NoTable, ProcessTable};
use crate::clock::Clock;
use crate::fanotify::{BLIND_SPOTS, FanotifyBackend, FanotifyError};
use crate::kernel::hooks::ProgramSet;
use crate::kernel::load::{AttachedPrograms, HookState};
use crate::kernel::maps::{ProcessMaps, Rings};
use crate::kernel::recursion::Recursion;
use crate::observation::Observer;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;

/// The source of changes.
#[derive(Debug)]
pub enum Backend {
    /// Kernel programs that answer the canary.
    Programs(Box<ProgramBackend>),
    /// Fanotify, because no program works.
    Fanotify(Box<FanotifyBackend>),
}

/// Kernel programs that answer the canary.
#[derive(Debug)]
pub struct ProgramBackend {
    /// Programs and links.
    pub sensor: AttachedPrograms,
    /// Their maps, and their answers to observations.
    pub kernel: KernelPrograms,
    /// Process cache.
    pub processes: ProcessMaps,
    /// Changes.
    pub ring: Rings,
    /// Records that arrived while the daemon tried the canary.
    pub backlog: Vec<Bytes>,
    /// The canary.
    pub canary: Canary,
    /// The programs of an earlier daemon were attached all the time, so no change was missed.
    pub adopted: bool,
}

/// No backend works on this host, with the cause for each.
#[derive(Debug, thiserror::Error)]
#[error("no backend works on this host: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct NoBackend(Vec<UnusableBackend>);

/// One backend does not work on this host.
#[derive(Debug, thiserror::Error)]
enum UnusableBackend {
    /// Kernel programs.
    #[error("{}: {cause}", set.prefix())]
    Programs {
        /// Their set.
        set: ProgramSet,
        /// Why they do not work.
        cause: Box<FailureCause>,
    },
    /// Fanotify.
    #[error("fanotify: {0}")]
    Fanotify(#[source] FanotifyError),
}

/// Tries LSM if the kernel calls it, then fentry, then fanotify. The canary file is in the first of the `directories` that the
/// daemon can write to. `things`: how many are declared, if that is known.
///
/// # Errors
/// None of them works.
pub fn choose(
    directories: &[&Path],
    pins: Option<&Path>,
    things: Option<usize>,
    observer: &Arc<Observer>,
    clock: &Arc<dyn Clock>,
) -> Result<Backend, NoBackend> {
    let mut unusable = Vec::new();
    let mut backlog = Vec::new();
    let active = lsm_is_active();
    for set in [ProgramSet::Lsm, ProgramSet::Fentry] {
        if let Some(cause) = cause_without_trial(set, active) {
            tracing::info!(reason = %cause, "The daemon does not try the LSM programs.");
            unusable.push(UnusableBackend::Programs { set, cause: Box::new(cause) });
            continue;
        }
        let mut tried = attempt(set, active, directories, pins, things, &mut backlog);
        if let Err(Failure { cause, adopted: true }) = &tried {
            tracing::warn!(set = set.prefix(), reason = %cause, "The programs of an earlier daemon do not answer.");
            tried = attempt(set, active, directories, pins, things, &mut backlog);
        }
        match tried {
            Ok(programs) => return Ok(Backend::Programs(programs)),
            Err(Failure { cause, .. }) => {
                tracing::warn!(set = set.prefix(), reason = %cause, "This backend does not work here.");
                unusable.push(UnusableBackend::Programs { set, cause });
            }
        }
    }
    match FanotifyBackend::new(Arc::clone(observer), Arc::clone(clock)) {
        Ok(backend) => {
            for unseen in BLIND_SPOTS {
                tracing::warn!(unseen, "Detection runs on fanotify.");
            }
            Ok(Backend::Fanotify(Box::new(backend)))
        }
        Err(error) => {
            unusable.push(UnusableBackend::Fanotify(error));
            Err(NoBackend(unusable))
        }
    }
}

/// A set of programs does not work.
struct Failure {
    cause: Box<FailureCause>,
    /// Programs of an earlier daemon were among them. They are detached now, and new ones may work.
    adopted: bool,
}

impl<E: Into<FailureCause>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { cause: Box::new(error.into()), adopted: false }
    }
}

/// Loads one set of programs and tries the canary. `backlog` receives the records of the ring, also of a set that does not
/// work: they name the actors of changes while no daemon ran.
fn attempt(
    set: ProgramSet,
    active: Option<bool>,
    directories: &[&Path],
    pins: Option<&Path>,
    things: Option<usize>,
    backlog: &mut Vec<Bytes>,
) -> Result<Box<ProgramBackend>, Failure> {
    let mut tried = try_programs(set, active, directories, pins, things, backlog)?;
    match tried.judgement {
        Judgement::Blind(reason) => {
            for (hook, state) in &tried.sensor.hooks {
                if let HookState::Off(why) = state {
                    tracing::warn!(hook, ?why, "This hook is off.");
                }
            }
            let adopted = tried.sensor.has_adopted();
            tried.sensor.detach();
            return Err(Failure { cause: Box::new(FailureCause::Blind(reason)), adopted });
        }
        // Until the programs run, no verdict is compliant, and other sets stay attached.
        Judgement::RunsLater(_) => tried.canary.set_began_blind(),
        // Those of an earlier daemon stay attached until everything is enrolled: until then they alone enforce the deny rules.
        Judgement::Runs => {}
    }
    let adopted = tried.adopted && !tried.canary.has_begun_blind();
    Ok(Box::new(ProgramBackend {
        sensor: tried.sensor,
        kernel: tried.kernel,
        processes: tried.processes,
        ring: tried.ring,
        backlog: std::mem::take(backlog),
        canary: tried.canary,
        adopted,
    }))
}

/// The parts of a backend that the loop owns separately.
pub(super) struct BackendParts {
    pub(super) backend: BackendName,
    pub(super) sensor: Option<AttachedPrograms>,
    pub(super) kernel: Option<KernelPrograms>,
    pub(super) canary: Option<Canary>,
    /// Only for fentry programs, whose calls the kernel may skip.
    pub(super) recursion: Option<Recursion>,
    pub(super) processes: Box<dyn ProcessTable>,
    pub(super) changes: Changes,
    pub(super) backlog: Vec<Bytes>,
    pub(super) adopted: bool,
}

impl BackendParts {
    pub(super) fn of(backend: Backend) -> Self {
        match backend {
            Backend::Programs(programs) => Self {
                backend: programs.sensor.set.into(),
                sensor: Some(programs.sensor),
                kernel: Some(programs.kernel),
                canary: Some(programs.canary),
                recursion: None,
                processes: Box::new(programs.processes),
                changes: Changes::Ring(Box::new(programs.ring)),
                backlog: programs.backlog,
                adopted: programs.adopted,
            },
            Backend::Fanotify(backend) => Self {
                backend: BackendName::Fanotify,
                sensor: None,
                kernel: None,
                canary: None,
                recursion: None,
                processes: Box::new(NoTable),
                changes: Changes::Fanotify(backend),
                backlog: Vec::new(),
                adopted: false,
            },
        }
    }
}
