//! Generations: the configs that were applied, and which of them is current.
//!
//! In: manifests, and the link `current`. Out: the current generation's number and the directory of its manifests. A link that
//! cannot be read is an error, so that no command compares the host with another config.

use super::{
    error::{StoreError, StoreFault, UnknownApplied},
    files::Store,
};
use crate::{
    desired::Generation,
    sys::{self, CallError},
};
use nix::errno::Errno;
use sensor_model::waiting::{Waiting, WaitingArgument};
use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

const CURRENT: &str = "current";
const WAITING: &str = "waiting.json";

impl Store {
    /// The current generation of a state directory; `None` if no config was ever applied.
    ///
    /// # Errors
    /// The store or the link cannot be read.
    pub fn current_in(state: &Path) -> Result<Option<(u64, PathBuf)>, StoreError> {
        Self::open_existing(state)?.map_or(Ok(None), |store| store.current())
    }

    /// The config of a command that names none: the one that was applied last; `None` if no config was ever applied.
    ///
    /// # Errors
    /// The store or the link cannot be read.
    pub fn applied_in(state: &Path) -> Result<Option<Generation>, UnknownApplied> {
        Ok(Self::current_in(state)?.map(Generation::from))
    }

    /// The current generation and the directory of its manifests; `None` if no config was ever applied.
    ///
    /// # Errors
    /// The link cannot be read, or Holdfast did not write it.
    pub fn current(&self) -> Result<Option<(u64, PathBuf)>, StoreError> {
        let path = self.path.join(CURRENT);
        let target = match fs::read_link(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            target => target.map_err(|error| CallError::new(&path, "read the link", error))?,
        };
        let id = target.iter().nth(1).and_then(|id| id.to_str()?.parse().ok());
        let id = id.ok_or_else(|| StoreError::invalid(&path, StoreFault::CurrentLink))?;
        Ok(Some((id, self.config(id))))
    }

    /// The directory of a generation's manifests.
    pub fn config(&self, id: u64) -> PathBuf {
        self.generation(id).join("config")
    }

    pub(super) fn generation(&self, id: u64) -> PathBuf {
        self.path.join("generations").join(id.to_string())
    }

    /// The numbers of all generations, the oldest first.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn generations(&self) -> Result<Vec<u64>, StoreError> {
        let path = self.path.join("generations");
        let entries = fs::read_dir(&path).map_err(|error| CallError::new(&path, "read", error))?;
        let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        let mut ids: Vec<u64> = entries.filter_map(name).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Keeps the manifests of a new generation, by file name and bytes.
    pub(crate) fn add_generation(&self, id: u64, manifests: &[(String, Vec<u8>)]) -> Result<(), StoreError> {
        let config = self.config(id);
        for path in [self.generation(id), config.clone()] {
            sys::make_directory(&path).map_err(|errno| CallError::new(&path, "make the directory", errno))?;
        }
        for (name, bytes) in manifests {
            self.replace(&config, name, bytes)?;
        }
        // The journal names the generation, so the generation is durable first.
        for path in [self.generation(id), self.path.join("generations")] {
            let synced = sys::directory(&path).and_then(sys::sync);
            synced.map_err(|errno| CallError::new(&path, "sync the directory", errno))?;
        }
        Ok(())
    }

    /// Whether the manifests of a generation are still kept.
    pub fn has_config(&self, id: u64) -> bool {
        self.config(id).is_dir()
    }

    /// Removes the manifests of a generation. Its entry of the history stays. After a crash they are all there, or none counts.
    pub(crate) fn forget_config(&self, id: u64) -> Result<(), StoreError> {
        let (config, old) = (self.config(id), self.generation(id).join(".config.old"));
        // Left by a crash.
        forget(&old)?;
        match fs::rename(&config, &old) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed.map_err(|error| CallError::new(&config, "rename the directory", error))?,
        }
        forget(&old)
    }

    /// Removes everything of a generation.
    pub(crate) fn forget_generation(&self, id: u64) -> Result<(), StoreError> {
        forget(&self.generation(id))
    }

    /// Writes which kernel arguments wait for the next boot when a generation is current. The file belongs to the generation, so it
    /// takes effect with it, and not if the apply is rolled back. Without such arguments there is no file.
    pub(crate) fn set_waiting(&self, id: u64, waiting: &Waiting) -> Result<(), StoreError> {
        if waiting.arguments.is_empty() {
            return Ok(());
        }
        self.write_json(&self.generation(id), WAITING, waiting)
    }

    /// The kernel arguments that wait for the next boot, in this boot and while a generation is current.
    ///
    /// # Errors
    /// The file cannot be read, or Holdfast did not write it.
    pub fn waiting(&self, id: u64, boot_id: &str) -> Result<Vec<WaitingArgument>, StoreError> {
        let waiting: Option<Waiting> = self.json(&self.generation(id).join(WAITING))?;
        Ok(waiting.map(|waiting| waiting.in_boot(boot_id).to_vec()).unwrap_or_default())
    }

    /// Makes a generation the current one, atomically.
    pub(crate) fn set_current(&self, id: u64) -> Result<(), StoreError> {
        if matches!(self.current(), Ok(Some((current, _))) if current == id) {
            return Ok(());
        }
        let failed = |operation| move |errno| CallError::new(&self.path.join(CURRENT), operation, errno);
        let directory = sys::directory(&self.path).map_err(failed("open"))?;
        let (name, new) = (OsStr::new(CURRENT), OsStr::new(".current.new"));
        match sys::remove(&directory, new, false) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(failed("remove the temporary link")(errno).into()),
        }
        let target = format!("generations/{id}/config");
        sys::symlink(OsStr::new(&target), &directory, new).map_err(failed("make the link"))?;
        sys::rename_over(&directory, new, name).map_err(failed("rename"))?;
        Ok(sys::sync(&directory).map_err(failed("sync"))?)
    }
}

/// Removes a directory with everything in it, if it is there. Only root can write in the store.
fn forget(directory: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(CallError::new(directory, "remove the directory", error).into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn a_command_without_a_config_uses_the_config_that_was_applied_last() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(Store::applied_in(state.path()).unwrap(), None);
        let store = Store::open(state.path()).unwrap();
        assert_eq!(Store::applied_in(state.path()).unwrap(), None);
        for id in [1, 2] {
            store.set_current(id).unwrap();
        }
        let applied = Generation { number: 2, manifests: store.config(2) };
        assert_eq!(Store::applied_in(state.path()).unwrap(), Some(applied));
    }

    #[test]
    fn a_command_without_a_config_ends_if_it_cannot_read_which_one_was_applied_last() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        std::os::unix::fs::symlink("elsewhere", store.path().join(CURRENT)).unwrap();
        let error = Store::applied_in(state.path()).unwrap_err();
        assert!(error.to_string().contains("--config"), "{error}");
        let cause = error.source().unwrap().to_string();
        assert!(cause.contains("it is not a link to generations/NUMBER/config"), "{cause}");
    }
}
