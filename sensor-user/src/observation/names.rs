//! The names in a directory.
//!
//! In: an open directory. Out: its names, sorted; of a closed directory those that say something about it, with
//! a limit, since the owner of a directory may fill it. It opens nothing and never blocks.

use super::object::Refused;
use nix::dir::Dir;
use sensor_model::expectation::ClosedDirectoryExpectation;
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
};

/// Names that are kept of those that must not be in a closed directory, and how many more of them are counted.
const UNEXPECTED_NAMES: usize = 1024;
const UNEXPECTED_NAMES_COUNTED: u64 = 1 << 20;

/// Names in a directory, sorted, without `.` and `..`.
pub(super) fn list_names(directory: OwnedFd) -> Result<Vec<OsString>, Refused> {
    let mut names = Vec::new();
    each_name(directory, |name| {
        names.push(name.to_owned());
        true
    })?;
    names.sort_unstable();
    Ok(names)
}

/// What is in a closed directory. Names that do not count there are left out.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// Those that are declared.
    pub(super) declared: Vec<OsString>,
    /// The first of those that must not be there.
    pub(super) unexpected: BTreeSet<OsString>,
    /// How many more of them there are, at least.
    pub(super) more: u64,
}

/// Lists a closed directory.
pub(super) fn list_closed(
    directory: OwnedFd,
    closed: &ClosedDirectoryExpectation,
) -> Result<Listed, Refused> {
    let mut listed = Listed::default();
    each_name(directory, |name| {
        let text = name.to_string_lossy();
        if closed.is_unexpected(&text) {
            // The first in their order, so that the same directory looks the same each time.
            listed.unexpected.insert(name.to_owned());
            if listed.unexpected.len() > UNEXPECTED_NAMES {
                listed.unexpected.pop_last();
                listed.more += 1;
            }
        } else if closed.names.binary_search_by(|known| known.as_str().cmp(&text)).is_ok() {
            listed.declared.push(name.to_owned());
        }
        listed.more < UNEXPECTED_NAMES_COUNTED
    })?;
    Ok(listed)
}

/// Calls `take` for the names in a directory, without `.` and `..`, until it has enough.
fn each_name(directory: OwnedFd, mut take: impl FnMut(&OsStr) -> bool) -> Result<(), Refused> {
    for entry in Dir::from_fd(directory).map_err(Refused::at("read"))?.iter() {
        let entry = entry.map_err(Refused::at("read"))?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." && !take(OsStr::from_bytes(name)) {
            break;
        }
    }
    Ok(())
}
