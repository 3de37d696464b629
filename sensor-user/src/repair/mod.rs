//! The repair of a drifted thing.
//!
//! In: the rendered config, an expectation, and the host root that the observer reads. Out: the thing as declared, written
//! through [`crate::disk`] and observed again, or the reason why not. A repair writes only below the root and only what a config
//! declares. No error has content in it.

mod closed;
mod context;
mod error;
mod file;
mod node;
mod pristine;
pub mod revert;
pub(crate) mod unit;

#[cfg(test)]
mod tests;

pub use error::{RepairError, RepairRefusal, UnknownOwner};
pub(crate) use file::declared_lines;

use crate::{
    disk,
    image::held_back,
    observation::{Observer, host_observer::HostObserver},
};
use context::RepairContext;
pub use context::linked_file;
use sensor_model::{
    compare::{Ids, compare},
    difference::Difference,
    expectation::{Expectation, ExpectationSource, Expected},
    merge::Rendered,
    observation::{FileType, Observation},
    selinux,
};
use std::{collections::BTreeSet, path::Path, sync::Arc};

/// The repair of one thing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// How it differed before; empty if it did not.
    pub before: Vec<Difference>,
    /// Each change in a few words, without contents: `content written`, `mode set to 0644`.
    pub actions: Vec<String>,
}

/// Repairs things of one host.
#[derive(Debug)]
pub struct Restorer {
    observer: Arc<Observer>,
    units: HostObserver,
}

impl Restorer {
    /// Repairs the host that the observer reads; its root is the directory `root`.
    pub fn new(observer: Arc<Observer>, root: &Path) -> Self {
        let units = HostObserver::new(Arc::clone(&observer), root);
        Self { observer, units }
    }

    /// Also reads network file systems from now on, and waits a few seconds for each.
    pub fn wait_for_servers(&mut self) {
        self.units.wait_for_servers();
    }

    /// Observes a thing and compares it with its expectation.
    pub async fn observe_and_compare(
        &mut self,
        expectation: &Expectation,
        ids: &Ids,
    ) -> (Observation, Vec<Difference>) {
        let (observed, _) = self.units.observe(expectation).await;
        let mut differences = compare(expectation, &observed.observation, ids);
        differences.extend(held_back(&self.observer, expectation, &differences));
        (observed.observation, differences)
    }

    /// Moves what nothing declares to the quarantine, in a directory that a policy closes, or at a path where it expects nothing.
    ///
    /// # Errors
    /// The closed directory cannot be read, or is none. A directory is at the path where nothing may be.
    fn move_undeclared(
        &self,
        rendered: &Rendered,
        expectation: &Expectation,
        ids: &Ids,
        how: closed::Move<'_>,
    ) -> Result<closed::Moved, RepairError> {
        let path = expectation.thing.path();
        let host = RepairContext { observer: &self.observer, rendered, ids, pristine: None };
        match &expectation.expected {
            Expected::ClosedDirectory(expected) => host.move_undeclared(&path, expected, how),
            Expected::Absent => host.move_unexpected(&path, how),
            _ => Err(RepairError::refused(&path, RepairRefusal::NotADirectory)),
        }
    }

