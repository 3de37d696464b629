//! Links of directories, since the merged `/usr`: into `/usr` in the root directory, and since Fedora 42 `/usr/sbin` to `/usr/bin`.
//!
//! In: a path as a package has it. Out: the path on the disk.

use crate::{observation::Observer, sys};
use nix::fcntl::OFlag;
use std::path::{Path, PathBuf};

/// Directories that may be links to those of the same name in `/usr`.
const MERGED: [&str; 5] = ["bin", "lib", "lib32", "lib64", "sbin"];
/// A directory that may be a link to another one in `/usr`.
const SBIN: &str = "/usr/sbin";

/// The links of this host.
#[derive(Debug, Default)]
pub(super) struct MergedDirectories {
    /// The names in the root directory that are links to directories.
    top: Vec<&'static str>,
    /// Where `/usr/sbin` leads, if it is a link to another directory in `/usr`.
    sbin: Option<PathBuf>,
}

impl MergedDirectories {
    /// Those of a host.
    pub(super) fn of(observer: &Observer) -> Self {
        let top =
            MERGED.into_iter().filter(|name| is_link_to_directory(observer, &Path::new("/").join(name)));
        Self { top: top.collect(), sbin: sbin(observer) }
    }

    /// A path of a package as it is on the disk.
    pub(super) fn on_disk(&self, path: &Path) -> PathBuf {
        let is_in = |top: &&str, below: &Path| below.starts_with(top) && below != Path::new(top);
        let path = match path.strip_prefix("/") {
            Ok(below) if self.top.iter().any(|top| is_in(top, below)) => Path::new("/usr").join(below),
            _ => path.to_owned(),
        };
        match (&self.sbin, path.strip_prefix(SBIN)) {
            (Some(end), Ok(below)) if below != Path::new("") => end.join(below),
            _ => path,
        }
    }
}

/// Where `/usr/sbin` leads, if it is a link to another directory in `/usr`.
fn sbin(observer: &Observer) -> Option<PathBuf> {
    let path = Path::new(SBIN);
    if !is_link_to_directory(observer, path) {
        return None;
    }
    let (_, end) = observer.root().walk(path).end.ok()?;
    (end.parent() == path.parent()).then_some(end)
}

/// Whether a path is a link to a directory.
fn is_link_to_directory(observer: &Observer, path: &Path) -> bool {
    let opens = |flags| observer.root().open_at(path, flags).is_ok();
    !opens(sys::DIRECTORY) && opens(OFlag::O_RDONLY | OFlag::O_DIRECTORY)
}
