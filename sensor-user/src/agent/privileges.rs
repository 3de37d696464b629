//! Gives up the capabilities that the daemon needs only to start.
//!
//! In: the backend. Out: a process that has only the capabilities of the table below, in every set, and whose programs can gain no
//! others. Capabilities belong to a thread, so the daemon does this while it has one thread. It never gets one back. No state.

use super::reports::BackendName;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use std::fs;
use std::io;
use std::time::{Duration, Instant};
use thiserror::Error;

/// A capability that the daemon keeps, and its purpose.
#[derive(Debug, Clone, Copy)]
pub struct NeededCapability {
    /// The capability.
    pub capability: CapabilitySet,
    /// Its name in `capabilities(7)`.
    pub name: &'static str,
    /// The work that needs it.
    pub why: &'static str,
    /// When the daemon keeps it.
    pub kept: Kept,
}

/// When the daemon keeps a capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Always.
    Always,
    /// With kernel programs, not with the fanotify backend.
    WithPrograms,
    /// If the daemon may write managed paths.
    ToWrite,
    /// If it may not.
    ToObserve,
}

const fn kept(
    kept: Kept,
    capability: CapabilitySet,
    name: &'static str,
    why: &'static str,
) -> NeededCapability {
    NeededCapability { capability, name, why, kept }
}

/// The capabilities that the daemon keeps after attaching, in the order of the kernel's numbers.
pub const KEPT: [NeededCapability; 10] = [
    kept(Kept::ToWrite, CapabilitySet::CHOWN, "CAP_CHOWN", "give restored files their declared owner"),
    kept(
        Kept::ToWrite,
        CapabilitySet::DAC_OVERRIDE,
        "CAP_DAC_OVERRIDE",
        "read and write back files regardless of their mode",
    ),
    kept(
        Kept::ToObserve,
        CapabilitySet::DAC_READ_SEARCH,
        "CAP_DAC_READ_SEARCH",
        "read files and directories regardless of their mode",
    ),
    kept(
        Kept::ToWrite,
        CapabilitySet::FOWNER,
        "CAP_FOWNER",
        "set mode, times, labels and attributes of files that others own",
    ),
    kept(
        Kept::ToWrite,
        CapabilitySet::FSETID,
        "CAP_FSETID",
        "give restored files their declared setuid and setgid bits",
    ),
    kept(
        Kept::ToWrite,
        CapabilitySet::LINUX_IMMUTABLE,
        "CAP_LINUX_IMMUTABLE",
        "clear an immutable or append-only flag that prevents writing back",
    ),
    kept(
        Kept::Always,
        CapabilitySet::SYS_PTRACE,
        "CAP_SYS_PTRACE",
        "read which program a process with more rights than the daemon runs",
    ),
    kept(
        Kept::ToWrite,
        CapabilitySet::MKNOD,
        "CAP_MKNOD",
        "copy an undeclared device node to a quarantine on another file system",
    ),
    kept(Kept::ToWrite, CapabilitySet::SETFCAP, "CAP_SETFCAP", "remove undeclared file capabilities"),
    kept(
        Kept::WithPrograms,
        CapabilitySet::BPF,
        "CAP_BPF",
        "use the maps before kernel 5.19, and attach the hooks on reads, writes and links while they are needed",
    ),
];

/// The capabilities that the daemon needs to start and then gives up, each with its purpose. `CAP_SYS_ADMIN` includes the rights of
/// `CAP_PERFMON` (`perfmon_capable` in `include/linux/capability.h`).
pub const GIVEN_UP: [(&str, &str); 2] = [
    ("CAP_SETPCAP", "remove capabilities from the bounding set"),
    (
        "CAP_SYS_ADMIN",
        "load the kernel programs; find the fentry programs of an earlier run; open the pins of waiting programs; create a fanotify group",
    ),
];

/// The capabilities that a daemon in a pod needs besides to start, and then gives up.
pub const POD: [(&str, &str); 3] = [
    ("CAP_CHOWN", "give the reporter's group its socket"),
    ("CAP_SYS_CHROOT", "enter the host's mount namespace"),
    ("CAP_SYS_RESOURCE", "lock the memory of maps before kernel 5.11"),
];

