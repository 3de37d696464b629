//! The temporary names of Holdfast's processes in directories of the host.
//!
//! In: the number of a process. Out: names that nothing reads in a drop-in directory, each with the number of the process that made it.

use std::{
    ffi::{OsStr, OsString},
    sync::atomic::{AtomicU64, Ordering},
};

/// How a temporary name begins and ends. Nothing reads a name with this ending in a drop-in directory.
const AFFIXES: (&str, &str) = (".holdfast-", ".new");

/// The next temporary name of this process.
pub(crate) fn next_name() -> OsString {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    name_of(std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// The temporary name with a number, of a process.
pub(crate) fn name_of(pid: u32, number: u64) -> OsString {
    let (start, end) = AFFIXES;
    OsString::from(format!("{start}{pid}-{number}{end}"))
}

/// The process that made a temporary name; `None` for every name that Holdfast does not write.
pub(crate) fn maker(name: &OsStr) -> Option<u32> {
    let (start, end) = AFFIXES;
    let (pid, number) = name.to_str()?.strip_prefix(start)?.strip_suffix(end)?.split_once('-')?;
    let (pid, number) = (pid.parse().ok()?, number.parse().ok()?);
    // Numbers can also be read from `+1` and `007`.
    (pid != 0 && name == name_of(pid, number)).then_some(pid)
}
