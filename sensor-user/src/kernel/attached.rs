//! When the kernel has freed links whose pins are removed.
//!
//! In: the paths of pins. Out: how many of the links stay although nothing pins them. The kernel frees a link some milliseconds after the
//! removal of its last pin, and never while another process has it open. Until then its program runs and enforces the deny rules.

use super::pins::MOMENT;
use aya::programs::{
    ProgramError,
    links::{FdLink, LinkError, PinnedLink},
    loaded_links, loaded_programs,
};
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often the kernel is asked.
const STEP: Duration = Duration::from_millis(5);

/// Longest time from the end of the links until the kernel has detached their programs, one after the other. An emulated machine needs more
/// than a second for thirty.
const DETACHED: Duration = Duration::from_secs(15);

/// Pinned links and their programs, by their numbers in the kernel.
#[derive(Debug)]
pub(crate) struct PinnedLinks {
    links: BTreeSet<u32>,
    programs: BTreeSet<u32>,
}

impl PinnedLinks {
    /// The links that these paths pin. A path that this process may not open is left out, and so is the pin of a program that a killed daemon
    /// left beside its links.
    pub(crate) fn of(paths: impl Iterator<Item = PathBuf>) -> Self {
        let numbers = |path: PathBuf| {
            if path.file_name().is_some_and(|name| name == MOMENT) {
                return None;
            }
            let info = FdLink::from(PinnedLink::from_pin(path).ok()?).info().ok()?;
            Some((info.id(), info.program_id()))
        };
        let (links, programs) = paths.filter_map(numbers).unzip();
        Self { links, programs }
    }

    /// Waits until the kernel has freed them all: for the links at most for `limit`, and then for the programs at most for [`DETACHED`]. Gives how
    /// many links are left.
    ///
    /// # Errors
    /// This process may not list what the kernel has, which takes `CAP_SYS_ADMIN`.
    pub(crate) fn left_after(&self, limit: Duration) -> io::Result<usize> {
        let left = waited(limit, || self.links_left())?;
        if left == 0 {
            // A link loses its number before the kernel detaches its program. The program keeps its own until afterwards, and longer while
            // another process has it open.
            waited(DETACHED, || self.programs_left())?;
        }
        Ok(left)
    }

    fn links_left(&self) -> io::Result<usize> {
        let cause = |error| match error {
            LinkError::SyscallError(error) => error.io_error,
            other => io::Error::other(other),
        };
        count(&self.links, || loaded_links().map(|link| link.map(|link| link.id()).map_err(cause)))
    }

    fn programs_left(&self) -> io::Result<usize> {
        let cause = |error| match error {
            ProgramError::SyscallError(error) => error.io_error,
            other => io::Error::other(other),
        };
        count(&self.programs, || {
            loaded_programs().map(|program| program.map(|program| program.id()).map_err(cause))
        })
    }
}

/// Asks until nothing is left, at most for `limit`. Gives how many are left.
#[expect(
    clippy::disallowed_methods,
    reason = "the kernel sends no event when a link ends, and the command has no runtime"
)]
fn waited(limit: Duration, left: impl Fn() -> io::Result<usize>) -> io::Result<usize> {
    let end = Instant::now() + limit;
    loop {
        let left = left()?;
        if left == 0 || Instant::now() >= end {
            return Ok(left);
        }
        sleep(STEP);
    }
}

/// How many of the wanted numbers are in a list of the kernel, which is not asked for if none is wanted.
fn count<L: Iterator<Item = io::Result<u32>>>(
    wanted: &BTreeSet<u32>,
    list: impl FnOnce() -> L,
) -> io::Result<usize> {
    if wanted.is_empty() {
        return Ok(0);
    }
    let mut found = 0;
    for id in list() {
        match id {
            Ok(id) => found += usize::from(wanted.contains(&id)),
            // It ended between the listing of its number and the question about it, or another process is just attaching it
            // (`bpf_link_by_id`).
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_end_or_begin_while_they_are_listed_do_not_count_and_other_errors_are_errors() {
        let wanted = BTreeSet::from([3, 5, 7]);
        let listed = |errors: &[io::ErrorKind]| {
            let errors: Vec<_> = errors.iter().map(|kind| Err(io::Error::from(*kind))).collect();
            count(&wanted, || [Ok(1), Ok(3)].into_iter().chain(errors).chain([Ok(7)]))
        };
        assert_eq!(listed(&[io::ErrorKind::NotFound, io::ErrorKind::WouldBlock]).unwrap(), 2);
        assert_eq!(
            listed(&[io::ErrorKind::PermissionDenied]).unwrap_err().kind(),
            io::ErrorKind::PermissionDenied
        );
        let unasked = || -> std::iter::Empty<io::Result<u32>> { panic!("the kernel is asked about nothing") };
        assert_eq!(count(&BTreeSet::new(), unasked).unwrap(), 0);
    }
}
