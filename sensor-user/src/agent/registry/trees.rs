//! Sealed trees: directories in which one index expects every entry.
//!
//! In: a tree's thing and the inodes that its entries lead to. Out: numbers and roles for the kernel's map, and the entries of a
//! record. An entry has no expectation and no watch of its own. A tree that is only scanned owns nothing for an entry; a tree
//! that is watched live owns its inode and one number. No I/O.

use super::inode::{FIRST_OWN, Inode};
use super::watch::{self, PackedInode};
use sensor_common::map::InodeKey;
use sensor_common::op::{ROLE_ANCESTOR, ROLE_DIRECTORY, ROLE_FILE};
use sensor_model::protocol::ThingId;
use std::path::{Path, PathBuf};

/// Entries of trees have the numbers from here to [`FIRST_OWN`]. Watches have the numbers below.
pub const FIRST_TREE: u32 = 1 << 29;

/// The number of paths that a scan names. It counts all others.
const NAMED: usize = 16;

/// The expected state of each entry of a tree. The entries have the numbers from 0.
pub trait TreeIndex {
    /// How many entries there are.
    fn entries(&self) -> u32;

    /// Writes the path of an entry to `path`, which holds the tree's own path.
    fn append(&self, entry: u32, path: &mut PathBuf);
}

/// The result of a scan of a tree.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TreeScan {
    /// How many entries differ from the index.
    pub differing: u32,
    /// The paths of the first entries that differ.
    pub paths: Vec<PathBuf>,
}

/// Compares every entry of a tree at `root` with its index. `is_as_expected` compares one entry, by its
/// number and its path.
pub fn scan(
    root: &Path,
    index: &impl TreeIndex,
    mut is_as_expected: impl FnMut(u32, &Path) -> bool,
) -> TreeScan {
    let mut found = TreeScan::default();
    let mut path = PathBuf::new();
    for entry in 0..index.entries() {
        path.clear();
        path.push(root);
        index.append(entry, &mut path);
        if !is_as_expected(entry, &path) {
            found.differing += 1;
            if found.paths.len() < NAMED {
                found.paths.push(path.clone());
            }
        }
    }
    found
}

/// An entry that leads to an inode.
#[derive(Debug, Clone, Copy)]
struct TreeEntry {
    inode: PackedInode,
    is_directory: bool,
}

/// One tree.
#[derive(Debug)]
struct Tree {
    thing: ThingId,
    /// The number of its first entry.
    first: u32,
    /// How many entries it has.
    count: u32,
    /// Every entry of a tree that is watched live; empty for other trees.
    entries: Box<[Option<TreeEntry>]>,
    /// The entries that lead to an inode, in the order of the inodes.
    by_key: Vec<u32>,
}

impl Tree {
    fn order(&self, entry: u32) -> Option<(u32, u32, u64)> {
        let entry = self.entries.get(entry as usize).copied().flatten()?;
        Some(watch::order(Inode::from(entry.inode).key))
    }

    /// The entries that lead to an inode.
    fn leading_to(&self, key: InodeKey) -> &[u32] {
        let wanted = Some(watch::order(key));
        let from = self.by_key.partition_point(|entry| self.order(*entry) < wanted);
        let count = self.by_key[from..].partition_point(|entry| self.order(*entry) == wanted);
        &self.by_key[from..from + count]
    }

    fn has(&self, number: u32) -> bool {
        (self.first..self.first + self.count).contains(&number)
    }
}

/// All trees.
#[derive(Debug, Default)]
pub(super) struct Trees(Vec<Tree>);

impl Trees {
    /// Adds the tree of a thing. `is_live`: the daemon will enrol its entries.
    pub(super) fn add(&mut self, thing: ThingId, count: u32, is_live: bool) {
        let first = self.0.last().map_or(FIRST_TREE, |last| last.first + last.count);
        let count = count.min(FIRST_OWN.saturating_sub(first));
        let entries = if is_live { vec![None; count as usize].into() } else { Box::default() };
        self.0.push(Tree { thing, first, count, entries, by_key: Vec::new() });
    }

