//! What the kernel can say about one observation: did anything move, can anything still land.
//!
//! Comes in from the sensor's map entry of the observed inode, read once after the content was read;
//! goes out as the answer to one question, [`Evidence::is_quiet`]. It never looks at the content.

use crate::difference::{Difference, DifferenceKind};

/// The kernel's word on one observation.
///
/// The order in which the kernel side takes these is part of the protocol (the checker loses a drift when
/// it is changed). In the hook of the daemon's own *observation open*: clear the dirty bit, **then** copy
/// the counter, **then** sample writers and lock, each fully ordered before the next. A hook that
/// announces a change counts it first, then tests and sets the dirty bit. The daemon reads the object, makes
/// sure that the path still leads to the inode that it has open, and then reads the entry, once.
///
/// It also rests on the kernel counting a writer in `i_writecount` before `file_open` fires, and giving it
/// up after the last write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Evidence {
    /// The change counter at the observation open.
    pub observed_counter: u64,
    /// The change counter after everything was read.
    pub counter: u64,
    /// Some open file could write to the inode at the observation open (`i_writecount` above zero); this
    /// covers shared writable mappings, passed descriptors and those opened before the sensor started.
    pub writers: bool,
    /// The inode's lock, or that of its directory, was held for writing at the observation open: an
    /// operation on metadata or names was between its hook and its effect.
    pub locked: bool,
}

impl Evidence {
    /// Whether every effect that lands after the observation must announce itself by a new event.
    ///
    /// Operations on metadata and names hold the lock from before their hook until after their effect;
    /// everything that changes content goes through an open file. So what was already announced and has
    /// not landed shows as `locked` or `writers`, and what was announced in between moves the counter.
    pub fn is_quiet(&self) -> bool {
        self.only_writers() && !self.writers
    }

    /// Quiet but for open writers: what was read is whole, and may change without a further event.
    pub(super) fn only_writers(&self) -> bool {
        self.counter == self.observed_counter && !self.locked
    }

    /// The evidence for a thing that rests on two inodes (a name in a directory, and what it leads to).
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let moved = u64::from(!(self.only_writers() && other.only_writers()));
        Self {
            observed_counter: 0,
            counter: moved,
            writers: self.writers || other.writers,
            locked: self.locked || other.locked,
        }
    }
}

/// What an observation found, compared with the expectation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finding {
    /// No difference.
    Compliant {
        /// The object provably did not change since the last decided look (same inode and change time):
        /// somebody opened it for writing and wrote nothing. Suppresses [`super::Report::Touched`].
        untouched: bool,
    },
    /// At least one difference.
    Differs {
        /// Hash of the differences, so that a drift that becomes another one is reported again.
        fingerprint: u64,
        /// All are of a kind that an editor passes through when it saves; see [`is_transient`].
        transient: bool,
    },
}

/// One look at a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Outcome {
    /// What was found.
    pub finding: Finding,
    /// What the kernel says about the look; `None` where it cannot tell (features absent, fanotify
    /// backend, unit states that come from systemd): a settle delay and a second look replace it.
    pub evidence: Option<Evidence>,
}

/// Whether every difference is one that a save by an editor passes through: the name is gone for a
/// moment (rename to a backup, then create), or a new inode has not got its mode, owner and label yet.
///
/// `new_inode`: the path led to another inode when the thing was last decided.
pub fn is_transient(differences: &[Difference], new_inode: bool) -> bool {
    differences.iter().all(|difference| match difference.kind {
        DifferenceKind::Missing => true,
        DifferenceKind::Mode | DifferenceKind::Owner | DifferenceKind::Label | DifferenceKind::Xattr => {
            new_inode
        }
        _ => false,
    })
}
