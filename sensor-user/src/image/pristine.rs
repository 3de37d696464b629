//! What the booted deployment ships in `/etc`, by its own copy.
//!
//! In: closed directories below `/etc`. Out: the names that `/usr/etc` has for them. No digest proves the copy, so it only bridges the time until
//! the booted image has an index.

use crate::{observation::Observer, sys};
use nix::fcntl::OFlag;
use sensor_model::{closed::PackagedPath, os::PRISTINE};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Where the names are on the host.
const ETC: &str = "/etc";
/// Most names. An `/etc` has some thousands.
const MOST: usize = 200_000;
const DIRECTORY: OFlag = sys::DIRECTORY.union(OFlag::O_NOFOLLOW);

/// What `/usr/etc` has for what is below `roots`. `None` on a host without `/usr/etc`, and if it cannot be read as a whole.
pub(super) fn names_below(observer: &Observer, roots: &BTreeSet<PathBuf>) -> Option<Vec<PackagedPath>> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::from(PRISTINE)];
    while let Some(directory) = pending.pop() {
        let handle = observer.root().open_at(&directory, DIRECTORY).ok()?;
        for name in sys::names(handle).ok()? {
            let shipped = directory.join(name);
            let path = Path::new(ETC).join(shipped.strip_prefix(PRISTINE).ok()?);
            let is_directory = observer.root().open_at(&shipped, DIRECTORY).is_ok();
            if is_directory {
                pending.push(shipped);
            }
            if path.ancestors().skip(1).any(|above| roots.contains(above)) {
                found.push(PackagedPath { path, is_directory });
            }
            if found.len() + pending.len() > MOST {
                return None;
            }
        }
    }
    Some(found)
}
