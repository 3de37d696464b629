//! Vectors that blind the sensor or that it cannot see: other scenarios show them, or no code performs them.

use super::{Does, Vector};

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
        "the same undone before anybody looks",
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
    shown("V80a", "an entry taken out of the programs' map", &[], "blindness", "removed_map_entry"),
    shown("V80b", "links and maps unpinned", &[], "blindness", "pins_removed"),
    shown("V83a", "changed while no daemon runs, the programs go on", &["file_open"], "blindness", "killed"),
    shown("V83b", "changed while nothing of ours runs", &[], "blindness", "pins_removed"),
    Vector::not_performed(
        "V29",
        "faults of the kernel (Dirty COW, Dirty Pipe)",
        &[],
        "the kernels here have none that is known; the full verification finds what no hook could see, as V19c shows",
    ),
    Vector::not_performed(
        "V48",
        "a label set by the kernel itself (setsecctx, policy reload)",
        &[],
        "labels are compared at every look, and with the policy as it is then, which the scenario `selinux` shows",
    ),
    Vector::not_performed(
        "V52",
        "a write takes setuid bits and capabilities away",
        &["file_open", "inode_setattr"],
        "it comes with a write, which V01a shows, and is told with it as one drift",
    ),
    Vector::not_performed(
        "V74",
        "nfsd or ksmbd serves the file system",
        &["file_permission"],
        "the guests have no such server; it writes through the hook that V14b shows, as a thread of the kernel",
    ),
    Vector::not_performed(
        "V77",
        "fanotify fills content in when it is asked for",
        &[],
        "since 6.14; whoever answers such events is asked by the daemon's own reading, and fills the file in before it \
         is compared",
    ),
    Vector::not_performed(
        "V81",
        "another program in the kernel refuses or overwrites what the daemon does",
        &[],
        "whoever may load one may take ours out, which V80a and V80b show; that the canary is no longer heard tells of it",
    ),
    Vector::not_performed(
        "V82",
        "a kernel module, kexec, another root booted",
        &[],
        "a module may do anything; after another boot nothing of ours ran before, which V83b shows",
    ),
    Vector::not_performed(
        "V88",
        "memfd and loader tricks",
        &[],
        "they change what runs and leave every managed file as it is",
    ),
    Vector::not_performed(
        "V89",
        "bpf_set_dentry_xattr",
        &[],
        "since 6.15, by a program in the kernel and for attributes named security.bpf.* only; found as V19c",
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
