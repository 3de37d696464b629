//! dpkg's lists of files.
//!
//! In: `/var/lib/dpkg/info/*.list`: one absolute path a line, of a file or a directory. Out: the paths below certain directories. A path
//! in a directory that is a link into `/usr` (`/lib` and others, since Debian's merged `/usr`) is given as it is on the disk.

use super::globs::DIRECTORY;
use crate::{bounded, observation::Observer, sys};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use sensor_model::closed::PackagedPath;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Where the lists are.
const INFO: &str = "/var/lib/dpkg/info";
/// Largest list that is read. The largest package of Debian 13 has one of 6 MB.
const LIST: u64 = 64 << 20;
/// Directories that may be links to those of the same name in `/usr`.
const MERGED: [&str; 5] = ["bin", "lib", "lib32", "lib64", "sbin"];

/// What packages put below these directories, sorted.
pub(super) fn packaged(observer: &Observer, roots: &BTreeSet<PathBuf>) -> Vec<PackagedPath> {
    let merged = MERGED.into_iter().filter(|name| is_link_to_directory(observer, name));
    let merged: Vec<Vec<u8>> = merged.map(|name| format!("/{name}/").into_bytes()).collect();
    let mut found: BTreeMap<PathBuf, bool> = BTreeMap::new();
    for list in lists(observer) {
        match read(observer, &list) {
            Ok(bytes) => {
                for line in bytes.split(|byte| *byte == b'\n') {
                    let usr = merged.iter().any(|top| line.starts_with(top));
                    let path = if usr { [b"/usr", line].concat() } else { line.to_vec() };
                    let path = Path::new(OsStr::from_bytes(&path));
                    if path.ancestors().skip(1).any(|above| roots.contains(above)) {
                        found.insert(path.to_owned(), false);
                    }
                }
            }
            Err(error) => {
                tracing::warn!(list = %list.display(), %error, "Cannot read a package's list of files.");
            }
        }
    }
    let above: BTreeSet<PathBuf> =
        found.keys().filter_map(|path| path.parent().map(Path::to_owned)).collect();
    let is_directory = |path: &Path| above.contains(path) || observer.root().open_at(path, DIRECTORY).is_ok();
    found.into_keys().map(|path| PackagedPath { is_directory: is_directory(&path), path }).collect()
}

/// Whether a name in the root directory is a link to a directory.
fn is_link_to_directory(observer: &Observer, name: &str) -> bool {
    let path = Path::new("/").join(name);
    let opens = |flags| observer.root().open_at(&path, flags).is_ok();
    !opens(DIRECTORY) && opens(OFlag::O_RDONLY | OFlag::O_DIRECTORY)
}

/// The paths of all lists. None on a host without dpkg.
fn lists(observer: &Observer) -> Vec<PathBuf> {
    let mut names: Vec<OsString> = Vec::new();
    let listed = observer.root().open_at(Path::new(INFO), DIRECTORY).and_then(|directory| {
        sys::each_name(directory, |name| {
            if name.as_bytes().ends_with(b".list") {
                names.push(name.to_owned());
            }
            ControlFlow::Continue(())
        })
    });
    if let Err(errno) = listed
        && errno != Errno::ENOENT
    {
        tracing::warn!(directory = INFO, %errno, "Cannot list the packages; Holdfast takes their files in closed directories for undeclared ones.");
    }
    names.sort();
    names.into_iter().map(|name| Path::new(INFO).join(name)).collect()
}

fn read(observer: &Observer, list: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    Ok(bounded::read_open(observer.root().open_at(list, flags)?, LIST)?)
}
