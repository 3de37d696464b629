//! The trial of one set of kernel programs: they are loaded, and have to answer the canary.
//!
//! In: how to attach them, directories for the canary. Out: the programs, and whether a daemon may use them. The daemon chooses its
//! backend by this trial, and `holdfast doctor` tests each backend by it, so the two never disagree.

use super::canary::{CANARY_ID, Canary, CanaryState};
use super::kernel_programs::KernelPrograms;
use crate::event;
use crate::kernel::hooks::ProgramSet;
use crate::kernel::load::{self, AttachedPrograms, LoadError};
use crate::kernel::maps::{MapsError, ProcessMaps, Rings};
use bytes::Bytes;
use sensor_common::map::Counter;
use sensor_model::protocol::GapReason;
use std::fs;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread;

/// Records read before and after each canary write: more than a full ring holds.
const BACKLOG: usize = 8192;

/// The security modules that this kernel calls, in their order.
const SECURITY_MODULES: &str = "/sys/kernel/security/lsm";

/// Canary writes that a trial makes while other processes fill the ring faster than it reads.
const ATTEMPTS: usize = 3;

/// Why a set of programs does not work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FailureCause {
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

/// Whether a daemon may use a set of programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// The programs run.
    Runs,
    /// The programs run once function tracing is switched on again. Until then no change arrives, for this reason.
    RunsLater(GapReason),
    /// The programs do not run, for this reason.
    Blind(GapReason),
}

/// A set of programs after its trial.
#[derive(Debug)]
pub(crate) struct Trial {
    /// Programs and links.
    pub(crate) sensor: AttachedPrograms,
    /// Their maps, and their answers to observations.
    pub(crate) kernel: KernelPrograms,
    /// Process cache.
    pub(crate) processes: ProcessMaps,
    /// Changes.
    pub(crate) ring: Rings,
    /// The canary.
    pub(crate) canary: Canary,
    /// The programs of an earlier daemon were attached all the time, so no change was missed.
    pub(crate) adopted: bool,
    /// Whether a daemon may use them.
    pub(crate) judgement: Judgement,
}

/// Loads one set of programs and tries the canary. `active`: whether the kernel calls LSM programs, if that is known. `backlog`
/// receives the other records of the ring.
///
/// # Errors
/// The programs cannot be loaded, or their maps cannot be used.
pub(crate) fn try_programs(
    set: ProgramSet,
    active: Option<bool>,
    directories: &[&Path],
    pins: Option<&Path>,
    things: Option<usize>,
    backlog: &mut Vec<Bytes>,
) -> Result<Trial, FailureCause> {
    let loaded = in_a_thread(|| load::load(set, pins, things))?;
    let mut kernel = KernelPrograms::new(loaded.maps);
    let mut ring = loaded.ring;
    let mut canary = Canary::new(directories, &mut kernel)?;
    let mut state = CanaryState::Alive;
    for _ in 0..ATTEMPTS {
        let lost = lost_records(&mut kernel)?;
        // Records from the time without a daemon come first, because a full ring has no room for the canary's record.
        read(&mut ring, &mut canary, backlog);
        canary.write(&mut kernel);
        read(&mut ring, &mut canary, backlog);
        state = canary.check(&mut kernel);
        if state == CanaryState::RecordLost && lost_records(&mut kernel)? == lost {
            state = CanaryState::Blind(GapReason::CanaryNotReceived);
        }
        if state != CanaryState::RecordLost {
            break;
        }
    }
    Ok(Trial {
        judgement: judge(&state, set, active, loaded.adopted),
        sensor: loaded.sensor,
        kernel,
        processes: loaded.processes,
        ring,
        canary,
        adopted: loaded.adopted,
    })
}

