//! Names in directories, read one at a time, because the owner of a directory may make millions of files in it.
//!
//! In: a path. Out: its names, or the first of them and the number of the others. A missing directory has no names. A directory
//! that cannot be read is an error.

use super::error::DiskError;
use crate::{
    observation::Observer,
    sys::{self, CallError},
};
use nix::{errno::Errno, fcntl::OFlag};
use sensor_model::escape::name_text;
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    ops::ControlFlow,
    path::Path,
};

/// The most names that are kept, as many as the daemon keeps.
pub(crate) const KEPT: usize = 1024;

/// The most further names that are counted.
const COUNTED: u64 = 1 << 20;

/// Some names of a directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FirstNames {
    /// The first in order, at most [`KEPT`].
    pub(crate) names: BTreeSet<String>,
    /// At least so many more.
    pub(crate) more: u64,
}

/// The names in a directory for which `is_one` holds.
pub(crate) fn listed(
    observer: &Observer,
    path: &Path,
    is_one: impl Fn(&str) -> bool,
) -> Result<FirstNames, DiskError> {
    let mut listed = FirstNames::default();
    each_name(observer, path, |name| {
        let name = name_text(name);
        if is_one(&name) {
            listed.names.insert(name.into_owned());
            if listed.names.len() > KEPT {
                listed.names.pop_last();
                listed.more += 1;
            }
        }
        let flow = if listed.more < COUNTED { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        Ok::<_, DiskError>(flow)
    })?;
    Ok(listed)
}

/// The names in a directory, sorted.
pub(crate) fn names_in(observer: &Observer, path: &Path) -> Result<Vec<OsString>, DiskError> {
    let mut names = Vec::new();
    each_name(observer, path, |name| {
        names.push(name.to_owned());
        Ok::<_, DiskError>(ControlFlow::Continue(()))
    })?;
    names.sort_unstable();
    Ok(names)
}

/// Calls `take` for each name in a directory, until it breaks or fails. If the path itself is a link, it is not followed.
pub(crate) fn each_name<E: From<DiskError>>(
    observer: &Observer,
    path: &Path,
    mut take: impl FnMut(&OsStr) -> Result<ControlFlow<()>, E>,
) -> Result<(), E> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let directory = match observer.root().open_at(path, flags) {
        Ok(directory) => directory,
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
        Err(errno) => return Err(DiskError::opening(path, "open the directory", errno).into()),
    };
    let mut failure = None;
    let listed = sys::each_name(directory, |name| match take(name) {
        Ok(flow) => flow,
        Err(error) => {
            failure = Some(error);
            ControlFlow::Break(())
        }
    });
    listed.map_err(|errno| DiskError::from(CallError::new(path, "read the directory", errno)))?;
    failure.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{chown, symlink},
    };

    #[test]
    fn only_the_first_names_of_a_full_directory_are_kept_and_the_others_are_counted() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("d")).unwrap();
        for number in 0..KEPT + 3 {
            fs::write(root.path().join(format!("d/{number:05}")), "").unwrap();
        }
        let observer = Observer::new(root.path()).unwrap();
        let FirstNames { names, more } = listed(&observer, Path::new("/d"), |name| name != "00000").unwrap();
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
        // Another user owns it, so a link in it is not followed.
        chown(root.path().join("home"), Some(1000), Some(1000)).unwrap();
        let observer = Observer::new(root.path()).unwrap();
        for path in ["/none", "/none/below", "/file"] {
            assert_eq!(
                listed(&observer, Path::new(path), |_| true).unwrap(),
                FirstNames::default(),
                "{path}"
            );
        }
        let error = listed(&observer, Path::new("/home/link/keys"), |_| true).unwrap_err();
        assert!(error.to_string().starts_with("/home/link/keys: a link is on the way"), "{error}");
    }
}
