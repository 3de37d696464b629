//! Writing expected state back.
//!
//! In: the rendered config, an expectation, and the host root that the observer reads. Out: what was
//! done, after it was looked at again; or why it was not done. Everything is replaced atomically through
//! directory handles, so that no link put in the way leads a write elsewhere and no half-written file is
//! ever seen. It never writes outside the root, never guesses what nobody declares, and no content is in
//! its errors.

mod file;
mod metadata;
mod node;
mod place;
pub(crate) mod unit;

#[cfg(test)]
mod tests;

pub(crate) use file::declared_lines;

use crate::{observation::Observer, systemd::UnitStates};
use nix::errno::Errno;
use place::Host;
use sensor_model::{
    compare::{Ids, compare},
    difference::{Difference, DifferenceKind},
    expectation::{Expectation, Expected, Owner},
    merge::Rendered,
    observation::{FileType, Observation},
    selinux,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Why a thing was not restored, or not entirely.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// Restoring it would destroy or guess what nobody declares.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// What stands in the way.
        reason: String,
    },
    /// The kernel refused an operation.
    #[error("{}: {operation}: {}", path.display(), errno.desc())]
    Failed {
        /// The path.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        errno: Errno,
    },
    /// systemd refused.
    #[error("{unit}: systemd: {reason}")]
    Systemd {
        /// The unit.
        unit: String,
        /// Its answer.
        reason: String,
    },
    /// It was written and is still not as declared: something else changes it, too.
    #[error("{}: still differs after it was written: {}", path.display(), texts(differences))]
    StillDiffers {
        /// The path.
        path: PathBuf,
        /// What differs now.
        differences: Vec<Difference>,
    },
}

fn texts(differences: &[Difference]) -> String {
    differences.iter().map(|difference| difference.text.as_str()).collect::<Vec<_>>().join("; ")
}

/// What was done to restore one thing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// How it differed before; empty when nothing had to be done.
    pub before: Vec<Difference>,
    /// Each step in a few words, without contents: `content written`, `mode set to 0644`.
    pub actions: Vec<String>,
}

/// Restores things of one host.
#[derive(Debug)]
pub struct Restorer {
    observer: Arc<Observer>,
    units: UnitStates,
}

impl Restorer {
    /// For the host that the observer reads, whose root is the directory `root`.
    pub fn new(observer: Arc<Observer>, root: &Path) -> Self {
        let units = UnitStates::new(Arc::clone(&observer), root);
        Self { observer, units }
    }

    /// From now on it waits for file systems that a server answers for, a few seconds for each.
    pub fn wait_for_servers(&mut self) {
        self.units.wait_for_servers();
    }

    /// How a thing stands: what it is, and every difference.
    pub async fn look(&mut self, expectation: &Expectation, ids: &Ids) -> (Observation, Vec<Difference>) {
        let (observed, _) = self.units.observe(expectation).await;
        let differences = compare(expectation, &observed.observation, ids);
        (observed.observation, differences)
    }

    /// Makes a thing what it should be, and looks at it again.
    ///
    /// # Errors
    /// See [`RepairError`]. After an error the thing is as it was before, or nearer to its expectation;
    /// never half written.
    pub async fn restore(
        &mut self,
        rendered: &Rendered,
        expectation: &Expectation,
        ids: &Ids,
    ) -> Result<Restored, RepairError> {
        let (observation, before) = self.look(expectation, ids).await;
        if before.is_empty() {
            return Ok(Restored::default());
        }
        let path = expectation.thing.path();
        for difference in &before {
            if matches!(difference.kind, DifferenceKind::MountOver | DifferenceKind::Unreadable) {
                let hint = match difference.kind {
                    DifferenceKind::MountOver => "; unmount it first",
                    _ => "",
                };
                let reason = format!("{}{hint}", difference.text);
                return Err(RepairError::Refused { path: path.to_path_buf(), reason });
            }
        }
        let host = Host { observer: &self.observer, rendered, ids };
        let label = label(expectation, &observation, ids);
        let label = label.as_deref();
        let actions = match &expectation.expected {
            Expected::File(file) => host.file(&path, file, expectation.ssh_keys, &before, label)?,
            Expected::AuthorizedKeys(keys) => host.authorized_keys(&path, &keys.keys, &observation, label)?,
            Expected::Directory(directory) => host.declared_directory(&path, directory, &before, label)?,
            Expected::Link(link) => host.link(&path, link, label)?,
            Expected::ClosedDirectory(closed) => host.closed_directory(&path, closed)?,
            Expected::Unit(unit) => unit::restore(&host, &mut self.units, expectation, unit, &before).await?,
            Expected::KernelArguments(_) | Expected::OsImage(_) => {
                let reason =
                    "what is booted changes only with a reboot; `holdfast apply --force` brings it back";
                return Err(RepairError::Refused { path: path.to_path_buf(), reason: reason.to_owned() });
            }
        };
        let (_, differences) = self.look(expectation, ids).await;
        if differences.is_empty() {
            Ok(Restored { before, actions })
        } else {
            Err(RepairError::StillDiffers { path: path.to_path_buf(), differences })
        }
    }

    /// Lets a running systemd read its units again. `false` when there is none to be told.
    ///
    /// # Errors
    /// [`RepairError::Systemd`].
    pub async fn reload_units(&mut self) -> Result<bool, RepairError> {
        unit::reload(&mut self.units).await
    }
}

/// The label that a restored object gets: the one that it has, where that is as good as the policy's. What takes the place of
/// another kind of object has nothing to keep.
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

/// The order in which things are restored: directories before what is in them, closed directories last.
pub fn order(expectation: &Expectation) -> (u8, Arc<Path>) {
    let rank = match &expectation.expected {
        Expected::Directory(_) => 0,
        Expected::File(_) | Expected::AuthorizedKeys(_) => 1,
        Expected::Link(link) if !link.hard => 1,
        Expected::Link(_) => 2,
        Expected::Unit(_) => 3,
        Expected::ClosedDirectory(_) => 4,
        Expected::KernelArguments(_) | Expected::OsImage(_) => 5,
    };
    (rank, expectation.thing.path())
}

impl Host<'_> {
    /// Numeric owner and group; `None` for what is not declared.
    fn owners(
        &self,
        path: &Path,
        user: &Owner,
        group: &Owner,
    ) -> Result<(Option<u32>, Option<u32>), RepairError> {
        let unknown = |what: &str, name: &str| RepairError::Refused {
            path: path.to_owned(),
            reason: format!("the host has no {what} `{name}`"),
        };
        let user = match user {
            Owner::Id(id) => Some(*id),
            Owner::Name(name) => Some(
                self.ids
                    .users
                    .get(name)
                    .copied()
                    .or_else(|| self.observer.uid(name))
                    .ok_or_else(|| unknown("user", name))?,
            ),
            Owner::Undeclared => None,
        };
        let group = match group {
            Owner::Id(id) => Some(*id),
            Owner::Name(name) => Some(
                self.ids
                    .groups
                    .get(name)
                    .copied()
                    .or_else(|| self.observer.gid(name))
                    .ok_or_else(|| unknown("group", name))?,
            ),
            Owner::Undeclared => None,
        };
        Ok((user, group))
    }
}
