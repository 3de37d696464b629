//! The version of a file of a database, or of a directory.
//!
//! In: a path. Out: what changes with each change of the file.

use crate::{observation::Observer, sys};
use nix::{fcntl::OFlag, sys::stat::fstat};
use std::path::Path;

/// The version of a file; `None` if it does not exist or cannot be reached.
pub(super) fn identity(observer: &Observer, path: &Path) -> Option<sys::FileVersion> {
    let file = observer.root().open_at(path, OFlag::O_PATH | OFlag::O_CLOEXEC).ok()?;
    let stat = fstat(&file).ok()?;
    Some(sys::version_of(&stat))
}
