//! The stages of an apply.

use super::super::{Ended, target_step::Sight};
use super::end::Rest;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Opening,
    Writing {
        at: usize,
        sight: Option<Sight>,
        steps: u8,
    },
    Sealing,
    Clearing {
        at: usize,
        sight: Option<Sight>,
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
        sight: Option<Sight>,
        steps: u8,
        then: Box<Stage>,
    },
    Ending,
    Turning,
    Returning {
        at: usize,
        sight: Option<Sight>,
        steps: u8,
    },
    Undoing(usize),
    AskingReturn,
    VerifyingBack,
    Ended,
    Committing(Ended),
    Closing(Ended),
    Resting(Rest),
}

/// A pass over the targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// Every new object gets its path.
    Writing,
    /// The displaced objects are removed.
    Clearing,
    /// Paths that the update of the OS reverted are written again; then the given stage follows.
    Again(Box<Stage>),
    /// The old objects are restored.
    Returning,
}

impl Phase {
    pub(super) fn at(self, at: usize, sight: Option<Sight>, steps: u8) -> Stage {
        match self {
            Self::Writing => Stage::Writing { at, sight, steps },
            Self::Clearing => Stage::Clearing { at, sight, steps },
            Self::Again(then) => Stage::Again { at, sight, steps, then },
            Self::Returning => Stage::Returning { at, sight, steps },
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
