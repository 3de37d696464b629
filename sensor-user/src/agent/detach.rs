//! Removing what a daemon leaves on a host so that its kernel programs run on without it.
//!
//! In: the pin, the run and the state directory. Out: neither of the first two, and what was removed; or why not. Without its pin a kernel
//! program is detached, and with the programs of a hook end the deny rules. The room waits until the kernel has done that. The forensic log and
//! the state directory stay here; the room `purge` deletes them while the locks are held. No reporter hands in policies of the cluster any
//! more, so these are put aside.

use super::lock::{self, FILE, LockError, Locks};
use crate::desired::put_aside;
use crate::kernel::attached::PinnedLinks;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// Longest time until the kernel has freed programs without pins. It takes some milliseconds, and longer on a busy machine.
pub const FREED: Duration = Duration::from_secs(5);
/// What the names of the directories of links begin with.
const LINKS: &str = "links-";
/// What the names of the directories of maps begin with.
const MAPS: &str = "maps-v";

/// What was removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Detached {
    /// The number of pinned programs that were detached.
    pub programs: usize,
    /// How many of them still ran at the end of a wait of [`FREED`]. 0 also if this process may not ask the kernel.
    pub running: usize,
    /// The number of pinned maps: what programs counted, and the deny rules.
    pub maps: usize,
    /// The removed directories.
    pub removed: Vec<PathBuf>,
    /// Directories that stay, because they have something in them that is no daemon's.
    pub kept: Vec<PathBuf>,
    /// The file to which the policies of the cluster were put aside; `None` if there were none.
    pub aside: Option<PathBuf>,
}

