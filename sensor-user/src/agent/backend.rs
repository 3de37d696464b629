//! The choice of a backend: the first one that loads and reports the canary's change. No version decides.
//!
//! In: directories for the canary. Out: a loaded sensor that answers the canary, or the cause for each backend that does not. It
//! owns nothing after the choice.

use super::canary::{Canary, CanaryState};
use super::changes::Changes;
use super::kernel_programs::KernelPrograms;
use super::reports::HookMode;
use crate::attribution::{NoTable, ProcessTable};
use crate::clock::Clock;
use crate::event;
use crate::fanotify::{BLIND_SPOTS, FanotifyBackend, FanotifyError};
use crate::kernel::hooks::Mode;
use crate::kernel::load::{self, AttachedPrograms, HookState, LoadError};
use crate::kernel::maps::{MapsError, ProcessMaps, Rings};
use crate::kernel::recursion::Recursion;
use crate::observation::Observer;
use bytes::Bytes;
use sensor_common::map::Counter;
use sensor_model::protocol::GapReason;
use std::fs;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// Records read before and after each canary write: more than a full ring holds.
const BACKLOG: usize = 8192;

/// The security modules that this kernel calls, in their order.
const SECURITY_MODULES: &str = "/sys/kernel/security/lsm";

/// Canary writes that the daemon tries while other processes fill the ring faster than it reads.
const ATTEMPTS: usize = 3;

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
    #[error("{}: {cause}", mode.prefix())]
    Programs {
        /// How they were to be attached.
        mode: Mode,
        /// Why they do not work.
        cause: Box<FailureCause>,
    },
    /// Fanotify.
    #[error("fanotify: {0}")]
    Fanotify(#[source] FanotifyError),
}

