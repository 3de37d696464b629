//! How a machine ends.

use super::super::Ended;

/// How a machine stands when it asks for nothing more.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Rest {
    /// It is over, and no journal is left.
    Closed(Ended),
    /// The reboot is under way; the journal goes on after it.
    Rebooting,
    /// It cannot go on now; the journal stays, and the next start tries again.
    Halted(String),
}
