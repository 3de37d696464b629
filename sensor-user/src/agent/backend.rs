//! Choosing a backend: by what loads and fires, never by a version.
//!
//! In: a state directory for the canary. Out: a loaded sensor that answers the canary, or every reason why there is none.

use super::canary::{Canary, CanaryState};
use super::reasons::{CANARY_NOT_HEARD, FTRACE_DISABLED};
use super::reports::HookMode;
use super::verifier::Witness;
use crate::attribution::{NoTable, ProcessTable};
use crate::clock::Clock;
use crate::event;
use crate::fanotify::{BLIND_SPOTS, FanotifyBackend};
use crate::kernel::hooks::Mode;
use crate::kernel::load::{self, HookState, Sensor};
use crate::kernel::maps::{ProcessMaps, Ring};
use crate::kernel::recursion::Recursion;
use crate::observation::Observer;
use bytes::Bytes;
use sensor_common::map::Counter;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// Records read before and after each canary that is tried: more than a full ring.
const BACKLOG: usize = 8192;

/// The security modules that this kernel calls, in their order.
const SECURITY_MODULES: &str = "/sys/kernel/security/lsm";

/// Canaries that are tried while others fill the ring faster than it is read.
const ATTEMPTS: usize = 3;

/// What detects changes.
#[derive(Debug)]
pub enum Backend {
    /// Kernel programs that answer the canary.
    Programs(Box<Programs>),
    /// Fanotify, and why no program works.
    Fanotify(Box<FanotifyBackend>),
}

/// Kernel programs that answer the canary.
#[derive(Debug)]
pub struct Programs {
    /// Programs and links.
    pub sensor: Sensor,
    /// Managed inodes.
    pub witness: Witness,
    /// Process cache.
    pub processes: ProcessMaps,
    /// Changes.
    pub ring: Ring,
    /// Records that came in while the canary was tried.
    pub backlog: Vec<Bytes>,
    /// The canary.
    pub canary: Canary,
    /// Nothing was missed since the last run.
    pub adopted: bool,
}

/// No backend works on this host, with one reason for each.
#[derive(Debug, thiserror::Error)]
#[error("no backend works on this host: {}", .0.join("; "))]
pub struct NoBackend(Vec<String>);

/// Tries LSM where the kernel calls it, then fentry, then fanotify. The canary file is in the first of the `directories` that
/// can be written to. `things`: how many are declared, if that is known.
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
    let mut reasons = Vec::new();
    let mut backlog = Vec::new();
    let active = is_lsm_active(Path::new(SECURITY_MODULES));
    if active == Some(false) {
        let reason = format!("`bpf` is not among the active security modules ({SECURITY_MODULES})");
        tracing::info!(reason, "The LSM programs are not tried.");
        reasons.push(format!("{}: {reason}", Mode::Lsm.prefix()));
    }
    let modes =
        [Mode::Lsm, Mode::Fentry].into_iter().filter(|mode| *mode != Mode::Lsm || active != Some(false));
    for mode in modes {
        let mut tried = attempt(mode, active, directories, pins, things, observer, &mut backlog);
        if let Err(Failure { reason, adopted: true }) = &tried {
            tracing::warn!(mode = mode.prefix(), reason, "The programs of an earlier daemon do not answer.");
            tried = attempt(mode, active, directories, pins, things, observer, &mut backlog);
        }
        match tried {
            Ok(programs) => return Ok(Backend::Programs(programs)),
            Err(Failure { reason, .. }) => {
                tracing::warn!(mode = mode.prefix(), reason, "This backend does not work here.");
                reasons.push(format!("{}: {reason}", mode.prefix()));
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
            reasons.push(format!("fanotify: {error}"));
            Err(NoBackend(reasons))
        }
    }
}

/// Runs something that needs much memory for a while on a thread of its own: when a thread ends, the allocator gives back
/// what it would keep for later. The kernel's types take tens of megabytes while they are read.
fn in_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(done) => done,
        Err(panic) => resume_unwind(panic),
    })
}

/// Why a set of programs does not work.
struct Failure {
    reason: String,
    /// Programs of an earlier daemon were among them. They are detached by now, and new ones may work.
    adopted: bool,
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self { reason, adopted: false }
    }
}

