//! Calls that an fentry program was not run for.
//!
//! In: the loaded programs. Out: how often the kernel left one out because the same program was already
//! running on that processor, which it does to tracing programs and never to LSM ones. Nothing else tells of
//! such a call: no record, no counter of ours.

use super::hooks::Mode;
use aya::programs::{ProgramError, ProgramFd, loaded_programs};
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

/// The fentry programs, whoever loaded them: those of an earlier daemon may be the ones that are attached.
#[derive(Debug)]
pub struct Recursion {
    programs: Vec<ProgramFd>,
    misses: u64,
}

impl Recursion {
    /// Finds the programs by their names, and counts from now on.
    pub fn watch() -> Result<Self, ProgramError> {
        let mut programs = Vec::new();
        for program in loaded_programs() {
            let program = program?;
            if program.name_as_str().is_some_and(|name| name.starts_with(Mode::Fentry.prefix())) {
                programs.push(program.fd()?);
            }
        }
        let mut recursion = Self { programs, misses: 0 };
        recursion.missed()?;
        Ok(recursion)
    }

    /// Calls left out since this was last asked.
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

/// The count in the text of a program's `fdinfo` file; kernels before 5.12 have none.
fn misses(text: &str) -> u64 {
    let count = text.lines().find_map(|line| line.strip_prefix("recursion_misses:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::misses;

    #[test]
    fn the_count_is_read_where_the_kernel_has_one() {
        assert_eq!(misses("pos:\t0\nprog_type:\t26\nrecursion_misses:\t17\nverified_insns:\t9\n"), 17);
        assert_eq!(misses("pos:\t0\nprog_type:\t26\n"), 0);
    }
}
