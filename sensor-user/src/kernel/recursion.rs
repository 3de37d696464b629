//! Calls for which the kernel did not run an fentry program.
//!
//! In: the loaded programs. Out: how often the kernel skipped one, because the same program was already running on that processor
//! (`bpf_prog_check_recur`). It skips tracing programs and never LSM programs. The programs themselves cannot count such a call.

use super::hooks::{FUNCTIONS, HOOKS, ProgramSet};
use aya::programs::{ProgramError, ProgramFd, loaded_programs};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

/// The kernel keeps this many characters of a program's name.
const KERNEL_NAME: usize = 15;

/// The fentry programs of this daemon and of earlier ones. Any of these may be attached.
#[derive(Debug)]
pub struct Recursion {
    programs: Vec<ProgramFd>,
    misses: u64,
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
            if program.name_as_str().is_some_and(|name| ours.contains(name)) {
                match program.fd() {
                    Err(error) if is_gone(&error) => {}
                    other => programs.push(other?),
                }
            }
        }
        let mut recursion = Self { programs, misses: 0 };
        recursion.missed()?;
        Ok(recursion)
    }

    /// The number of skipped calls since the last call of this function.
    pub fn missed(&mut self) -> io::Result<u64> {
        let mut sum = 0;
        for program in &self.programs {
            let number = program.as_fd().as_raw_fd();
            sum += misses(&fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?);
        }
        let before = std::mem::replace(&mut self.misses, sum);
        Ok(sum.saturating_sub(before))
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

/// The names of Holdfast's fentry programs, cut to the length that the kernel keeps. A program with another name does not count.
fn names() -> BTreeSet<String> {
    let hooks = HOOKS.iter().map(|hook| hook.program(ProgramSet::Fentry));
    let functions = FUNCTIONS.iter().map(|function| function.program.to_owned());
    hooks.chain(functions).map(|name| name.chars().take(KERNEL_NAME).collect()).collect()
}

/// The count in the text of a program's `fdinfo` file; 0 on kernels before 5.12, which do not count.
fn misses(text: &str) -> u64 {
    let count = text.lines().find_map(|line| line.strip_prefix("recursion_misses:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{KERNEL_NAME, misses, names};

    #[test]
    fn the_count_is_read_and_is_zero_on_a_kernel_that_does_not_count() {
        assert_eq!(misses("pos:\t0\nprog_type:\t26\nrecursion_misses:\t17\nverified_insns:\t9\n"), 17);
        assert_eq!(misses("pos:\t0\nprog_type:\t26\n"), 0);
    }

    #[test]
    fn only_holdfasts_programs_are_counted_and_names_have_the_length_that_the_kernel_keeps() {
        let names = names();
        for ours in ["fentry_file_ope", "fentry_blkdev_o", "fentry_sb_mount"] {
            assert!(names.contains(ours), "{names:?}");
        }
        assert!(!names.contains("fentry_tcp_conn") && !names.contains("fentry"));
        assert!(names.iter().all(|name| name.len() <= KERNEL_NAME));
    }
}
