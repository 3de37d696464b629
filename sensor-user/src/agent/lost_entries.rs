//! Finds the managed inodes that changed while records were lost.
//!
//! In: all map entries. Out: the entries whose change may have no record. It owns the loss count of each inode, as last seen.
//! The dirty bit alone does not show a loss: two things may share an inode (a directory that holds both, a hard link). The
//! verification of one of them clears the bit.

use sensor_common::map::{InodeKey, Managed};
use std::collections::HashMap;

/// An inode whose things need a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChangedEntry {
    pub(super) key: InodeKey,
    /// The number of its entry.
    pub(super) number: u32,
    /// A record of it was lost, and with the record the actor.
    pub(super) is_lost: bool,
}

/// Remembers the losses that a sweep has handled.
#[derive(Debug, Default)]
pub(super) struct LostEntries {
    /// [`Managed::lost`] of each inode that ever lost a record, at the last call.
    lost: HashMap<InodeKey, u32>,
}

impl LostEntries {
    /// The inodes that changed since their last verification, or lost a record since the last call.
    pub(super) fn take(&mut self, entries: impl Iterator<Item = (InodeKey, Managed)>) -> Vec<ChangedEntry> {
        let before = std::mem::take(&mut self.lost);
        let mut changed = Vec::new();
        for (key, entry) in entries {
            let handled = before.get(&key).copied().unwrap_or_default();
            let is_lost = entry.lost != handled;
            if entry.dirty != 0 || is_lost {
                changed.push(ChangedEntry { key, number: entry.id, is_lost });
            }
            if entry.lost != 0 {
                self.lost.insert(key, entry.lost);
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: InodeKey = InodeKey { ino: 7, dev: 1, volume: 0 };

    fn changed_entry(is_lost: bool) -> ChangedEntry {
        ChangedEntry { key: DIRECTORY, number: 3, is_lost }
    }

    fn entry(dirty: u32, lost: u32) -> [(InodeKey, Managed); 1] {
        [(DIRECTORY, Managed { id: 3, dirty, lost, ..Managed::default() })]
    }

    #[test]
    fn a_loss_is_found_though_the_verification_of_a_sibling_cleared_the_dirty_bit() {
        let mut entries = LostEntries::default();
        assert_eq!(entries.take(entry(0, 5).into_iter()), [changed_entry(true)]);
    }

    #[test]
    fn each_loss_is_found_once() {
        let mut entries = LostEntries::default();
        entries.take(entry(0, 5).into_iter());
        assert_eq!(entries.take(entry(0, 5).into_iter()), []);
        assert_eq!(entries.take(entry(0, 6).into_iter()), [changed_entry(true)]);
    }

    #[test]
    fn an_inode_that_is_dirty_without_a_loss_is_found() {
        assert_eq!(LostEntries::default().take(entry(1, 0).into_iter()), [changed_entry(false)]);
    }

    #[test]
    fn the_first_loss_of_an_inode_that_is_enrolled_again_is_found() {
        let mut entries = LostEntries::default();
        entries.take(entry(0, 1).into_iter());
        entries.take(entry(0, 0).into_iter());
        assert_eq!(entries.take(entry(0, 1).into_iter()), [changed_entry(true)]);
    }
}