    /// Sets the inodes that the entries of a thing's tree lead to; all other entries lead to none. Each entry has its number and
    /// whether it is a directory. Gives the keys with their numbers and roles; the caller enrols them.
    pub(super) fn set_inodes(
        &mut self,
        thing: ThingId,
        found: impl Iterator<Item = (u32, Inode, bool)>,
    ) -> Vec<(InodeKey, (u32, u32))> {
        let Some(tree) = self.0.iter_mut().find(|tree| tree.thing == thing) else { return Vec::new() };
        tree.entries.fill(None);
        for (number, inode, is_directory) in found {
            if let Some(entry) = tree.entries.get_mut(number as usize) {
                *entry = Some(TreeEntry { inode: inode.into(), is_directory });
            }
        }
        let mut by_key: Vec<u32> = (0..tree.count).filter(|entry| tree.order(*entry).is_some()).collect();
        by_key.sort_by_key(|entry| tree.order(*entry));
        by_key.shrink_to_fit();
        tree.by_key = by_key;
        let tree = &*tree;
        let mut keys: Vec<InodeKey> = tree
            .by_key
            .iter()
            .filter_map(|entry| Some(Inode::from(tree.entries[*entry as usize]?.inode).key))
            .collect();
        keys.dedup();
        keys.into_iter().filter_map(|key| Some((key, self.enrolment(key)?))).collect()
    }

    /// The number and the roles of an inode for the trees alone; `None` if no entry leads to it.
    pub(super) fn enrolment(&self, key: InodeKey) -> Option<(u32, u32)> {
        let mut leading = self
            .0
            .iter()
            .flat_map(|tree| tree.leading_to(key).iter().map(move |entry| (tree, *entry)))
            .peekable();
        let (tree, entry) = leading.peek()?;
        let number = tree.first + entry;
        let roles = leading.fold(0, |roles, (tree, entry)| {
            let is_directory =
                tree.entries.get(entry as usize).copied().flatten().is_some_and(|entry| entry.is_directory);
            roles | if is_directory { ROLE_DIRECTORY | ROLE_ANCESTOR } else { ROLE_FILE }
        });
        Some((number, roles))
    }

    /// Whether an entry leads to an inode.
    pub(super) fn has_inode(&self, key: InodeKey) -> bool {
        self.0.iter().any(|tree| !tree.leading_to(key).is_empty())
    }

    /// Adds the numbers of the entries of a record: those that lead to its inode, and the one whose number the inode's map entry
    /// had.
    pub(super) fn add_entries_of_record(&self, number: u32, key: InodeKey, numbers: &mut Vec<u32>) {
        for tree in &self.0 {
            numbers.extend(tree.leading_to(key).iter().map(|entry| tree.first + entry));
            if tree.has(number) && !numbers.contains(&number) {
                numbers.push(number);
            }
        }
    }

    /// The thing and the entry of a number.
    pub(super) fn entry(&self, number: u32) -> Option<(ThingId, u32)> {
        let tree = self.0.iter().find(|tree| tree.has(number))?;
        Some((tree.thing, number - tree.first))
    }

    /// The inode that the entry of a number leads to.
    pub(super) fn inode(&self, number: u32) -> Option<Inode> {
        let tree = self.0.iter().find(|tree| tree.has(number))?;
        let entry = tree.entries.get((number - tree.first) as usize).copied().flatten()?;
        Some(entry.inode.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(ino: u64) -> Inode {
        Inode { key: InodeKey { ino, dev: 1, volume: 0 }, generation: 1 }
    }

    #[test]
    fn entries_of_several_trees_have_numbers_of_their_own() {
        let mut trees = Trees::default();
        trees.add(ThingId(3), 10, true);
        trees.add(ThingId(5), 10, true);
        let enrolled = trees.set_inodes(ThingId(5), [(2, inode(20), true)].into_iter());
        let number = FIRST_TREE + 12;
        assert_eq!(enrolled, [(inode(20).key, (number, ROLE_DIRECTORY | ROLE_ANCESTOR))]);
        assert_eq!(trees.entry(number), Some((ThingId(5), 2)));
        assert_eq!(trees.entry(FIRST_TREE + 9), Some((ThingId(3), 9)));
        assert_eq!(trees.entry(FIRST_TREE + 20), None);
        assert_eq!(trees.inode(number), Some(inode(20)));
    }

    #[test]
    fn a_record_of_a_hard_link_has_all_of_its_entries() {
        let mut trees = Trees::default();
        trees.add(ThingId(0), 4, true);
        let found = [(1, inode(7), false), (3, inode(7), false), (2, inode(5), false)];
        let enrolled = trees.set_inodes(ThingId(0), found.into_iter());
        assert_eq!(enrolled.len(), 2, "one for each inode");
        let mut about = Vec::new();
        trees.add_entries_of_record(FIRST_TREE + 1, inode(7).key, &mut about);
        assert_eq!(about, [FIRST_TREE + 1, FIRST_TREE + 3]);
        about.clear();
        trees.add_entries_of_record(FIRST_TREE + 2, inode(99).key, &mut about);
        assert_eq!(about, [FIRST_TREE + 2], "the inode that was renamed over an entry has its number");
        trees.set_inodes(ThingId(0), std::iter::empty());
        assert_eq!(trees.enrolment(inode(7).key), None, "an inode without an entry is not enrolled");
    }
}
