//! The kernel programs that are loaded.
//!
//! In: the kernel's list, which goes from number to number. Out: a description of each program that is still there. A program that
//! is unloaded between its number and its description is left out: another process may unload one at any time.

use anyhow::{Context as _, Result};
use aya::programs::{ProgramError, ProgramFd, ProgramInfo, loaded_programs};
use nix::libc::ENOENT;

/// The programs of all processes.
pub fn loaded() -> Result<Vec<ProgramInfo>> {
    let programs = loaded_programs().filter_map(still_there);
    programs.collect::<Result<_, _>>().context("cannot list the kernel programs")
}

/// A descriptor of each program of all processes.
pub fn descriptors() -> Result<Vec<ProgramFd>> {
    let descriptors = loaded()?.into_iter().filter_map(|program| still_there(program.fd()));
    descriptors.collect::<Result<_, _>>().context("cannot open a kernel program")
}

/// Nothing if the kernel has no such program any more.
fn still_there<T>(result: Result<T, ProgramError>) -> Option<Result<T, ProgramError>> {
    let errno = match &result {
        Err(ProgramError::SyscallError(error)) => error.io_error.raw_os_error(),
        Err(ProgramError::IOError(error)) => error.raw_os_error(),
        _ => None,
    };
    (errno != Some(ENOENT)).then_some(result)
}
