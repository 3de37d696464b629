//! Names in directories, read one at a time: a user owns some of the directories, and may fill them with millions of files.
//!
//! In: a path. Out: its names, or the first of some of them and how many more there are. A directory that is missing has none;
//! one that cannot be read is an error.

use super::ApplyError;
use crate::observation::Observer;
use nix::{dir::Dir, errno::Errno, fcntl::OFlag};
use std::{collections::BTreeSet, ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

/// Names that are kept of those that are looked for, as many as the daemon keeps.
pub(super) const KEPT: usize = 1024;

/// How many more of them are counted.
const COUNTED: u64 = 1 << 20;

/// Some names of a directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    /// The first in their order, at most [`KEPT`].
    pub(super) names: BTreeSet<String>,
    /// How many more there are, at least.
    pub(super) more: u64,
}

/// The names in a directory for which `is_one` holds.
pub(super) fn listed(
    observer: &Observer,
    path: &Path,
    is_one: impl Fn(&str) -> bool,
) -> Result<Listed, ApplyError> {
    let mut listed = Listed::default();
    each(observer, path, |name| {
        let name = name.to_string_lossy();
        if is_one(&name) {
            listed.names.insert(name.into_owned());
            if listed.names.len() > KEPT {
                listed.names.pop_last();
                listed.more += 1;
            }
        }
        Ok(listed.more < COUNTED)
    })?;
    Ok(listed)
}

/// Calls `take` for each name in a directory, until it has enough. The last name of the path is not followed where it is a link.
pub(super) fn each(
    observer: &Observer,
    path: &Path,
    mut take: impl FnMut(&OsStr) -> Result<bool, ApplyError>,
) -> Result<(), ApplyError> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let directory = match observer.root().open_at(path, flags) {
        Ok(directory) => directory,
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
        Err(errno) => return Err(ApplyError::opening(path, "open the directory", errno)),
    };
    let failed = |errno| ApplyError::failed(path, "read the directory", errno);
    for entry in Dir::from_fd(directory).map_err(failed)?.iter() {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." && !take(OsStr::from_bytes(name))? {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{chown, symlink},
    };

    #[test]
    fn a_full_directory_costs_its_first_names_and_a_number() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("d")).unwrap();
        for number in 0..KEPT + 3 {
            fs::write(root.path().join(format!("d/{number:05}")), "").unwrap();
        }
        let observer = Observer::new(root.path()).unwrap();
        let Listed { names, more } = listed(&observer, Path::new("/d"), |name| name != "00000").unwrap();
        assert_eq!((names.len(), more), (KEPT, 2));
        assert_eq!(names.first().map(String::as_str), Some("00001"), "the first in their order");
    }

    #[test]
    fn a_missing_directory_has_no_names_and_one_that_cannot_be_opened_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("home")).unwrap();
        fs::create_dir_all(root.path().join("roots/keys")).unwrap();
        fs::write(root.path().join("roots/keys/a"), "").unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        symlink("/roots", root.path().join("home/link")).unwrap();
        // Not root's, so that a link in it is not followed.
        chown(root.path().join("home"), Some(1000), Some(1000)).unwrap();
        let observer = Observer::new(root.path()).unwrap();
        for path in ["/none", "/none/below", "/file"] {
            assert_eq!(listed(&observer, Path::new(path), |_| true).unwrap(), Listed::default(), "{path}");
        }
        let error = listed(&observer, Path::new("/home/link/keys"), |_| true).unwrap_err();
        assert!(error.to_string().starts_with("/home/link/keys: a link is on the way"), "{error}");
    }
}
