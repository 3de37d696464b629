//! Choosing a backend: by what loads and fires, never by a version.
//!
//! In: a state directory for the canary. Out: a loaded sensor whose canary was heard, or every reason
//! why there is none.

use super::canary::{Canary, Pulse};
use super::look::Witness;
use crate::attribution::{NoTable, ProcessTable};
use crate::clock::Clock;
use crate::event;
use crate::fanotify::{BLIND_SPOTS, FanotifyBackend};
use crate::kernel::hooks::Mode;
use crate::kernel::load::{self, HookState, Sensor};
use crate::kernel::maps::{ProcessMaps, Ring};
use crate::kernel::recursion::Recursion;
use crate::metrics::HookMode;
use crate::observation::Observer;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;

/// Records read while the canary is tried: a full ring of an earlier run, whose canary must fit as well.
const BACKLOG: usize = 8192;

/// What tells of changes.
#[derive(Debug)]
pub enum Backend {
    /// Kernel programs that were heard.
    Programs(Box<Programs>),
    /// Fanotify, and why no program works.
    Fanotify(Box<FanotifyBackend>),
}

/// Kernel programs that were heard.
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
    pub backlog: Vec<Vec<u8>>,
    /// The canary.
    pub canary: Canary,
    /// Nothing was missed since the last run.
    pub adopted: bool,
}

/// Tries LSM, then fentry, then fanotify. `Err` holds one reason for each.
pub fn choose(
    state: &Path,
    pins: Option<&Path>,
    observer: &Arc<Observer>,
    clock: &Arc<dyn Clock>,
) -> Result<Backend, Vec<String>> {
    let mut reasons = Vec::new();
    for mode in [Mode::Lsm, Mode::Fentry] {
        match attempt(mode, state, pins, observer) {
            Ok(programs) => return Ok(Backend::Programs(programs)),
            Err(reason) => {
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
            Err(reasons)
        }
    }
}

fn attempt(
    mode: Mode,
    state: &Path,
    pins: Option<&Path>,
    observer: &Observer,
) -> Result<Box<Programs>, String> {
    let loaded = load::load(mode, pins).map_err(|error| error.to_string())?;
    let mut witness = Witness::new(loaded.maps);
    let mut ring = loaded.ring;
    let mut canary = Canary::new(state, observer, &mut witness).map_err(|error| error.to_string())?;
    canary.sing(observer, &mut witness);
    let mut backlog = Vec::new();
    // What a longer backlog leaves in the ring is read by the loop.
    ring.drain(BACKLOG, |bytes| {
        match event::decode(bytes) {
            Ok(change) if change.record.id == super::canary::CANARY_ID => canary.heard(),
            // Malformed ones too: they are counted where all records are.
            _ => backlog.push(bytes.to_vec()),
        }
    });
    match canary.listen(&mut witness) {
        Pulse::Alive => Ok(Box::new(Programs {
            sensor: loaded.sensor,
            witness,
            processes: loaded.processes,
            ring,
            backlog,
            canary,
            adopted: loaded.adopted,
        })),
        Pulse::Blind(reason) => {
            for (hook, state) in &loaded.sensor.hooks {
                if let HookState::Off(why) = state {
                    tracing::warn!(hook, why, "This hook is off.");
                }
            }
            loaded.sensor.detach(pins);
            Err(reason)
        }
    }
}

/// Where changes are read.
pub(super) enum Changes {
    Ring(Ring),
    Fanotify(Box<FanotifyBackend>),
}

impl AsRawFd for Changes {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Ring(ring) => ring.as_raw_fd(),
            Self::Fanotify(backend) => backend.as_raw_fd(),
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
    pub(super) backlog: Vec<Vec<u8>>,
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
                changes: Changes::Ring(programs.ring),
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
