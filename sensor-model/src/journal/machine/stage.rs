//! Where an apply is.

use super::super::{Ended, settle::Sight};
use super::rest::Rest;

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
    /// What the update of the OS took back is put again; then it goes on, or back, from that stage.
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

/// Which targets are gone through, and where to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// What is new comes to its path.
    Writing,
    /// What it displaced goes.
    Clearing,
    /// What the update of the OS took back is put again; behind it there is that stage.
    Again(Box<Stage>),
    /// What was there comes back.
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

    /// Whether it is a part of the way back.
    pub(super) fn goes_back(&self) -> bool {
        match self {
            Self::Writing | Self::Clearing => false,
            Self::Again(then) => matches!(**then, Stage::Returning { .. }),
            Self::Returning => true,
        }
    }
}
