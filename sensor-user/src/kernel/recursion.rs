//! Calls for which the kernel did not run a program.
//!
//! In: the loaded programs. Out: how often the kernel skipped one. It skips a tracing program while the same program runs on that
//! processor (`bpf_prog_check_recur`, `__bpf_trace_run`): because the program called itself, or because the kernel preempted a task
//! inside it. It skips no LSM program. The programs themselves cannot count such a call.

use super::hooks::{FUNCTIONS, HOOKS, ProgramSet, TRACEPOINTS};
use aya::programs::{ProgramError, ProgramFd, loaded_programs};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

/// The kernel keeps this many characters of a program's name.
const KERNEL_NAME: usize = 15;

/// The tracing programs of this daemon and of earlier ones. Any of these may be attached.
#[derive(Debug)]
pub struct Recursion {
    programs: Vec<(Sees, ProgramFd)>,
    before: Skipped,
}

/// What a program sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sees {
    Change,
    Tampering,
    Process,
}

/// The numbers of skipped calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skipped {
    /// Of the programs that see changes.
    pub changes: u64,
    /// Of the programs that see openings of block devices and of `kernel.ftrace_enabled`.
    pub tampering: u64,
    /// Of the programs that store processes. The first program of a tracepoint does not count, since the second one does the same.
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
            if let Some(sees) = program.name_as_str().and_then(|name| ours.get(name)) {
                match program.fd() {
                    Err(error) if is_gone(&error) => {}
                    other => programs.push((*sees, other?)),
                }
            }
        }
        let mut recursion = Self { programs, before: Skipped::default() };
        recursion.skipped()?;
        Ok(recursion)
    }

    /// The numbers of skipped calls since the last call of this function.
    pub fn skipped(&mut self) -> io::Result<Skipped> {
        let mut now = Skipped::default();
        for (sees, program) in &self.programs {
            let number = program.as_fd().as_raw_fd();
            let count = misses(&fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?);
            match sees {
                Sees::Change => now.changes += count,
                Sees::Tampering => now.tampering += count,
                Sees::Process => now.processes += count,
            }
        }
        let before = std::mem::replace(&mut self.before, now);
        Ok(Skipped {
            changes: now.changes.saturating_sub(before.changes),
            tampering: now.tampering.saturating_sub(before.tampering),
            processes: now.processes.saturating_sub(before.processes),
        })
    }
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

/// The names of Holdfast's tracing programs, cut to the length that the kernel keeps. A program with another name does not count.
fn names() -> BTreeMap<String, Sees> {
    let hooks = HOOKS.iter().map(|hook| (hook.program(ProgramSet::Fentry), Sees::Change));
    let functions = FUNCTIONS.iter().map(|function| (function.program.to_owned(), Sees::Tampering));
    let tracepoints = TRACEPOINTS.iter().filter(|hook| hook.is_last);
    let tracepoints = tracepoints.map(|hook| (hook.program.to_owned(), Sees::Process));
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
    use super::{KERNEL_NAME, Sees, misses, names};

    #[test]
    fn the_count_is_read_and_is_zero_on_a_kernel_that_does_not_count() {
        assert_eq!(misses("pos:\t0\nprog_type:\t26\nrecursion_misses:\t17\nverified_insns:\t9\n"), 17);
        assert_eq!(misses("pos:\t0\nprog_type:\t26\n"), 0);
    }

    #[test]
    fn only_holdfasts_programs_are_counted_and_names_have_the_length_that_the_kernel_keeps() {
        let names = names();
        for (ours, sees) in [
            ("fentry_file_ope", Sees::Change),
            ("fentry_blkdev_o", Sees::Tampering),
            ("process_exec_ag", Sees::Process),
        ] {
            assert_eq!(names.get(ours), Some(&sees), "{names:?}");
        }
        for other in ["fentry_tcp_conn", "fentry", "process_exec"] {
            assert_eq!(names.get(other), None, "{names:?}");
        }
        assert!(names.keys().all(|name| name.len() <= KERNEL_NAME));
    }
}
