//! Why a run of the loop ends.

use crate::desired::Desired;

/// Why a run of the loop ends.
#[derive(Debug)]
pub(super) enum Ended {
    /// A signal asked the daemon to stop.
    Stopped,
    /// An apply is over, or its process is gone.
    Applied,
    /// The programs run for the first time since the daemon started. The paths are to be enrolled again.
    Seeing,
    /// The programs do not answer any more. Only a process with all capabilities can load others.
    Silent,
    /// Other configs or policies were read.
    Reloaded(Box<Desired>),
}
