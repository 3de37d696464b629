//! What the booted deployment ships in `/etc`, by its own copy.
//!
//! In: closed directories below `/etc`, and paths where nothing may be. Out: the names that the pristine `/etc` has for them. No digest proves
//! that copy, so it only bridges the time until the booted image has an index.

use crate::{
    observation::{Observer, resolve::HANDLE},
    sys,
};
use nix::{errno::Errno, fcntl::OFlag};
use sensor_model::closed::PackagedPath;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Most names. An `/etc` has some thousands.
const MOST: usize = 200_000;
const DIRECTORY: OFlag = sys::DIRECTORY.union(OFlag::O_NOFOLLOW);

/// The places where a policy expects nothing that is not declared.
#[derive(Debug, Default)]
pub(crate) struct Undeclared {
    /// The closed directories.
    pub(crate) roots: BTreeSet<PathBuf>,
    /// The paths where nothing may be.
    pub(crate) absent: BTreeSet<PathBuf>,
}

impl Undeclared {
    /// Whether a path is in a closed directory, or at or below a path where nothing may be.
    pub(super) fn concerns(&self, path: &Path) -> bool {
        path.ancestors().any(|above| self.absent.contains(above))
            || path.ancestors().skip(1).any(|above| self.roots.contains(above))
    }
}

/// The names that the pristine `/etc` has below the closed directories and at the paths. `None` on a host that keeps none, and if it cannot be
/// read as a whole.
pub(super) fn names_of(observer: &Observer, undeclared: &Undeclared) -> Option<Vec<PackagedPath>> {
    let pristine = observer.pristine()?;
    let root = pristine.root();
    let Undeclared { roots, absent } = undeclared;
    let is_below_another = |path: &Path| path.ancestors().skip(1).any(|above| roots.contains(above));
    let mut pending: Vec<PathBuf> = roots.iter().filter(|path| !is_below_another(path)).cloned().collect();
    let mut found = Vec::new();
    for path in absent {
        let Some(shipped) = pristine.place(path) else { continue };
        match root.open_at(&shipped, HANDLE | OFlag::O_NOFOLLOW) {
            Ok(_) => {
                let is_directory = root.open_at(&shipped, DIRECTORY).is_ok();
                found.push(PackagedPath { path: path.clone(), is_directory });
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(_) => return None,
        }
    }
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
