//! dpkg's lists of files.
//!
//! In: `/var/lib/dpkg/info/*.list`: one absolute path a line, of a file or a directory. Out: the paths below certain directories.

use super::{globs::DIRECTORY, unread::Unread};
use crate::{bounded, observation::Observer, sys};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Where the lists are.
const INFO: &str = "/var/lib/dpkg/info";
/// Largest list that is read. The largest package of Debian 13 has one of 6 MB.
const LIST: u64 = 64 << 20;
/// The file that dpkg replaces at the end of each change.
const STATUS: &str = "/var/lib/dpkg/status";

/// The path of a file that is another one after each change of a package.
pub(super) fn path() -> &'static Path {
    Path::new(STATUS)
}

/// Adds what packages put below these directories. Nothing on a host without dpkg.
pub(super) fn packaged(
    observer: &Observer,
    is_wanted: &dyn Fn(&Path) -> bool,
    found: &mut BTreeSet<PathBuf>,
) -> Result<(), Unread> {
    let mut unread = Ok(());
    for list in lists(observer)? {
        match read(observer, &list) {
            Ok(bytes) => {
                let paths = bytes.split(|byte| *byte == b'\n').map(|line| Path::new(OsStr::from_bytes(line)));
                found.extend(paths.filter(|path| is_wanted(path)).map(Path::to_owned));
            }
            Err(error) => unread = Err(Unread::new(&list, error)),
        }
    }
    unread
}

/// The paths of all lists. None on a host without dpkg.
fn lists(observer: &Observer) -> Result<Vec<PathBuf>, Unread> {
    let mut names: Vec<OsString> = Vec::new();
    let listed = observer.root().open_at(Path::new(INFO), DIRECTORY).and_then(|directory| {
        sys::each_name(directory, |name| {
            if name.as_bytes().ends_with(b".list") {
                names.push(name.to_owned());
            }
            ControlFlow::Continue(())
        })
    });
    match listed {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(Unread::new(Path::new(INFO), errno.desc())),
    }
    names.sort();
    Ok(names.into_iter().map(|name| Path::new(INFO).join(name)).collect())
}

fn read(observer: &Observer, list: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    Ok(bounded::read_open(observer.root().open_at(list, flags)?, LIST)?)
}
