//! The exit codes of `kubectl holdfast`. That of wrong usage, 2, is the command line parser's.

/// Everything matches.
pub const IN_SYNC: u8 = 0;
/// Something drifted, is not known, or will be applied.
pub const DIFFERS: u8 = 1;
/// The command failed.
pub const FAILED: u8 = 3;
