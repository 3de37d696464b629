//! The stages of an apply.
//!
//! In: nothing. Out: the stages, each with the request that it makes, and the passes over the targets.

use super::super::{ApplyEnd, target_edit::TargetState};
use super::end::MachineEnd;

/// A stage. [`super::MachineRequest`] has the request that a stage makes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// `Begin`: the first record.
    Opening,
    /// `Observe` and `Edit`: every new object gets its path.
    Writing { at: usize, state: Option<TargetState>, edits: u8 },
    /// `Append` of [`super::JournalRecord::Written`].
    Sealing,
    /// `Observe` and `Edit`: the displaced objects are removed.
    Clearing { at: usize, state: Option<TargetState>, edits: u8 },
    /// `Append` of `Started`.
    Starting(usize),
    /// `Act`.
    Acting(usize),
    /// `Append` of `Finished`.
    Finishing(usize),
    /// `Append` of `Failed`; then the reboot follows.
    Failing { act: usize, reason: String },
    /// `Await`: the unit of an action after a reboot in its place.
    Awaiting(usize),
    /// `Append` of `RebootRequested`.
    AskingReboot,
    /// `Reboot`, of the apply or of the rollback.
    Rebooting,
    /// `Verify`.
    Verifying,
    /// `Observe` and `Edit`: paths that the update of the OS overwrote are written again; `then` is the stage after that.
    Overwritten { at: usize, state: Option<TargetState>, edits: u8, then: Box<Stage> },
    /// `Append` of `Done`.
    Ending,
    /// `Append` of `RollingBack`.
    Turning,
    /// `Observe` and `Edit`: the old objects are restored.
    Returning { at: usize, state: Option<TargetState>, edits: u8 },
    /// `Undo`.
    Undoing(usize),
    /// `Append` of `ReturnRequested`; then the reboot follows.
    AskingReturn,
    /// `VerifyBack`, after that reboot.
    VerifyingBack,
    /// `Append` of `RolledBack`.
    RolledBack,
    /// `Commit`.
    Committing(ApplyEnd),
    /// `Close`.
    Closing(ApplyEnd),
    /// None: the machine has ended.
    AtEnd(MachineEnd),
}

/// A pass over the targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pass {
    /// Every new object gets its path.
    Writing,
    /// The displaced objects are removed.
    Clearing,
    /// Paths that the update of the OS overwrote are written again; then the given stage follows.
    Overwritten(Box<Stage>),
    /// The old objects are restored.
    Returning,
}

impl Pass {
    pub(super) fn at(self, at: usize, state: Option<TargetState>, edits: u8) -> Stage {
        match self {
            Self::Writing => Stage::Writing { at, state, edits },
            Self::Clearing => Stage::Clearing { at, state, edits },
            Self::Overwritten(then) => Stage::Overwritten { at, state, edits, then },
            Self::Returning => Stage::Returning { at, state, edits },
        }
    }

    /// Whether the pass is a part of the rollback.
    pub(super) fn goes_back(&self) -> bool {
        match self {
            Self::Writing | Self::Clearing => false,
            Self::Overwritten(then) => matches!(**then, Stage::Returning { .. }),
            Self::Returning => true,
        }
    }
}
