//! The kernel's evidence about one observation: whether something changed, and whether a change can still take effect.
//!
//! In: the map entry of the observed inode, read once after the content was read. Out: whether the observation is settled
//! ([`Evidence::is_settled`]). It never reads the content.

/// The kernel's evidence about one observation.
///
/// The order on the kernel side is part of the protocol: with another order the checker finds a lost drift. The hook of the
/// daemon's own *observation open* clears the dirty bit, **then** copies the counter, **then** samples writers and lock. Each
/// step is fully ordered before the next. The hook of a change increments the counter first, then tests and sets the dirty bit.
/// The daemon reads the object, checks that the path still leads to the open inode, and then reads the entry, once.
///
/// The protocol also needs that the kernel counts a writer in `i_writecount` before `security_file_open`, and drops the count
/// after the last write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Evidence {
    /// The change counter at the observation open.
    pub observed_counter: u64,
    /// The change counter after everything was read.
    pub counter: u64,
    /// Some open file could write to the inode at the observation open (`i_writecount` above zero). This includes shared writable
    /// mappings, descriptors passed between processes, and files opened before the sensor started.
    pub writers: bool,
    /// A writer held the inode's lock, or that of its directory, at the observation open. The hook of an operation on metadata
    /// or names had run, and the operation had not taken effect yet.
    pub locked: bool,
}

impl Evidence {
    /// Whether every effect after the observation must cause a new event.
    ///
    /// Operations on metadata and names hold the lock from before their hook until after their effect. Every change of content
    /// goes through an open file. So an operation whose hook ran before shows as `locked` or `writers`, and one whose hook ran
    /// during the observation increments the counter.
    pub fn is_settled(&self) -> bool {
        self.is_settled_but_for_writers() && !self.writers
    }

    /// Whether the observation is settled, apart from open writers. What was read is consistent, but the writers may change it
    /// without a further event.
    pub(crate) fn is_settled_but_for_writers(&self) -> bool {
        self.counter == self.observed_counter && !self.locked
    }
}

/// The result of a comparison with the expectation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finding {
    /// No difference.
    Compliant {
        /// The object did not change since the last decided verification (same inode and change time): a process opened it for
        /// writing and wrote nothing. Suppresses [`crate::Transition::Touched`].
        untouched: bool,
    },
    /// At least one difference.
    Differs {
        /// Hash of the differences, so that other differences are reported again.
        fingerprint: u64,
        /// All differences are of kinds that an editor causes for a moment when it saves.
        transient: bool,
    },
}

/// One verification of a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Verification {
    /// The result of the comparison.
    pub finding: Finding,
    /// The kernel's evidence. It is `None` on a kernel without the needed fields, with the fanotify backend, and for unit
    /// states from systemd. A settle time and a second verification then replace it.
    pub evidence: Option<Evidence>,
}
