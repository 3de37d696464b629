//! The checker's kernel side: inodes, locks, map entries, the ring; and what a hook does to them.
//!
//! It mirrors what the kernel programs do, in the steps in which other CPUs can see them.

/// Two inodes that the managed path can lead to, and the directory that holds its name.
pub(super) const A: usize = 0;
pub(super) const B: usize = 1;
pub(super) const DIRECTORY: usize = 2;

/// The map entry of an enrolled inode, reduced to the fields that later steps read, for fewer states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct MapEntry {
    /// The dirty bit, and the last writer while it is set.
    pub(super) dirty: Option<u8>,
    /// A record of it found no room since the last sweep.
    pub(super) lost: bool,
    /// Whether the counter changed since it was copied to `observed_counter`; `None` if no later step reads it.
    pub(super) moved: Option<bool>,
    pub(super) observed_writers: bool,
    pub(super) observed_locked: bool,
}

/// The subject of a ring record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum RecordSubject {
    /// The managed path.
    Ours,
    /// Another managed thing.
    Other,
    /// The file that switches the hooks off.
    Switch,
}

/// The file that switches the hooks off, by a process that has it open for writing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Switch {
    pub(super) off: bool,
    pub(super) writers: u8,
    /// Its entry is dirty, and its counter changed since the daemon checked it.
    pub(super) moved: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Kernel {
    /// The inode at the path.
    pub(super) path: Option<usize>,
    /// Whether the content, mode and so on of each inode are as expected.
    pub(super) good: [bool; 2],
    /// `i_writecount` of each inode.
    pub(super) writers: [u8; 2],
    /// The write side of each inode's lock.
    pub(super) locked: [bool; 3],
    pub(super) entries: [Option<MapEntry>; 3],
    /// A ring with room for one record.
    pub(super) ring: Option<RecordSubject>,
    /// The loss counter changed since the daemon read it.
    pub(super) lost: bool,
    pub(super) switch: Switch,
    /// The writers are threads of one process: the second change causes no record while the first one's dirty bit is set.
    pub(super) one_process: bool,
}

impl Kernel {
    /// The path leads to A, which is as expected and enrolled; B is prepared to replace it.
    pub(super) fn new(prepared: bool) -> Self {
        Self {
            path: Some(A),
            good: [true, prepared],
            writers: [0, 0],
            locked: [false; 3],
            entries: [Some(MapEntry::default()), None, Some(MapEntry::default())],
            ring: None,
            lost: false,
            switch: Switch::default(),
            one_process: false,
        }
    }

    /// Whether the object at the path differs from the expectation, or is missing.
    pub(super) fn differs(&self) -> bool {
        !self.path.is_some_and(|inode| self.good[inode])
    }

    /// First step of a hook: count the change. Returns a mask of the enrolled inodes, since the program looks each up once.
    pub(super) fn count(&mut self, inodes: u8) -> u8 {
        let mut enrolled = 0;
        if self.switch.off {
            return enrolled;
        }
        for inode in members(inodes) {
            if let Some(entry) = &mut self.entries[inode] {
                entry.moved = entry.moved.map(|_| true);
                enrolled |= 1 << inode;
            }
        }
        enrolled
    }

    /// Second step: set the dirty bit and push a record, if the entry is clean or another writer's. Returns whether a record
    /// found no room; adding that to `lost` is a step of its own.
    pub(super) fn announce(&mut self, inodes: u8, writer: u8) -> bool {
        let mut failed = false;
        let writer = if self.one_process { 0 } else { writer };
        for inode in members(inodes) {
            let Some(entry) = &mut self.entries[inode] else { continue };
            if entry.dirty != Some(writer) {
                entry.dirty = Some(writer);
                let room = self.ring.is_none();
                self.ring.get_or_insert(RecordSubject::Ours);
                entry.lost |= !room;
                failed |= !room;
            }
        }
        failed
    }

    /// The hook of an open of the switch. Returns whether its record found no room.
    pub(super) fn announce_switch(&mut self) -> bool {
        if self.switch.off {
            return false;
        }
        self.switch.moved = true;
        !self.push(RecordSubject::Switch)
    }

    /// Returns `false` if the ring is full.
    pub(super) fn push(&mut self, about: RecordSubject) -> bool {
        let room = self.ring.is_none();
        self.ring.get_or_insert(about);
        room
    }

    /// Samples of the observation open: open writers, and locks of the inode or its directory.
    pub(super) fn sample(&mut self, inode: usize) {
        let writers = inode != DIRECTORY && self.writers[inode] > 0;
        let locked = self.locked[inode] || self.locked[DIRECTORY];
        if let Some(entry) = &mut self.entries[inode] {
            entry.observed_writers = writers;
            entry.observed_locked = locked;
        }
    }
}

fn members(mask: u8) -> impl Iterator<Item = usize> {
    (0..3).filter(move |inode| mask & (1 << inode) != 0)
}
