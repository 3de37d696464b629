//! Faults that a test plants in the machine and in its world.

/// Faults that a test plants, to show that the checker finds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::journal) enum Mutation {
    /// Targets are written before the journal says what they were.
    WriteBeforeBegin,
    /// The object that a swap displaced is deleted without an observation.
    DropUnseen,
    /// After a kill in the middle of writing, the journal is closed as if the apply were complete.
    CloseOnResume,
    /// The journal is closed without the final verification.
    SkipVerify,
    /// Files are restored before the record of the rollback is written.
    SkipRollingBack,
    /// A target has no limit of edits.
    StepForEver,
    /// A directory that another process changed is taken for Holdfast's own half-done change.
    SetWhatIsForeign,
    /// An OS that the next boot restores is taken for restored.
    SkipReturn,
    /// A change of the OS that could not be undone is reported, and the journal is closed.
    ForgetUndo,
    /// After a reboot in place of an action its unit is not checked.
    SkipAwait,
    /// Paths that an update of the OS overwrote are not written again.
    SkipOverwritten,
}