/// `backlog`: what was read of the ring; also of a set of programs that did not work out, because its records tell who
/// changed what while no daemon ran.
fn attempt(
    mode: Mode,
    active: Option<bool>,
    directories: &[&Path],
    pins: Option<&Path>,
    things: Option<usize>,
    observer: &Observer,
    backlog: &mut Vec<Bytes>,
) -> Result<Box<Programs>, Failure> {
    let loaded = in_a_thread(|| load::load(mode, pins, things)).map_err(|error| error.to_string())?;
    let mut witness = Witness::new(loaded.maps);
    let mut ring = loaded.ring;
    let mut canary = Canary::new(directories, observer, &mut witness).map_err(|error| error.to_string())?;
    let mut state = CanaryState::Alive;
    for _ in 0..ATTEMPTS {
        let lost = lost(&mut witness)?;
        // What came while no daemon ran goes first: in a full ring there is no room for the canary.
        read(&mut ring, &mut canary, backlog);
        canary.write(observer, &mut witness);
        read(&mut ring, &mut canary, backlog);
        state = canary.check(&mut witness);
        if state == CanaryState::RecordLost && self::lost(&mut witness)? == lost {
            state = CanaryState::Blind(CANARY_NOT_HEARD);
        }
        if state != CanaryState::RecordLost {
            break;
        }
    }
    if let CanaryState::Blind(reason) = state {
        let runs_later =
            reason == FTRACE_DISABLED && (mode == Mode::Fentry || loaded.adopted || active == Some(true));
        if !runs_later {
            for (hook, state) in &loaded.sensor.hooks {
                if let HookState::Off(why) = state {
                    tracing::warn!(hook, ?why, "This hook is off.");
                }
            }
            let adopted = loaded.sensor.has_adopted();
            loaded.sensor.detach();
            return Err(Failure { reason: reason.to_owned(), adopted });
        }
        // Once tracing is switched on again. Until then no verdict is compliant, and other sets stay attached.
        canary.begins_blind();
    } else {
        // The programs run: they answered the daemon's look at the canary, which no other set does. Where the record of its
        // change found no room, others fill the ring, and the sweep after a loss finds what they did.
        loaded.sensor.retire_others();
    }
    let adopted = loaded.adopted && !canary.is_blind();
    Ok(Box::new(Programs {
        sensor: loaded.sensor,
        witness,
        processes: loaded.processes,
        ring,
        backlog: std::mem::take(backlog),
        canary,
        adopted,
    }))
}

/// Whether the kernel calls programs on security hooks: `bpf` is among the active modules. `None` where the list cannot be
/// read, as without securityfs: then only a try shows it.
fn is_lsm_active(modules: &Path) -> Option<bool> {
    let modules = fs::read_to_string(modules).ok()?;
    Some(modules.trim().split(',').any(|module| module == "bpf"))
}

fn lost(witness: &mut Witness) -> Result<u64, String> {
    witness.maps().count(Counter::Lost).map_err(|error| error.to_string())
}

/// What a longer backlog leaves in the ring is read by the loop.
fn read(ring: &mut Ring, canary: &mut Canary, backlog: &mut Vec<Bytes>) {
    ring.drain(BACKLOG, |bytes| match event::decode(bytes) {
        Ok(change) if change.record.id == super::canary::CANARY_ID => canary.received(),
        // Malformed ones too: they are counted where all records are.
        _ => backlog.push(Bytes::copy_from_slice(bytes)),
    });
}

/// Where changes are read.
pub(super) enum Changes {
    Ring(Box<Ring>),
    Fanotify(Box<FanotifyBackend>),
    /// A test makes the changes known itself.
    #[cfg(test)]
    Test,
}

impl Changes {
    /// What becomes readable when there are alarms, where these come apart from other changes.
    pub(super) fn alarms(&self) -> io::Result<Option<OwnedFd>> {
        match self {
            Self::Ring(ring) => ring.alarms().map(Some),
            Self::Fanotify(_) => Ok(None),
            #[cfg(test)]
            Self::Test => Ok(None),
        }
    }
}

impl AsRawFd for Changes {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Ring(ring) => ring.as_raw_fd(),
            Self::Fanotify(backend) => backend.as_raw_fd(),
            #[cfg(test)]
            Self::Test => -1,
        }
    }
}

/// A backend, taken apart.
pub(super) struct Parts {
    pub(super) mode: HookMode,
    pub(super) sensor: Option<Sensor>,
    pub(super) witness: Option<Witness>,
    pub(super) canary: Option<Canary>,
    /// Where the programs are of the kind that can be left out.
    pub(super) recursion: Option<Recursion>,
    pub(super) processes: Box<dyn ProcessTable>,
    pub(super) changes: Changes,
    pub(super) backlog: Vec<Bytes>,
    pub(super) adopted: bool,
}

impl Parts {
    pub(super) fn of(backend: Backend) -> Self {
        match backend {
            Backend::Programs(programs) => Self {
                mode: match programs.sensor.mode {
                    Mode::Lsm => HookMode::Lsm,
                    Mode::Fentry => HookMode::Fentry,
                },
                sensor: Some(programs.sensor),
                witness: Some(programs.witness),
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
                witness: None,
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
    fn the_list_of_security_modules_decides_and_without_it_nothing_is_decided() {
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
