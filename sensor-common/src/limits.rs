//! Sizes that both sides use, each with its reason.

/// Most bytes of a record: a ring of 1 MiB then holds 4,096 records.
pub const RECORD_BYTES: usize = 256;

/// Bytes of a directory entry's name in a record. A name may have 255. A longer one than this is flagged as cut, and the daemon reads
/// the directory instead.
pub const NAME_BYTES: usize = 124;

/// Bytes of the change ring. A power of two and a multiple of the largest page (64 KiB).
pub const RING_BYTES: u32 = 1 << 20;

/// Bytes of the alarm ring (canary, opened block devices and tunables): one of the largest pages.
pub const ALARM_BYTES: u32 = 1 << 16;

/// Most refusals of one user in a second that have a record each; the others are counted.
pub const DENIALS_A_SECOND: u32 = 32;

/// Most loads of one user in a second that have a record each; the others have none.
pub const LOADS_A_SECOND: u32 = 32;

/// Most users with a refusal count of their own; the map evicts the least recently used first.
pub const DENIAL_ENTRIES: u32 = 1 << 10;

/// Bytes of a protected name, including a final zero: `NAME_MAX` is 255.
pub const NAME_KEY_BYTES: usize = 256;

/// Most protected names, including the names of the directories above them.
pub const NAME_ENTRIES: u32 = 1 << 14;

/// Most managed inodes: files, their directories and all ancestors.
pub const MANAGED_ENTRIES: u32 = 1 << 17;

/// Most stored processes, including exited ones; the map evicts the least recently used first.
pub const PROCESS_ENTRIES: u32 = 1 << 14;

/// Most stored executions with their arguments.
pub const EXEC_ENTRIES: u32 = 1 << 12;

/// The same for executions that the second program of the tracepoint stores. It stores one only if the kernel skipped the first
/// program, so these stay for long.
pub const SECOND_EXEC_ENTRIES: u32 = 1 << 8;

/// Most bytes of arguments that the programs store for an execution.
pub const ARGV_BYTES: usize = 1024;

/// Most bytes that the programs store of the path given to execve.
pub const FILENAME_BYTES: usize = 256;

/// Most stored paths of control groups that were created since the sensor started.
pub const GROUP_ENTRIES: u32 = 1 << 10;

/// Most bytes that the programs store of a control group's path; the path of a pod's container takes 200.
pub const GROUP_PATH_BYTES: usize = 256;

/// Most managed files that tasks are about to execute at once.
pub const EXECUTING_ENTRIES: u32 = 256;

/// After a change of a file of the image its executions are reported for this time, in nanoseconds, whatever its verdict is: 60 s. The
/// daemon has then verified the file, and has its executions reported from then on if it differs.
pub const EXECUTIONS_AFTER_CHANGE_NS: u64 = 60_000_000_000;

/// Most allowed actors of all deny rules together.
pub const ALLOWED_ENTRIES: u32 = 4096;
