//! The names in a directory.
//!
//! In: an open directory. Out: its names, sorted. For a closed directory: the declared names, and a limited number of undeclared ones,
//! since its owner may fill it. It opens nothing and never blocks. It reads the target of a link only if an exception is about the link's name.

use super::object::FailedOperation;
use nix::{dir::Dir, fcntl::readlinkat};
use sensor_model::{escape::name_text, expectation::ClosedDirectoryExpectation};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

/// Most undeclared names of a closed directory that it keeps, and most that it counts beyond those.
const UNEXPECTED_NAMES: usize = 1024;
const UNEXPECTED_NAMES_COUNTED: u64 = 1 << 20;

/// Names in a directory, sorted, without `.` and `..`.
pub(super) fn list_names(directory: OwnedFd) -> Result<Vec<OsString>, FailedOperation> {
    let mut names = Vec::new();
    each_name(directory, |name| {
        names.push(name.to_owned());
        true
    })?;
    names.sort_unstable();
    Ok(names)
}

/// The names in a closed directory, without those that the closed directory ignores.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// The declared names.
    pub(super) declared: Vec<OsString>,
    /// The first undeclared names, in their order.
    pub(super) unexpected: BTreeSet<OsString>,
    /// How many more undeclared names exist, at least.
    pub(super) more: u64,
}

/// Whether an object must not be in a closed directory, by its name and, for a link, by its target.
pub(crate) fn is_unexpected(
    directory: BorrowedFd<'_>,
    closed: &ClosedDirectoryExpectation,
    name: &OsStr,
) -> bool {
    let text = name_text(name);
    // The kernel reads no target of an object of another type, and an object that is gone has none.
    closed.is_unexpected(&text) && !closed.is_excepted_link(&text, || readlinkat(directory, name).ok())
}

/// Lists a closed directory. `list` is another descriptor of it, which the reading of the names uses up.
pub(super) fn list_closed(
    list: OwnedFd,
    directory: BorrowedFd<'_>,
    closed: &ClosedDirectoryExpectation,
) -> Result<Listed, FailedOperation> {
    let mut listed = Listed::default();
    each_name(list, |name| {
        let text = name_text(name);
        if is_unexpected(directory, closed, name) {
            // It keeps the first in their order, so that the same directory always gives the same names.
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

/// Calls `take` for each name in a directory, without `.` and `..`, until it gives false.
fn each_name(directory: OwnedFd, mut take: impl FnMut(&OsStr) -> bool) -> Result<(), FailedOperation> {
    for entry in Dir::from_fd(directory).map_err(FailedOperation::at("read"))?.iter() {
        let entry = entry.map_err(FailedOperation::at("read"))?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." && !take(OsStr::from_bytes(name)) {
            break;
        }
    }
    Ok(())
}
