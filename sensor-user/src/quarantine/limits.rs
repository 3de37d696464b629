//! The limits of the quarantine and of one move. The loop of the daemon waits for a move.

/// Most bytes of one move.
pub(super) const MOVE_BYTES: u64 = 64 << 20;
/// Most objects of one move.
pub(super) const MOVE_OBJECTS: usize = 4096;
/// Most directories below each other in one move.
pub(super) const MOST_DEEP: usize = 64;
/// Most items of the quarantine.
pub(super) const MOST_ITEMS: usize = 1024;
/// Most bytes of all its items.
pub(super) const WHOLE_BYTES: u64 = 1 << 30;

/// How often a move copies an object that changes meanwhile.
pub(super) const COPIES: usize = 3;
