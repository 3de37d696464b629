//! The way to an entry.
//!
//! In: the path of an entry. Out: its names below the root, or why the way to it ends.

use crate::image::error::{EntryFault, LayerError};

/// Why the way to an entry ends.
pub(super) enum ResolveError {
    Fault(EntryFault),
    Limit(LayerError),
}

impl ResolveError {
    pub(super) fn at(self, path: &[u8]) -> LayerError {
        match self {
            Self::Fault(fault) => LayerError::entry(path, fault),
            Self::Limit(error) => error,
        }
    }
}

/// The names of a path below the root. `..` removes the name before it, and nothing at the root, whatever the links are.
pub(super) fn clean(path: &[u8]) -> Vec<&[u8]> {
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    names
}
