//! Why a run of the loop ends.
//!
//! In: nothing. Out: one value for each reason. No state.

use crate::desired::Desired;

/// Why a run of the loop ends.
#[derive(Debug)]
pub(super) enum RunEnd {
    /// A signal asked the daemon to stop.
    StopRequested,
    /// An apply is over, or its process is gone.
    ApplyEnded,
    /// The programs run for the first time since the daemon started. The next run enrols the paths again.
    ProgramsBegan,
    /// The programs no longer answer. Only a process with all capabilities can load others.
    ProgramsStopped,
    /// The daemon read other configs or policies.
    Reloaded(Box<Desired>),
}
