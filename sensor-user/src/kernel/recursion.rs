//! Calls for which the kernel did not run a program.
//!
//! In: the loaded programs. Out: how often the kernel skipped one. It skips a tracing program while the same program runs on that
//! processor (`bpf_prog_check_recur`, `__bpf_trace_run`): because the program called itself, or because the kernel preempted a task
//! inside it. From 6.2 on it skips no LSM program. The programs themselves cannot count such a call.

use super::hooks::{FUNCTIONS, HOOKS, ProgramSet, TRACEPOINTS};
use aya::programs::{ProgramError, ProgramFd, loaded_programs};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

/// The kernel keeps this many characters of a program's name.
const KERNEL_NAME: usize = 15;

/// The programs of this daemon and of earlier ones. Any of these may be attached.
#[derive(Debug)]
pub struct Recursion {
    programs: Vec<(String, ProgramFd)>,
    before: BTreeMap<String, u64>,
}

/// What a program sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sees {
    Change,
    Tampering,
    /// The processes or control groups of this tracepoint.
    Processes(&'static str),
}

/// The numbers of skipped calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skipped {
    /// Of the programs that see changes.
    pub changes: u64,
    /// Of the programs that see openings of block devices and of `kernel.ftrace_enabled`.
    pub tampering: u64,
    /// Of the programs that store processes. Where a tracepoint has two programs, at most so many calls reached neither.
    pub processes: u64,
}

impl Recursion {
    /// Finds the programs by their names. The count starts now.
    pub fn watch() -> Result<Self, ProgramError> {
        let ours = names();
        let mut programs = Vec::new();
        for program in loaded_programs() {
            let program = match program {
                Err(error) if is_gone(&error) => continue,
                other => other?,
            };
            if let Some(name) = program.name_as_str().filter(|name| ours.contains_key(*name)) {
                match program.fd() {
                    Err(error) if is_gone(&error) => {}
                    other => programs.push((name.to_owned(), other?)),
                }
            }
        }
        let mut recursion = Self { programs, before: BTreeMap::new() };
        recursion.skipped()?;
        Ok(recursion)
    }

    /// The numbers of skipped calls since the last call of this function.
    pub fn skipped(&mut self) -> io::Result<Skipped> {
        let mut now: BTreeMap<String, u64> = BTreeMap::new();
        for (name, program) in &self.programs {
            let number = program.as_fd().as_raw_fd();
            let count = misses(&fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?);
            *now.entry(name.clone()).or_default() += count;
        }
        let before = std::mem::replace(&mut self.before, now);
        let new = self.before.iter().map(|(name, count)| {
            let earlier = before.get(name).copied().unwrap_or_default();
            (name.as_str(), count.saturating_sub(earlier))
        });
        Ok(sum(new))
    }
}

/// Sums the skipped calls of programs, by their names.
fn sum<'a>(new: impl Iterator<Item = (&'a str, u64)>) -> Skipped {
    let ours = names();
    let mut skipped = Skipped::default();
    let mut of_tracepoints: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in new {
        match ours.get(name) {
            Some(Sees::Change) => skipped.changes += count,
            Some(Sees::Tampering) => skipped.tampering += count,
            Some(Sees::Processes(tracepoint)) => {
                of_tracepoints
                    .entry(tracepoint)
                    .and_modify(|least| *least = count.min(*least))
                    .or_insert(count);
            }
            None => {}
        }
    }
    skipped.processes = of_tracepoints.values().sum();
    skipped
}

/// Whether a program was unloaded after it was listed.
fn is_gone(error: &ProgramError) -> bool {
    let errno = match error {
        ProgramError::SyscallError(error) => error.io_error.raw_os_error(),
        ProgramError::IOError(error) => error.raw_os_error(),
        _ => None,
    };
    errno == Some(nix::libc::ENOENT)
}

/// The names of Holdfast's programs, cut to the length that the kernel keeps. A program with another name does not count.
fn names() -> BTreeMap<String, Sees> {
    let hooks = HOOKS.iter().map(|hook| (hook.program(ProgramSet::Fentry), Sees::Change));
    let functions = FUNCTIONS.iter().map(|function| (function.program.to_owned(), Sees::Tampering));
    let tracepoints =
        TRACEPOINTS.iter().map(|hook| (hook.program.to_owned(), Sees::Processes(hook.tracepoint)));
    let all = hooks.chain(functions).chain(tracepoints);
    all.map(|(name, sees)| (name.chars().take(KERNEL_NAME).collect(), sees)).collect()
}

/// The count in the text of a program's `fdinfo` file; 0 on kernels before 5.12, which do not count.
fn misses(text: &str) -> u64 {
    let count = text.lines().find_map(|line| line.strip_prefix("recursion_misses:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{KERNEL_NAME, Sees, Skipped, misses, names, sum};

    #[test]
    fn the_count_is_read_and_is_zero_on_a_kernel_that_does_not_count() {
        assert_eq!(misses("pos:\t0\nprog_type:\t26\nrecursion_misses:\t17\nverified_insns:\t9\n"), 17);
        assert_eq!(misses("pos:\t0\nprog_type:\t26\n"), 0);
    }

    #[test]
    fn a_process_is_lost_only_if_both_programs_of_its_tracepoint_were_skipped() {
        let of = |counts: &[(&'static str, u64)]| sum(counts.iter().copied());
        assert_eq!(
            of(&[("process_exec", 30), ("process_exec_ag", 0), ("process_fork", 0)]),
            Skipped::default()
        );
        let both =
            of(&[("process_exec", 30), ("process_exec_ag", 2), ("process_fork", 1), ("process_fork_ag", 4)]);
        assert_eq!(both, Skipped { processes: 3, ..Skipped::default() });
        let others =
            of(&[("fentry_file_ope", 1), ("fentry_file_rel", 2), ("fentry_blkdev_o", 4), ("another", 8)]);
        assert_eq!(others, Skipped { changes: 3, tampering: 4, processes: 0 });
    }

    #[test]
    fn only_holdfasts_programs_are_counted_and_names_have_the_length_that_the_kernel_keeps() {
        let names = names();
        for (ours, sees) in [
            ("fentry_file_ope", Sees::Change),
            ("fentry_blkdev_o", Sees::Tampering),
            ("process_exec_ag", Sees::Processes("sched_process_exec")),
        ] {
            assert_eq!(names.get(ours), Some(&sees), "{names:?}");
        }
        for other in ["fentry_tcp_conn", "fentry", "lsm_file_open"] {
            assert_eq!(names.get(other), None, "{names:?}");
        }
        assert!(names.keys().all(|name| name.len() <= KERNEL_NAME));
    }
}
