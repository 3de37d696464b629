//! Sizes that both sides agree on, each with its reason.

/// Bytes of a record at most: a ring of 1 MiB then holds 4,096 changes.
pub const RECORD_BYTES: usize = 256;

/// Bytes of a directory entry's name in a record. Names go to 255; a longer one is flagged as cut and
/// the daemon reads the directory instead.
pub const NAME_BYTES: usize = 124;

/// Bytes of the change ring. A power of two and a multiple of the largest page (64 KiB).
pub const RING_BYTES: u32 = 1 << 20;

/// Bytes of the ring for what tells that the sensor works, and that somebody could blind it: one of the largest pages.
pub const ALARM_BYTES: u32 = 1 << 16;

/// Refusals of one user that have a record each in a second; the others are counted.
pub const DENIALS_A_SECOND: u32 = 32;

/// Users whose refusals are counted apart; least recently used go first.
pub const DENIAL_ENTRIES: u32 = 1 << 10;

/// Bytes of a protected name, with a zero at its end: no name on Linux is longer.
pub const NAME_KEY_BYTES: usize = 256;

/// Protected names at most, the names of the directories on the way to them included.
pub const NAME_ENTRIES: u32 = 1 << 14;

/// Managed inodes at most: files, their directories and all ancestors.
pub const MANAGED_ENTRIES: u32 = 1 << 17;

/// Processes remembered, exited ones included; least recently used go first.
pub const PROCESS_ENTRIES: u32 = 1 << 14;

/// Program executions remembered with their arguments.
pub const EXEC_ENTRIES: u32 = 1 << 12;

/// Bytes of arguments kept per execution.
pub const ARGV_BYTES: usize = 1024;

/// Bytes of the path handed to execve that are kept.
pub const FILENAME_BYTES: usize = 256;

/// Control groups made since the sensor started that are remembered with their paths.
pub const GROUP_ENTRIES: u32 = 1 << 10;

/// Bytes of a control group's path that are kept; those of pods with their containers take 200.
pub const GROUP_PATH_BYTES: usize = 256;

/// Executions of managed files that may be under way at once.
pub const EXECUTING_ENTRIES: u32 = 256;

/// Allowed actors of all deny rules together.
pub const ALLOWED_ENTRIES: u32 = 4096;