/// Capabilities could not be given up.
#[derive(Debug, Error)]
pub enum PrivilegesError {
    /// The process has more than one thread.
    #[error("capabilities can be given up by a single thread only, and there are {0}")]
    Threads(usize),
    /// The kernel refused.
    #[error("cannot {what}: {source}")]
    Refused {
        /// The operation.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The process still has them.
    #[error("capabilities {0:?} were given up and are still there")]
    Still(CapabilitySet),
}

/// The capabilities that the daemon keeps with a backend, if it may write managed paths or only observes them.
pub fn kept_with(backend: BackendName, may_write: bool) -> impl Iterator<Item = &'static NeededCapability> {
    KEPT.iter().filter(move |needed| match needed.kept {
        Kept::Always => true,
        Kept::WithPrograms => backend != BackendName::Fanotify,
        Kept::ToWrite => may_write,
        Kept::ToObserve => !may_write,
    })
}

/// The names of the capabilities of a set, those of [`KEPT`] first.
pub fn names(set: CapabilitySet) -> Vec<String> {
    let known = KEPT.iter().filter(|kept| set.contains(kept.capability)).map(|kept| kept.name.to_owned());
    let rest = set.difference(all(KEPT.iter()));
    known.chain(rest.iter_names().map(|(name, _)| format!("CAP_{name}"))).collect()
}

fn all<'a>(kept: impl Iterator<Item = &'a NeededCapability>) -> CapabilitySet {
    kept.fold(CapabilitySet::empty(), |set, kept| set.union(kept.capability))
}

