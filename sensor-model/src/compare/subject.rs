//! The thing that a comparison is about.
//!
//! In: its path and its noun. Out: differences whose texts name it.

use super::go_mode::go_mode;
use crate::{
    difference::{Difference, DifferenceKind},
    observation::{FileType, ObjectObservation},
    text::quote_path,
};
use std::path::Path;

/// The thing of a comparison, as texts name it.
#[derive(Debug)]
pub(super) struct ComparedThing<'a> {
    pub(super) path: &'a Path,
    pub(super) noun: &'static str,
}

impl ComparedThing<'_> {
    /// `file "/etc/x"`.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.noun, quote_path(self.path))
    }

    pub(super) fn missing(&self) -> Difference {
        Difference {
            kind: DifferenceKind::Missing,
            expected: "present".to_owned(),
            found: "missing".to_owned(),
            text: format!(
                "could not stat {}: lstat {}: no such file or directory",
                self.name(),
                self.path.display()
            ),
        }
    }

    pub(super) fn unreadable(&self, error: &str) -> Difference {
        Difference {
            kind: DifferenceKind::Unreadable,
            expected: "readable".to_owned(),
            found: error.to_owned(),
            text: format!("could not read {}: {error}", self.name()),
        }
    }

    /// `<what> mismatch for file: "/etc/x"; expected: …; received: …`.
    pub(super) fn mismatch(
        &self,
        kind: DifferenceKind,
        what: &str,
        expected: String,
        found: String,
    ) -> Difference {
        let text = format!(
            "{what} mismatch for {}: {}; expected: {expected}; received: {found}",
            self.noun,
            quote_path(self.path)
        );
        Difference { kind, expected, found, text }
    }

    /// A wrong type. The Machine Config Operator compares type and mode together, so both have one text.
    pub(super) fn wrong_type(
        &self,
        file_type: FileType,
        mode: u32,
        object: &ObjectObservation,
    ) -> Difference {
        let mut difference = self.mismatch(
            DifferenceKind::Type,
            "mode",
            go_mode(file_type, mode),
            go_mode(object.file_type, object.mode),
        );
        type_name(file_type).clone_into(&mut difference.expected);
        type_name(object.file_type).clone_into(&mut difference.found);
        difference
    }
}

pub(super) fn type_name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Fifo => "named pipe",
        FileType::Socket => "socket",
    }
}
