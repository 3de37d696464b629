//! What the booted deployment ships in `/etc`, by its own copy.
//!
//! In: closed directories below `/etc`. Out: the names that the pristine `/etc` has for them. No digest proves that copy, so it only bridges the
//! time until the booted image has an index.

use crate::{observation::Observer, sys};
use nix::{errno::Errno, fcntl::OFlag};
use sensor_model::closed::PackagedPath;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Most names. An `/etc` has some thousands.
const MOST: usize = 200_000;
const DIRECTORY: OFlag = sys::DIRECTORY.union(OFlag::O_NOFOLLOW);

/// The names that the pristine `/etc` has below `roots`. `None` on a host that keeps none, and if it cannot be read as a whole.
pub(super) fn names_below(observer: &Observer, roots: &BTreeSet<PathBuf>) -> Option<Vec<PackagedPath>> {
    let pristine = observer.pristine()?;
    let root = pristine.root();
    let is_below_another = |path: &Path| path.ancestors().skip(1).any(|above| roots.contains(above));
    let mut pending: Vec<PathBuf> = roots.iter().filter(|path| !is_below_another(path)).cloned().collect();
    let mut found = Vec::new();
    while let Some(directory) = pending.pop() {
        let Some(shipped) = pristine.place(&directory) else { continue };
        let handle = match root.open_at(&shipped, DIRECTORY) {
            // The deployment ships no such directory.
            Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
            opened => opened.ok()?,
        };
        for name in sys::names(handle).ok()? {
            let path = directory.join(&name);
            let is_directory = root.open_at(&shipped.join(name), DIRECTORY).is_ok();
            if is_directory {
                pending.push(path.clone());
            }
            found.push(PackagedPath { path, is_directory });
            if found.len() > MOST {
                return None;
            }
        }
    }
    Some(found)
}
