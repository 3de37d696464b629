//! Links into `/usr` in the root directory, since the merged `/usr`.
//!
//! In: a path as a package has it. Out: the path on the disk.

use crate::{observation::Observer, sys};
use nix::fcntl::OFlag;
use std::path::{Path, PathBuf};

/// Directories that may be links to those of the same name in `/usr`.
const MERGED: [&str; 5] = ["bin", "lib", "lib32", "lib64", "sbin"];

/// Those that are links to directories on this host.
pub(super) fn links(observer: &Observer) -> Vec<&'static str> {
    MERGED.into_iter().filter(|name| is_link_to_directory(observer, name)).collect()
}

/// A path of a package as it is on the disk.
pub(super) fn on_disk(path: &Path, merged: &[&str]) -> PathBuf {
    match path.strip_prefix("/") {
        Ok(below) if merged.iter().any(|top| below.starts_with(top) && below != Path::new(top)) => {
            Path::new("/usr").join(below)
        }
        _ => path.to_owned(),
    }
}

/// Whether a name in the root directory is a link to a directory.
fn is_link_to_directory(observer: &Observer, name: &str) -> bool {
    let path = Path::new("/").join(name);
    let opens = |flags| observer.root().open_at(&path, flags).is_ok();
    !opens(sys::DIRECTORY) && opens(OFlag::O_RDONLY | OFlag::O_DIRECTORY)
}
