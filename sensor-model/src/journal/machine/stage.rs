//! The stages of an apply.

use super::super::{ApplyEnd, target_step::TargetState};
use super::end::MachineEnd;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Opening,
    Writing {
        at: usize,
        state: Option<TargetState>,
        steps: u8,
    },
    Sealing,
    Clearing {
        at: usize,
        state: Option<TargetState>,
        steps: u8,
    },
    Starting(usize),
    Acting(usize),
    Finishing(usize),
    Failing {
        act: usize,
        reason: String,
    },
    Awaiting(usize),
    AskingReboot,
    Rebooting,
    Verifying,
    /// Paths that the update of the OS reverted are written again; `then` is the stage after that.
    Again {
        at: usize,
        state: Option<TargetState>,
        steps: u8,
        then: Box<Stage>,
    },
    Ending,
    Turning,
    Returning {
        at: usize,
        state: Option<TargetState>,
        steps: u8,
    },
    Undoing(usize),
    AskingReturn,
    VerifyingBack,
    RolledBack,
    Committing(ApplyEnd),
    Closing(ApplyEnd),
    AtEnd(MachineEnd),
}

/// A pass over the targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pass {
    /// Every new object gets its path.
    Writing,
    /// The displaced objects are removed.
    Clearing,
    /// Paths that the update of the OS reverted are written again; then the given stage follows.
    Again(Box<Stage>),
    /// The old objects are restored.
    Returning,
}

impl Pass {
    pub(super) fn at(self, at: usize, state: Option<TargetState>, steps: u8) -> Stage {
        match self {
            Self::Writing => Stage::Writing { at, state, steps },
            Self::Clearing => Stage::Clearing { at, state, steps },
            Self::Again(then) => Stage::Again { at, state, steps, then },
            Self::Returning => Stage::Returning { at, state, steps },
        }
    }

    /// Whether the pass is a part of the rollback.
    pub(super) fn goes_back(&self) -> bool {
        match self {
            Self::Writing | Self::Clearing => false,
            Self::Again(then) => matches!(**then, Stage::Returning { .. }),
            Self::Returning => true,
        }
    }
}