    /// Restores a thing, and observes it again.
    ///
    /// # Errors
    /// See [`RepairError`]. After an error the thing is as before or nearer to its expectation, and never half written.
    pub async fn restore(
        &mut self,
        rendered: &Rendered,
        expectation: &Expectation,
        ids: &Ids,
    ) -> Result<Restored, RepairError> {
        let (observation, before) = self.observe_and_compare(expectation, ids).await;
        if before.is_empty() {
            return Ok(Restored::default());
        }
        let path = expectation.thing.path();
        for difference in &before {
            if difference.kind.refusal().is_some() {
                return Err(RepairError::refused(&path, RepairRefusal::Difference(difference.clone())));
            }
        }
        let pristine = match expectation.source {
            ExpectationSource::ImageLayer(_) => pristine::file(&self.observer, expectation, &before)?,
            ExpectationSource::MachineConfig(_) | ExpectationSource::ClosedBy(_) => None,
        };
        let host = RepairContext { observer: &self.observer, rendered, ids, pristine };
        let label = label(expectation, &observation, ids);
        let label = label.as_deref();
        let actions = match &expectation.expected {
            Expected::File(file) => host.file(&path, file, expectation.ssh_keys, &before, label)?,
            Expected::AuthorizedKeys(keys) => host.authorized_keys(&path, &keys.keys, &observation, label)?,
            Expected::Directory(directory) => host.declared_directory(&path, directory, &before, label)?,
            Expected::Link(link) => host.link(&path, link, label)?,
            Expected::ClosedDirectory(_) if matches!(expectation.source, ExpectationSource::ClosedBy(_)) => {
                let what_does = "nothing declares what is in it: declare it (`holdfast adopt` prints how), or move it away; under a rule \
                                 with `action: revert` the daemon moves it to the quarantine";
                return Err(RepairError::refused(&path, RepairRefusal::NotRestorable(what_does)));
            }
            Expected::Absent => {
                let what_does = "nothing declares what is there: declare it (`holdfast adopt` prints how), or remove it; under a rule with \
                                 `action: revert` the daemon moves it to the quarantine, unless it is a directory";
                return Err(RepairError::refused(&path, RepairRefusal::NotRestorable(what_does)));
            }
            Expected::ClosedDirectory(closed) => host.closed_directory(&path, closed)?,
            Expected::Unit(unit) => {
                unit::restore(&host, self.units.units(), expectation, unit, &before).await?
            }
            Expected::Tree(_) | Expected::Unindexed => {
                let what_does = "only a new deployment of its OS image restores a sealed tree";
                return Err(RepairError::refused(&path, RepairRefusal::NotRestorable(what_does)));
            }
            Expected::OstreeObject(_) => {
                let what_does = "the ostree repository has another content, so only a new deployment of the OS image restores it";
                return Err(RepairError::refused(&path, RepairRefusal::NotRestorable(what_does)));
            }
            Expected::Hierarchy(_) => {
                let what_does = "unmount what is mounted over it, or start the host again";
                return Err(RepairError::refused(&path, RepairRefusal::NotRestorable(what_does)));
            }
            Expected::KernelArguments(_) | Expected::OsImage(_) => {
                let what_does = "it changes only with a reboot; `holdfast apply --force` restores it";
                return Err(RepairError::refused(&path, RepairRefusal::NotRestorable(what_does)));
            }
        };
        let (_, differences) = self.observe_and_compare(expectation, ids).await;
        if differences.is_empty() {
            Ok(Restored { before, actions })
        } else {
            Err(RepairError::StillDiffers { path: path.to_path_buf(), differences })
        }
    }

    /// Removes the temporary names that killed repairs of these things left. The log has what was removed, and what cannot be.
    pub fn remove_leftovers<'a>(&self, things: impl Iterator<Item = &'a Expectation>) {
        let mut directories = BTreeSet::new();
        for Expectation { thing, expected, .. } in things {
            match expected {
                Expected::Unit(_) => directories.extend(unit::directories_of_links(&self.observer)),
                Expected::Hierarchy(_) | Expected::KernelArguments(_) | Expected::OsImage(_) => {}
                _ => directories.extend(thing.path().parent().map(Path::to_path_buf)),
            }
        }
        for directory in directories {
            let (count, result) = disk::remove_leftovers(&self.observer, &directory);
            if count > 0 {
                tracing::info!(count, directory = %directory.display(), "Removed temporary names of a killed repair.");
            }
            if let Err(error) = result {
                tracing::warn!(%error, "Cannot remove the temporary names of a killed repair.");
            }
        }
    }

    /// Makes systemd read its units again; `false` if systemd does not run.
    ///
    /// # Errors
    /// [`RepairError::Systemd`].
    pub async fn reload_units(&mut self) -> Result<bool, RepairError> {
        unit::reload(self.units.units()).await
    }
}

/// The label of a restored object. It keeps its own label if the policy accepts that one, unless an object of another type is
/// replaced.
fn label(expectation: &Expectation, observation: &Observation, ids: &Ids) -> Option<String> {
    let file_type = match &expectation.expected {
        Expected::File(_) | Expected::AuthorizedKeys(_) => FileType::Regular,
        Expected::Directory(_) => FileType::Directory,
        Expected::Link(link) if !link.hard => FileType::Symlink,
        _ => return None,
    };
    let found = match observation {
        Observation::Object(object) if object.file_type == file_type => object.label.as_deref(),
        _ => None,
    };
    match &expectation.label {
        Some(policys) => Some(selinux::given(policys, found, &ids.customizable)),
        None => found.map(str::to_owned),
    }
}

/// The order in which things are repaired: directories before what is in them, closed directories last.
pub fn order(expectation: &Expectation) -> (u8, Arc<Path>) {
    let rank = match &expectation.expected {
        Expected::Directory(_) => 0,
        Expected::File(_) | Expected::AuthorizedKeys(_) => 1,
        Expected::Link(link) if !link.hard => 1,
        Expected::Link(_) => 2,
        Expected::Unit(_) => 3,
        Expected::ClosedDirectory(_) => 4,
        Expected::Absent
        | Expected::Tree(_)
        | Expected::Unindexed
        | Expected::OstreeObject(_)
        | Expected::Hierarchy(_)
        | Expected::KernelArguments(_)
        | Expected::OsImage(_) => 5,
    };
    (rank, expectation.thing.path())
}
