//! Faults that a test plants in the machine and in its world.

/// Faults that a test plants, to show that the checker finds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::journal) enum Mutation {
    /// Targets are written before the journal says what they were.
    WriteBeforeBegin,
    /// What a swap displaced is dropped unseen.
    DropUnseen,
    /// After a death in the middle of writing the journal is closed as if all were well.
    CloseOnResume,
    /// The journal is closed without a look at everything.
    SkipVerify,
    /// Files go back before the journal says so.
    SkipRollingBack,
    /// A target gets steps for as long as they lead nowhere.
    StepForEver,
    /// What somebody else made of a directory is taken for half of our own change.
    SetWhatIsForeign,
    /// An OS that is to come back with the next boot is taken for one that is back.
    SkipReturn,
    /// An OS that could not be undone is told, and the journal closed over it.
    ForgetUndo,
    /// After a reboot that took the place of an act nobody looks at its unit.
    SkipAwait,
    /// What an update of the OS took back is not put again.
    SkipAgain,
}
