//! Things on file systems with a server, which a worker process observed.
//!
//! In: the worker's answer. Out: a verification like the verifier's own. It owns nothing, and opens nothing on such a file system.

use super::{Desired, MapsError, VerifiedThing, Verifier, registry};
use crate::agent::registry::Inode;
use crate::observation::worker::{Answer, Identified};
use sensor_common::map::InodeKey;
use sensor_model::observation::{FileType, Observation};
use sensor_model::protocol::{GapReason, ThingId};

impl Verifier {
    /// The verification from a worker's observation of a thing.
    pub async fn verify_answer(
        &mut self,
        thing: ThingId,
        desired: &Desired,
        answer: Answer,
    ) -> Result<VerifiedThing, MapsError> {
        let path = desired.expectations[thing.index()].thing.path();
        let object = answer.inodes.iter().find(|found| found.path == *path).map(inode);
        if self.kernel.is_some() {
            for found in &answer.inodes {
                self.enrol_answered(found)?;
            }
            if matches!(answer.observation, Observation::Missing)
                && let Some(own) = self.registry.find(&path)
                && self.registry.get(own).and_then(registry::Watch::key).is_some()
            {
                self.set_inode(own, None)?;
            }
        }
        // The counters count only the changes by this kernel.
        Ok(self
            .compare(thing, desired, answer.observation, object, None, Some(GapReason::ForeignFileSystem))
            .await)
    }

    /// Enrols a watched inode of such a file system, so that changes by this kernel have records. On all other file systems the
    /// kernel programs identify the inode themselves.
    fn enrol_answered(&mut self, found: &Identified) -> Result<(), MapsError> {
        let Some(watch) = self.registry.find(&found.path) else { return Ok(()) };
        let is_known = self.registry.get(watch).and_then(registry::Watch::inode) == Some(inode(found));
        let is_watchable = matches!(found.file_type, FileType::Regular | FileType::Directory)
            || (found.file_type == FileType::Symlink && self.links.contains(found.path.as_path()));
        if is_known || !is_watchable || !self.observer.is_served(&found.path) {
            return Ok(());
        }
        self.set_inode(watch, Some(inode(found)))
    }
}

/// The worker does not know the generation. On these file systems it is zero, or else a change has no actor until the next
/// verification.
fn inode(found: &Identified) -> Inode {
    Inode { key: InodeKey { ino: found.ino, dev: found.dev, volume: 0 }, generation: 0 }
}
