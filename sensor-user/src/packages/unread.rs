//! Why a database of packages was not read.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
};

/// A database of packages that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct Unread {
    path: PathBuf,
    reason: String,
}

impl Unread {
    pub(super) fn new(path: &Path, reason: impl Display) -> Self {
        Self { path: path.to_owned(), reason: reason.to_string() }
    }
}