/// Why a set of programs does not work.
#[derive(Debug, thiserror::Error)]
enum FailureCause {
    /// The kernel calls no LSM program.
    #[error("`bpf` is not among the active security modules ({SECURITY_MODULES})")]
    InactiveLsm,
    /// The programs cannot be loaded or attached.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Their maps cannot be read or written.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// They do not report the canary's change.
    #[error("{0}")]
    Blind(GapReason),
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
    let active = is_lsm_active(Path::new(SECURITY_MODULES));
    if active == Some(false) {
        let cause = Box::new(FailureCause::InactiveLsm);
        tracing::info!(reason = %cause, "The daemon does not try the LSM programs.");
        unusable.push(UnusableBackend::Programs { mode: Mode::Lsm, cause });
    }
    let modes =
        [Mode::Lsm, Mode::Fentry].into_iter().filter(|mode| *mode != Mode::Lsm || active != Some(false));
    for mode in modes {
        let mut tried = attempt(mode, active, directories, pins, things, observer, &mut backlog);
        if let Err(Failure { cause, adopted: true }) = &tried {
            tracing::warn!(mode = mode.prefix(), reason = %cause, "The programs of an earlier daemon do not answer.");
            tried = attempt(mode, active, directories, pins, things, observer, &mut backlog);
        }
        match tried {
            Ok(programs) => return Ok(Backend::Programs(programs)),
            Err(Failure { cause, .. }) => {
                tracing::warn!(mode = mode.prefix(), reason = %cause, "This backend does not work here.");
                unusable.push(UnusableBackend::Programs { mode, cause });
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

/// Runs work that needs much memory on a thread of its own, because the allocator returns a thread's memory when the thread
/// ends. The kernel's types take tens of megabytes while the daemon reads them.
fn in_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(done) => done,
        Err(panic) => resume_unwind(panic),
    })
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
    mode: Mode,
    active: Option<bool>,
    directories: &[&Path],
    pins: Option<&Path>,
    things: Option<usize>,
    observer: &Observer,
    backlog: &mut Vec<Bytes>,
) -> Result<Box<ProgramBackend>, Failure> {
    let loaded = in_a_thread(|| load::load(mode, pins, things))?;
    let mut kernel = KernelPrograms::new(loaded.maps);
    let mut ring = loaded.ring;
    let mut canary = Canary::new(directories, observer, &mut kernel)?;
    let mut state = CanaryState::Alive;
    for _ in 0..ATTEMPTS {
        let lost = lost_records(&mut kernel)?;
        // Records from the time without a daemon come first, because a full ring has no room for the canary's record.
        read(&mut ring, &mut canary, backlog);
        canary.write(observer, &mut kernel);
        read(&mut ring, &mut canary, backlog);
        state = canary.check(&mut kernel);
        if state == CanaryState::RecordLost && lost_records(&mut kernel)? == lost {
            state = CanaryState::Blind(GapReason::CanaryNotReceived);
        }
        if state != CanaryState::RecordLost {
            break;
        }
    }
    if let CanaryState::Blind(reason) = state {
        let runs_later = reason == GapReason::FtraceDisabled
            && (mode == Mode::Fentry || loaded.adopted || active == Some(true));
        if !runs_later {
            for (hook, state) in &loaded.sensor.hooks {
                if let HookState::Off(why) = state {
                    tracing::warn!(hook, ?why, "This hook is off.");
                }
            }
            let adopted = loaded.sensor.has_adopted();
            loaded.sensor.detach();
            return Err(Failure { cause: Box::new(FailureCause::Blind(reason)), adopted });
        }
        // The programs run once tracing is switched on again. Until then no verdict is compliant, and other sets stay attached.
        canary.set_began_blind();
    } else {
        // The programs run: they answered the daemon's observation of the canary, which no other set does. If the record of its
        // change was lost, other processes fill the ring, and the sweep after a loss finds their changes.
        loaded.sensor.retire_others();
    }
    let adopted = loaded.adopted && !canary.has_begun_blind();
    Ok(Box::new(ProgramBackend {
        sensor: loaded.sensor,
        kernel,
        processes: loaded.processes,
        ring,
        backlog: std::mem::take(backlog),
        canary,
        adopted,
    }))
}

/// Whether the kernel calls programs on security hooks: `bpf` is among the active modules. `None` if the list cannot be read,
/// for example without securityfs: then only a canary write shows it.
fn is_lsm_active(modules: &Path) -> Option<bool> {
    let modules = fs::read_to_string(modules).ok()?;
    Some(modules.trim().split(',').any(|module| module == "bpf"))
}

fn lost_records(kernel: &mut KernelPrograms) -> Result<u64, MapsError> {
    kernel.maps().count(Counter::Lost)
}

/// Reads records into the backlog. The loop reads what a longer backlog leaves in the ring.
fn read(ring: &mut Rings, canary: &mut Canary, backlog: &mut Vec<Bytes>) {
    ring.drain(BACKLOG, |bytes| match event::decode(bytes) {
        Ok(change) if change.record.id == super::canary::CANARY_ID => canary.received(),
        // Malformed records too: `receive` counts them.
        _ => backlog.push(Bytes::copy_from_slice(bytes)),
    });
}

/// The parts of a backend that the loop owns separately.
pub(super) struct BackendParts {
    pub(super) mode: HookMode,
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
                mode: match programs.sensor.mode {
                    Mode::Lsm => HookMode::Lsm,
                    Mode::Fentry => HookMode::Fentry,
                },
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
                mode: HookMode::Fanotify,
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

#[cfg(test)]
mod tests {
    use super::is_lsm_active;

    #[test]
    fn the_list_of_security_modules_decides_and_an_unreadable_list_decides_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (list, active) in
            [("lockdown,yama\n", false), ("capability,bpf", true), ("lockdown,bpfilter", false), ("", false)]
        {
            std::fs::write(file.path(), list).unwrap();
            assert_eq!(is_lsm_active(file.path()), Some(active), "{list}");
        }
        assert_eq!(is_lsm_active(&file.path().with_extension("missing")), None);
    }
}
