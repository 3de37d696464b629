//! Vectors that blind the sensor or that it cannot see: other scenarios show them, or no code performs them.

use super::vector::{Does, Vector};

/// A row that another scenario shows.
const fn shown(
    id: &'static str,
    name: &'static str,
    hooks: &'static [&'static str],
    scenario: &'static str,
    check: &'static str,
) -> Vector {
    Vector::file(id, name, hooks, Does::Shown { scenario, check })
}

/// The vectors of this family.
pub(super) const VECTORS: &[Vector] = &[
    shown("V78", "kernel.ftrace_enabled set to 0", &["proc_sys_open"], "blindness", "ftrace_enabled"),
    shown(
        "V78b",
        "the same undone before the next canary write",
        &["proc_sys_open"],
        "blindness",
        "ftrace_enabled_held_open",
    ),
    shown(
        "V78c",
        "the same through another mount of procfs",
        &["proc_sys_open"],
        "blindness",
        "ftrace_enabled_elsewhere",
    ),
    shown("V79a", "the daemon stopped and the ring filled meanwhile", &[], "blindness", "full_ring"),
    shown("V79b", "the daemon killed", &[], "blindness", "killed"),
    shown("V80a", "an entry removed from the programs' map", &[], "blindness", "removed_map_entry"),
    shown("V80b", "links and maps unpinned", &[], "blindness", "pins_removed"),
    shown(
        "V83a",
        "changed while no daemon runs, with the programs attached",
        &["file_open"],
        "blindness",
        "killed",
    ),
    shown("V83b", "changed while neither daemon nor programs run", &[], "blindness", "pins_removed"),
    Vector::not_performed(
        "V29",
        "faults of the kernel (Dirty COW, Dirty Pipe)",
        &[],
        "the tested kernels have no known one; the full verification finds such changes, as in V19c",
    ),
    Vector::not_performed(
        "V48",
        "a label set by the kernel itself (setsecctx, policy reload)",
        &[],
        "every verification compares labels with the current policy; the scenario `selinux` shows this",
    ),
    Vector::not_performed(
        "V52",
        "a write removes setuid bits and capabilities",
        &["file_open", "inode_setattr"],
        "it comes with a write, as in V01a, and is reported with it as one drift",
    ),
    Vector::not_performed(
        "V74",
        "nfsd or ksmbd serves the file system",
        &["file_permission"],
        "the guests have no such server; it writes as a kernel thread, through the hook of V14b",
    ),
    Vector::not_performed(
        "V77",
        "fanotify fills in content at its first read",
        &[],
        "since 6.14; the daemon's own read sends such an event, so the file is filled in before the \
         comparison",
    ),
    Vector::not_performed(
        "V81",
        "another program in the kernel refuses or overwrites what the daemon does",
        &[],
        "a process that can load one can also remove Holdfast's programs, as in V80a and V80b; the missing \
         events of the canary show it",
    ),
    Vector::not_performed(
        "V82",
        "a kernel module, kexec, another root booted",
        &[],
        "a module can do anything; after another boot, neither daemon nor programs ran before, as in V83b",
    ),
    Vector::not_performed(
        "V88",
        "memfd and loader tricks",
        &[],
        "they change running programs and no managed file",
    ),
    Vector::not_performed(
        "V89",
        "bpf_set_dentry_xattr",
        &[],
        "since 6.15, only by a program in the kernel and only for attributes named security.bpf.*; found \
         as in V19c",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::SCENARIOS;

    #[test]
    fn a_vector_of_another_scenario_names_a_scenario_that_exists() {
        for vector in super::super::all() {
            if let Does::Shown { scenario, .. } = vector.does {
                assert!(SCENARIOS.iter().any(|known| known.name == scenario), "{}: {scenario}", vector.id);
            }
        }
    }
}
