//! Another root directory below running kernel programs: after a soft reboot every inode is new, and the programs are the old ones.
//!
//! In: the programs' maps, the run directory. Out: whether the root directory is another one than that of the daemon before. The
//! enrolment before the daemon's start tells the daemon by a file, because the new inodes have entries then.

use super::kernel_programs::KernelPrograms;
use super::registry::FIRST_OWN;
use crate::kernel::maps::MapsError;
use crate::observation::Observer;
use sensor_common::map::{InodeKey, Managed};
use std::fs;
use std::io;
use std::path::Path;

/// The file in the run directory that tells the daemon of the enrolment. A soft reboot keeps the run directory.
const MARK: &str = "new-root";

/// Whether the programs watch managed paths of another root directory alone.
pub(super) fn is_new(kernel: &mut KernelPrograms, observer: &Observer) -> Result<bool, MapsError> {
    // A root directory that the programs do not identify proves nothing. The canary shows whether they run.
    let Some(root) = observer.open(Path::new("/")).ok().and_then(|_| kernel.identity()) else {
        return Ok(false);
    };
    // The root directory is above each managed path, so it has an entry if one of them has.
    let is_enrolled = kernel.maps().entry(root)?.is_some_and(|entry| entry.id < FIRST_OWN);
    Ok(!is_enrolled && managed(kernel).next().is_some())
}

/// The entries of managed paths.
pub(super) fn managed(kernel: &KernelPrograms) -> impl Iterator<Item = (InodeKey, Managed)> + '_ {
    kernel.maps.entries().filter(|(_, entry)| entry.id < FIRST_OWN)
}

/// Notes for the daemon that the root directory is a new one.
pub(super) fn mark(run: &Path) -> io::Result<()> {
    fs::write(run.join(MARK), "")
}

/// Whether the enrolment noted a new root directory.
pub(super) fn is_marked(run: &Path) -> bool {
    run.join(MARK).exists()
}

/// Removes that note. If it stays, each start opens a gap.
pub(super) fn remove_mark(run: &Path) {
    match fs::remove_file(run.join(MARK)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, "Cannot remove the mark of a new root directory.");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_stays_until_it_is_removed() {
        let run = tempfile::tempdir().unwrap();
        assert!(!is_marked(run.path()));
        mark(run.path()).unwrap();
        assert!(is_marked(run.path()) && is_marked(run.path()));
        remove_mark(run.path());
        assert!(!is_marked(run.path()));
    }
}
