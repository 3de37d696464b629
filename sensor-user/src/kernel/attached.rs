//! When the kernel has freed links whose pins are removed.
//!
//! In: the paths of pins. Out: how many of the links stay although nothing pins them. The kernel frees a link some milliseconds after the
//! removal of its last pin, and never while another process has it open. Until then its program runs and enforces the deny rules.

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

/// Pinned links and their programs, by their numbers in the kernel.
#[derive(Debug)]
pub(crate) struct PinnedLinks {
    links: BTreeSet<u32>,
    programs: BTreeSet<u32>,
}

impl PinnedLinks {
    /// The links that these paths pin. A path that pins none, or that this process may not open, is left out.
    pub(crate) fn of(paths: impl Iterator<Item = PathBuf>) -> Self {
        let numbers = |path| {
            let info = FdLink::from(PinnedLink::from_pin(path).ok()?).info().ok()?;
            Some((info.id(), info.program_id()))
        };
        let (links, programs) = paths.filter_map(numbers).unzip();
        Self { links, programs }
    }

    /// Waits until the kernel has freed them all, at most for `limit`. Gives how many links are left.
    ///
    /// # Errors
    /// This process may not list what the kernel has, which takes `CAP_SYS_ADMIN`.
    #[expect(
        clippy::disallowed_methods,
        reason = "the kernel sends no event when a link ends, and the command has no runtime"
    )]
    pub(crate) fn left_after(&self, limit: Duration) -> io::Result<usize> {
        let end = Instant::now() + limit;
        loop {
            // A link loses its number before the kernel detaches its program, and the program keeps its own until afterwards.
            let left = self.links_left()?;
            let is_over = left == 0 && self.programs_left()? == 0;
            if is_over || Instant::now() >= end {
                return Ok(left);
            }
            sleep(STEP);
        }
    }

    fn links_left(&self) -> io::Result<usize> {
        let cause = |error| match error {
            LinkError::SyscallError(error) => error.io_error,
            other => io::Error::other(other),
        };
        count(&self.links, loaded_links().map(|link| link.map(|link| link.id()).map_err(cause)))
    }

    fn programs_left(&self) -> io::Result<usize> {
        let cause = |error| match error {
            ProgramError::SyscallError(error) => error.io_error,
            other => io::Error::other(other),
        };
        count(
            &self.programs,
            loaded_programs().map(|program| program.map(|program| program.id()).map_err(cause)),
        )
    }
}

/// How many of the wanted numbers are among those of a list of the kernel.
fn count(wanted: &BTreeSet<u32>, list: impl Iterator<Item = io::Result<u32>>) -> io::Result<usize> {
    if wanted.is_empty() {
        return Ok(0);
    }
    let mut found = 0;
    for id in list {
        match id {
            Ok(id) => found += usize::from(wanted.contains(&id)),
            // It ended between the listing of its number and the question about it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