/// Not everything was removed.
#[derive(Debug, Error)]
pub enum DetachError {
    /// A daemon runs.
    #[error(transparent)]
    Runs(#[from] LockError),
    /// Something cannot be removed.
    #[error("cannot remove `{path}`: {source}")]
    Failed {
        /// The path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The policies of the cluster stay in force for the commands of the host.
    #[error("cannot put the policies of the cluster aside, in `{state}`: {source}")]
    Policies {
        /// The state directory.
        state: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The directories of a daemon that has ended. While the value exists no other daemon takes them.
#[derive(Debug)]
pub struct LeftBehind<'a> {
    pins: &'a Path,
    run: &'a Path,
    state: &'a Path,
    _locks: Locks,
}

impl<'a> LeftBehind<'a> {
    /// Locks the pin, the run and the state directory.
    ///
    /// # Errors
    /// A daemon runs, or a directory cannot be locked.
    pub fn lock(pins: &'a Path, run: &'a Path, state: &'a Path) -> Result<Self, DetachError> {
        Ok(Self { pins, run, state, _locks: lock::take_left(run, pins, state)? })
    }

    /// Detaches all pinned kernel programs, removes the pin and the run directory, and puts the policies of the cluster aside.
    ///
    /// # Errors
    /// Something cannot be removed. What was removed before stays removed.
    pub fn detach(&self) -> Result<Detached, DetachError> {
        let mut done = detach(self.pins, self.run)?;
        done.aside = put_aside(self.state)
            .map_err(|source| DetachError::Policies { state: self.state.to_owned(), source })?;
        Ok(done)
    }
}

fn detach(pins: &Path, run: &Path) -> Result<Detached, DetachError> {
    let mut done = Detached::default();
    let links = PinnedLinks::of(pinned(pins, LINKS));
    // The links first: without them no program runs that could write to a map.
    done.programs = directories(pins, LINKS, &mut done.removed)?;
    // The kernel frees the programs some time after their pins. Until then the deny rules refuse.
    match links.left_after(FREED) {
        Ok(left) => done.running = left,
        Err(error) => tracing::warn!(%error, "Cannot see whether the kernel has freed the programs."),
    }
    done.maps = directories(pins, MAPS, &mut done.removed)?;
    if pins.exists() {
        match fs::remove_dir(pins) {
            Ok(()) => done.removed.push(pins.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => done.kept.push(pins.to_owned()),
            Err(source) => return Err(DetachError::Failed { path: pins.to_owned(), source }),
        }
    }
    if run.join(FILE).exists() {
        fs::remove_dir_all(run).map_err(|source| DetachError::Failed { path: run.to_owned(), source })?;
        done.removed.push(run.to_owned());
    } else if run.exists() {
        // A daemon's run directory has the file that it locks.
        done.kept.push(run.to_owned());
    }
    Ok(done)
}

/// The pins in the directories whose names begin like this. What cannot be read is left out here, and is an error of its removal.
fn pinned(pins: &Path, start: &str) -> impl Iterator<Item = PathBuf> {
    let of = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    of(pins)
        .filter(move |entry| entry.file_name().to_string_lossy().starts_with(start))
        .flat_map(move |entry| of(&entry.path()))
        .map(|entry| entry.path())
}

/// Removes the directories whose names begin like this; gives the number of pins in them.
fn directories(pins: &Path, start: &str, removed: &mut Vec<PathBuf>) -> Result<usize, DetachError> {
    let entries = match fs::read_dir(pins) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries,
    };
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| DetachError::Failed { path, source }
    };
    let mut count = 0;
    for entry in entries.map_err(failed(pins))? {
        let entry = entry.map_err(failed(pins))?;
        if !entry.file_name().to_string_lossy().starts_with(start) {
            continue;
        }
        let path = entry.path();
        count += fs::read_dir(&path).map_err(failed(&path))?.count();
        fs::remove_dir_all(&path).map_err(failed(&path))?;
        removed.push(path);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::cluster_policies;
    use tempfile::TempDir;

    fn detach(pins: &Path, run: &Path) -> Result<Detached, DetachError> {
        LeftBehind::lock(pins, run, Path::new("/missing"))?.detach()
    }

    /// What a daemon leaves: two links and a map of its object, a link of an older one, and the files of the run directory.
    fn left() -> (TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let (pins, run) = (folder.path().join("pins"), folder.path().join("run"));
        let pinned =
            ["links-1-lsm/file_open", "links-1-lsm/path_mkdir", "links-0-lsm/file_open", "maps-v1/MANAGED"];
        for name in pinned {
            let path = pins.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        fs::create_dir(&run).unwrap();
        for name in [FILE, "status.json"] {
            fs::write(run.join(name), "").unwrap();
        }
        (folder, pins, run)
    }

    #[test]
    fn the_pins_of_all_objects_and_the_run_directory_are_removed_and_a_second_time_nothing_is_left() {
        let (_folder, pins, run) = left();
        let done = detach(&pins, &run).unwrap();
        assert_eq!((done.programs, done.maps), (3, 1));
        assert!(done.kept.is_empty() && !pins.exists() && !run.exists(), "{done:?}");
        assert_eq!(detach(&pins, &run).unwrap(), Detached::default());
    }

    #[test]
    fn nothing_is_removed_while_a_daemon_holds_one_of_the_directories() {
        let (_folder, pins, run) = left();
        let locks = lock::take_left(&run, &pins, Path::new("/missing")).unwrap();
        let error = detach(&pins, &run).unwrap_err();
        assert!(matches!(error, DetachError::Runs(LockError::Held { .. })), "{error}");
        assert!(pins.join("links-1-lsm/file_open").exists() && run.exists());
        drop(locks);
        detach(&pins, &run).unwrap();
    }

    #[test]
    fn a_daemon_with_other_directories_but_the_same_state_is_seen() {
        let (folder, pins, run) = left();
        fs::write(folder.path().join(FILE), "").unwrap();
        let locks = lock::take_left(folder.path(), Path::new("/missing"), Path::new("/missing")).unwrap();
        let error = LeftBehind::lock(&pins, &run, folder.path()).unwrap_err();
        assert!(matches!(error, DetachError::Runs(LockError::Held { .. })), "{error}");
        drop(locks);
        LeftBehind::lock(&pins, &run, folder.path()).unwrap();
    }

    #[test]
    fn the_policies_of_the_cluster_are_put_aside_and_those_of_before_stay_until_there_are_others() {
        let (folder, pins, run) = left();
        let (file, state) = (cluster_policies(folder.path()), folder.path());
        let detach = || LeftBehind::lock(&pins, &run, state).unwrap().detach().unwrap().aside;
        assert_eq!(detach(), None);
        fs::write(&file, "first").unwrap();
        let aside = detach().unwrap();
        assert_eq!((file.exists(), fs::read(&aside).unwrap()), (false, b"first".to_vec()));
        assert_eq!(detach(), None);
        assert!(aside.exists());
        fs::write(&file, "second").unwrap();
        assert_eq!(detach().as_deref(), Some(&*aside));
        assert_eq!(fs::read(&aside).unwrap(), b"second");
    }

    #[test]
    fn what_is_no_daemons_stays_and_is_named() {
        let (_folder, pins, run) = left();
        fs::create_dir(pins.join("tetragon")).unwrap();
        fs::remove_file(run.join(FILE)).unwrap();
        let done = detach(&pins, &run).unwrap();
        assert_eq!(done.kept, [pins.clone(), run.clone()]);
        assert!(pins.join("tetragon").exists() && run.join("status.json").exists());
        assert!(!pins.join("maps-v1").exists());
    }
}