/// The judgement after the last canary write. If only the record of its change was lost, other processes fill the ring. The
/// programs run, and the sweep after a loss finds those changes.
fn judge(state: &CanaryState, set: ProgramSet, active: Option<bool>, adopted: bool) -> Judgement {
    match *state {
        CanaryState::Alive | CanaryState::RecordLost => Judgement::Runs,
        CanaryState::Blind(reason @ GapReason::FtraceDisabled)
            if set == ProgramSet::Fentry || adopted || active == Some(true) =>
        {
            Judgement::RunsLater(reason)
        }
        CanaryState::Blind(reason) => Judgement::Blind(reason),
    }
}

/// Whether the kernel calls programs on security hooks. `None` if that is not known.
pub(crate) fn lsm_is_active() -> Option<bool> {
    is_lsm_active(Path::new(SECURITY_MODULES))
}

/// Why no trial of a set can succeed; `None` if only a trial shows it.
pub(crate) fn cause_without_trial(set: ProgramSet, active: Option<bool>) -> Option<FailureCause> {
    (set == ProgramSet::Lsm && active == Some(false)).then_some(FailureCause::InactiveLsm)
}

/// Whether `bpf` is among the active modules. `None` if the list cannot be read, for example without securityfs: then only a canary
/// write shows it.
fn is_lsm_active(modules: &Path) -> Option<bool> {
    let modules = fs::read_to_string(modules).ok()?;
    Some(modules.trim().split(',').any(|module| module == "bpf"))
}

/// Runs work that needs much memory on a thread of its own, because the allocator returns a thread's memory when the thread
/// ends. The kernel's types take tens of megabytes while the daemon reads them.
fn in_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(done) => done,
        Err(panic) => resume_unwind(panic),
    })
}

fn lost_records(kernel: &mut KernelPrograms) -> Result<u64, MapsError> {
    kernel.maps().count(Counter::Lost)
}

/// Reads records into the backlog. The loop reads what a longer backlog leaves in the ring.
fn read(ring: &mut Rings, canary: &mut Canary, backlog: &mut Vec<Bytes>) {
    ring.drain(BACKLOG, |bytes| match event::decode(bytes) {
        Ok(change) if change.record.id == CANARY_ID => canary.received(),
        // Malformed records too: `receive` counts them.
        _ => backlog.push(Bytes::copy_from_slice(bytes)),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_full_ring_is_no_failure_and_programs_without_tracing_are_kept_only_if_they_will_run() {
        let judged = |state, set, active, adopted| judge(&state, set, active, adopted);
        assert_eq!(judged(CanaryState::Alive, ProgramSet::Lsm, None, false), Judgement::Runs);
        assert_eq!(judged(CanaryState::RecordLost, ProgramSet::Fentry, None, false), Judgement::Runs);
        let not_received = CanaryState::Blind(GapReason::CanaryNotReceived);
        let blind = Judgement::Blind(GapReason::CanaryNotReceived);
        assert_eq!(judged(not_received, ProgramSet::Fentry, Some(true), true), blind);
        let off = || CanaryState::Blind(GapReason::FtraceDisabled);
        let later = Judgement::RunsLater(GapReason::FtraceDisabled);
        assert_eq!(judged(off(), ProgramSet::Fentry, None, false), later);
        assert_eq!(judged(off(), ProgramSet::Lsm, Some(true), false), later);
        assert_eq!(judged(off(), ProgramSet::Lsm, None, true), later);
        // Nothing shows whether the kernel would ever call these programs.
        assert_eq!(judged(off(), ProgramSet::Lsm, None, false), Judgement::Blind(GapReason::FtraceDisabled));
    }

    #[test]
    fn only_lsm_programs_need_an_active_security_module() {
        let cause = |set, active| cause_without_trial(set, active).is_some();
        assert!(cause(ProgramSet::Lsm, Some(false)));
        assert!(
            !cause(ProgramSet::Lsm, Some(true))
                && !cause(ProgramSet::Lsm, None)
                && !cause(ProgramSet::Fentry, Some(false))
        );
    }
}
