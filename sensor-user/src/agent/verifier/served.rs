//! Things on file systems that a server answers for, which another process looked at.
//!
//! In: its answer. Out: the same as of a look of our own. It touches nothing.

use super::{Desired, LookResult, Looker, MapsError, registry};
use crate::agent::reasons::FOREIGN;
use crate::agent::registry::Inode;
use crate::observation::worker::{Answer, Identified};
use sensor_common::map::InodeKey;
use sensor_model::observation::{FileType, Observation};

impl Looker {
    /// What follows from an answer about a thing.
    pub async fn answered(
        &mut self,
        thing: u32,
        desired: &Desired,
        answer: Answer,
    ) -> Result<LookResult, MapsError> {
        let path = desired.expectations[thing as usize].thing.path();
        let object = answer.inodes.iter().find(|found| found.path == *path).map(inode);
        if self.witness.is_some() {
            for found in &answer.inodes {
                self.enrol_answered(found)?;
            }
            if matches!(answer.observation, Observation::Missing)
                && let Some(own) = self.registry.find(&path)
                && self.registry.get(own).and_then(registry::Watch::key).is_some()
            {
                self.apply(own, None)?;
            }
        }
        // Its own counters know only of what this kernel did.
        Ok(self.result(thing, desired, answer.observation, object, None, Some(FOREIGN)).await)
    }

    /// Enrols what is watched there, so that changes by this kernel have records. Only on such file systems: on all others the
    /// kernel programs identify the inode themselves.
    fn enrol_answered(&mut self, found: &Identified) -> Result<(), MapsError> {
        let Some(watch) = self.registry.find(&found.path) else { return Ok(()) };
        let is_known = self.registry.get(watch).and_then(registry::Watch::inode) == Some(inode(found));
        let is_watchable = matches!(found.file_type, FileType::Regular | FileType::Directory)
            || (found.file_type == FileType::Symlink && self.links.contains(found.path.as_path()));
        if is_known || !is_watchable || !self.observer.is_served(&found.path) {
            return Ok(());
        }
        self.apply(watch, Some(inode(found)))
    }
}

/// The generation is not known. On these file systems it is zero, or else a change has no actor until the next look.
fn inode(found: &Identified) -> Inode {
    Inode { key: InodeKey { ino: found.ino, dev: found.dev, volume: 0 }, generation: 0 }
}
