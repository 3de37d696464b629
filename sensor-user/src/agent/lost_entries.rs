//! Which managed inodes changed, when records of changes were lost.
//!
//! In: all map entries. Out: those whose change may have no record. The dirty bit alone does not show it: two things may share
//! an inode (a directory that holds both, a hard link), and the look at one of them clears the bit.

use sensor_common::map::{InodeKey, Managed};
use std::collections::HashMap;

/// An inode that is to be looked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: InodeKey,
    /// The number of its entry.
    pub(super) id: u32,
    /// A record of it was lost, and with it who made the change.
    pub(super) is_lost: bool,
}

/// Remembers which losses were followed up.
#[derive(Debug, Default)]
pub(super) struct LostEntries {
    /// [`Managed::lost`] of each inode that ever lost a record, when it was last entries.
    lost: HashMap<InodeKey, u32>,
}

impl LostEntries {
    /// Inodes that changed since they were last looked at, or lost a record since the last call.
    pub(super) fn take(&mut self, entries: impl Iterator<Item = (InodeKey, Managed)>) -> Vec<Entry> {
        let before = std::mem::take(&mut self.lost);
        let mut changed = Vec::new();
        for (key, entry) in entries {
            let followed = before.get(&key).copied().unwrap_or_default();
            let is_lost = entry.lost != followed;
            if entry.dirty != 0 || is_lost {
                changed.push(Entry { key, id: entry.id, is_lost });
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

    fn untold(is_lost: bool) -> Entry {
        Entry { key: DIRECTORY, id: 3, is_lost }
    }

    fn entry(dirty: u32, lost: u32) -> [(InodeKey, Managed); 1] {
        [(DIRECTORY, Managed { id: 3, dirty, lost, ..Managed::default() })]
    }

    #[test]
    fn a_loss_is_followed_up_though_a_look_at_a_sibling_took_the_dirty_bit_away() {
        let mut entries = LostEntries::default();
        assert_eq!(entries.take(entry(0, 5).into_iter()), [untold(true)]);
    }

    #[test]
    fn a_loss_is_followed_up_once_and_each_further_one_again() {
        let mut entries = LostEntries::default();
        entries.take(entry(0, 5).into_iter());
        assert_eq!(entries.take(entry(0, 5).into_iter()), []);
        assert_eq!(entries.take(entry(0, 6).into_iter()), [untold(true)]);
    }

    #[test]
    fn an_inode_that_is_dirty_without_a_loss_is_followed_up() {
        assert_eq!(LostEntries::default().take(entry(1, 0).into_iter()), [untold(false)]);
    }

    #[test]
    fn the_first_loss_of_an_inode_enrolled_anew_is_followed_up_whatever_was_lost_of_its_predecessor() {
        let mut entries = LostEntries::default();
        entries.take(entry(0, 1).into_iter());
        entries.take(entry(0, 0).into_iter());
        assert_eq!(entries.take(entry(0, 1).into_iter()), [untold(true)]);
    }
}