/// Gives up every capability that this backend, and writing managed paths if it may, do not need: in the effective, permitted, inheritable, ambient and bounding sets.
/// Also gives up the right to gain any by executing a program. Returns the names of those that the process still has: fewer than
/// [`kept_with`] gives if it was started with fewer.
pub fn give_up(backend: BackendName, may_write: bool) -> Result<Vec<String>, PrivilegesError> {
    alone()?;
    let refused =
        |what| move |errno: rustix::io::Errno| PrivilegesError::Refused { what, source: errno.into() };
    set_no_new_privs(true).map_err(refused("set no_new_privs"))?;
    let had = capabilities(None).map_err(refused("read the capabilities"))?;
    let wanted = all(kept_with(backend, may_write));
    clear_ambient_capability_set().map_err(refused("clear the ambient capabilities"))?;
    if had.effective.contains(CapabilitySet::SETPCAP) {
        for capability in bounding() {
            if !wanted.contains(capability) {
                remove_capability_from_bounding_set(capability)
                    .map_err(refused("take a capability from the bounding set"))?;
            }
        }
    } else {
        // no_new_privs makes sure that no execution gains a capability from the bounding set.
        tracing::info!("The bounding set stays as it is: that would take CAP_SETPCAP.");
    }
    let held = had.permitted.intersection(wanted);
    let sets = CapabilitySets { effective: held, permitted: held, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(refused("give up capabilities"))?;
    let now = capabilities(None).map_err(refused("read the capabilities"))?;
    let still = now.effective.union(now.permitted).union(now.inheritable).difference(held);
    if !still.is_empty() {
        return Err(PrivilegesError::Still(still));
    }
    for kept in kept_with(backend, may_write).filter(|kept| !held.contains(kept.capability)) {
        tracing::warn!(
            capability = kept.name,
            "The daemon lacks this capability, which it needs to: {}.",
            kept.why
        );
    }
    Ok(names(held))
}

/// The capabilities of the bounding set, including those that are newer than this program.
fn bounding() -> impl Iterator<Item = CapabilitySet> {
    (0..u64::BITS)
        .map(|bit| CapabilitySet::from_bits_retain(1 << bit))
        // The kernel returns an error for the first number without a capability.
        .map_while(|capability| Some((capability, capability_is_in_bounding_set(capability).ok()?)))
        .filter_map(|(capability, is_in)| is_in.then_some(capability))
}

/// Waits until the kernel no longer counts threads that have ended.
#[expect(
    clippy::disallowed_methods,
    reason = "the kernel has no notification for it, and no runtime exists yet"
)]
fn alone() -> Result<(), PrivilegesError> {
    let threads = || fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let began = Instant::now();
    while threads() > 1 {
        if began.elapsed() > Duration::from_secs(1) {
            return Err(PrivilegesError::Threads(threads()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_capabilities() {
        for kept in KEPT {
            let name = kept.capability.iter_names().next().map(|(name, _)| format!("CAP_{name}"));
            assert_eq!(name.as_deref(), Some(kept.name));
        }
        assert_eq!(names(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN), ["CAP_BPF", "CAP_SYS_ADMIN"]);
    }

    #[test]
    fn nothing_is_kept_that_loads_programs_or_changes_mounts() {
        for backend in [BackendName::Lsm, BackendName::Fentry, BackendName::Fanotify] {
            for may_write in [true, false] {
                let set = all(kept_with(backend, may_write));
                assert!(!set.intersects(CapabilitySet::SYS_ADMIN | CapabilitySet::PERFMON), "{set:?}");
                assert_eq!(set.contains(CapabilitySet::BPF), backend != BackendName::Fanotify);
            }
        }
    }

    #[test]
    fn a_daemon_that_observes_keeps_no_capability_to_write() {
        let set = all(kept_with(BackendName::Lsm, false));
        assert_eq!(set, CapabilitySet::DAC_READ_SEARCH | CapabilitySet::SYS_PTRACE | CapabilitySet::BPF);
    }

    #[test]
    fn the_pod_that_observes_has_the_capabilities_of_its_start_and_no_others() {
        let daemonset = include_str!("../../../deploy/kustomize/base/daemonset.yaml");
        let list = daemonset.lines().map(str::trim).skip_while(|line| *line != "add:").skip(1);
        let mut added: Vec<String> = list
            .map_while(|line| line.strip_prefix("- "))
            .map(|line| format!("CAP_{}", line.split(' ').next().unwrap()))
            .collect();
        let mut needed: Vec<&str> = kept_with(BackendName::Lsm, false).map(|kept| kept.name).collect();
        needed.extend(GIVEN_UP.iter().chain(&POD).map(|(name, _)| *name));
        added.sort_unstable();
        needed.sort_unstable();
        assert_eq!(added, needed);
    }

    #[test]
    fn the_unit_limits_the_daemon_to_the_capabilities_of_its_start_in_every_mode() {
        let unit = include_str!("../../../deploy/systemd/holdfast.service");
        let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
        let mut bounded: Vec<&str> = line.split(' ').collect();
        let kept = [true, false].into_iter().flat_map(|writes| kept_with(BackendName::Lsm, writes));
        let mut needed: Vec<&str> = kept.map(|kept| kept.name).collect();
        needed.extend(GIVEN_UP.map(|(name, _)| name));
        bounded.sort_unstable();
        needed.sort_unstable();
        needed.dedup();
        assert_eq!(bounded, needed);
    }

    #[test]
    fn the_table_of_the_threat_model_has_these_capabilities_with_these_reasons_and_no_others() {
        let text = include_str!("../../../docs/threat-model.md");
        let mut documented: Vec<String> =
            text.lines().filter(|line| line.starts_with("| `CAP_")).map(str::to_owned).collect();
        let kept = KEPT.iter().map(|needed| {
            let when = match needed.kept {
                Kept::Always | Kept::WithPrograms => "kept",
                Kept::ToWrite => "kept, if it may write managed paths",
                Kept::ToObserve => "kept in the modes `observe` and `manage`",
            };
            (needed.name, when, needed.why)
        });
        let given_up = GIVEN_UP.iter().map(|(name, why)| (*name, "given up", *why));
        let given_up = given_up.chain(POD.iter().map(|(name, why)| (*name, "given up, in a pod", *why)));
        let mut expected: Vec<String> =
            kept.chain(given_up).map(|(name, fate, why)| format!("| `{name}` | {fate} | {why} |")).collect();
        documented.sort_unstable();
        expected.sort_unstable();
        assert_eq!(documented, expected);
    }

    #[test]
    fn a_process_with_other_threads_gives_up_nothing() {
        // The test harness has another thread.
        assert!(matches!(give_up(BackendName::Lsm, true), Err(PrivilegesError::Threads(2..))));
    }
}
