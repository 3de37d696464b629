//! The kernel programs as the daemon asks them: their maps, and their answers to observations.
//!
//! In: the maps of loaded programs. Out: the identity of the inode that the daemon opened last. It owns the maps, and the number of
//! the last answer.

use super::foreign::shares_numbers;
use super::registry::Inode;
use crate::kernel::btrfs;
use crate::kernel::maps::{Maps, MapsError};
use crate::observation::Observer;
use sensor_common::map::{BTRFS_MAGIC, InodeKey};
use std::path::Path;

/// The maps of the kernel programs, and their answers to observations. Absent on the fanotify backend.
#[derive(Debug)]
pub struct KernelPrograms {
    pub(super) maps: Maps,
    sequence: u64,
    /// The programs have the place of a subvolume's number in an inode of Btrfs, or this kernel does not tell it.
    are_subvolumes_settled: bool,
}

impl KernelPrograms {
    /// With the maps of a loaded sensor.
    pub fn new(maps: Maps) -> Self {
        // Maps of an earlier run hold the answer to its last observation.
        let sequence = maps.identity().map_or(0, |identity| identity.sequence);
        Self { maps, sequence, are_subvolumes_settled: false }
    }

    /// The maps.
    pub fn maps(&mut self) -> &mut Maps {
        &mut self.maps
    }

    /// The key of the object that the daemon opened last; `None` if the programs did not see the open.
    pub fn identity(&mut self) -> Option<InodeKey> {
        self.identify().map(|(inode, _)| inode.key)
    }

    /// Prepares the observation of a link: the programs identify the next link that the daemon reads.
    pub(super) fn expect_link(&mut self) {
        if let Err(error) = self.maps.forget_link() {
            tracing::warn!(%error, "Cannot reset the map of links: a link cannot be identified.");
        }
    }

    /// The identity of the link that the daemon read last, and its file system.
    pub(super) fn identify_link(&self) -> Option<(Inode, u64)> {
        let identity = self.maps.link_identity().ok().filter(|identity| identity.sequence != 0)?;
        Some((Inode { key: identity.key, generation: identity.generation }, identity.magic))
    }

    /// The file that an executable's path leads to. `None` also on a file system where two files may share a number.
    pub(super) fn executable(&mut self, observer: &Observer, path: &Path) -> Option<Inode> {
        observer.open(path).ok()?;
        let (file, magic) = self.identify()?;
        (!shares_numbers(magic, observer, path)).then_some(file)
    }

    /// The identity of the object that the daemon opened last, and its file system. `None` if the programs did not see the open.
    pub(super) fn identify(&mut self) -> Option<(Inode, u64)> {
        let identity = self.maps.identity().ok()?;
        if identity.sequence == self.sequence {
            return None;
        }
        self.sequence = identity.sequence;
        if identity.magic == BTRFS_MAGIC
            && identity.key.volume == 0
            && let Err(error) = self.settle_subvolumes()
        {
            tracing::warn!(%error, "Cannot tell the kernel programs the place of a subvolume's number.");
        }
        Some((Inode { key: identity.key, generation: identity.generation }, identity.magic))
    }

    /// Gives the programs the place of the subvolume's number in an inode of Btrfs. The caller calls this when it finds a Btrfs: the kernel
    /// may have loaded its module after the programs. The keys of its inodes are other ones from then on, so a verification that enrolled
    /// one without the number finds another key, and enrols that one.
    pub(super) fn settle_subvolumes(&mut self) -> Result<(), MapsError> {
        if self.are_subvolumes_settled {
            return Ok(());
        }
        if !self.maps.has_btrfs_offsets()?
            && let Some(offsets) = btrfs::read()
        {
            self.maps.set_btrfs_offsets(offsets)?;
        }
        self.are_subvolumes_settled = true;
        Ok(())
    }
}
