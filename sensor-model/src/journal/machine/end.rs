//! The end of a machine.
//!
//! In: nothing. Out: how a machine ends, for its caller.

use super::super::ApplyEnd;

/// The end of a machine, which has no further request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MachineEnd {
    /// The apply is over, and no journal is left.
    Closed(ApplyEnd),
    /// The reboot is under way; the next process continues with the journal.
    Rebooting,
    /// The apply cannot continue now. The journal stays, and the next start retries.
    Halted(String),
}
