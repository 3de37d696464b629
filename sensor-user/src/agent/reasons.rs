//! Why gaps open: a closed list of words, since each is a label of a metric.

/// The thing lies on a file system that others can change without this kernel.
pub const FOREIGN: &str = "foreign-file-system";

/// The file system of the thing does not answer.
pub const HANGS: &str = "file-system-hangs";

/// The fanotify mark on the thing's path failed.
pub const UNWATCHED: &str = "fanotify-unwatched";

/// The fanotify queue was full.
pub const FANOTIFY_OVERFLOW: &str = "fanotify-overflow";

/// `/proc/self/mountinfo` cannot be read.
pub const MOUNTS_UNREADABLE: &str = "mounts-unreadable";

/// The daemon starts, and no programs of an earlier one were attached.
pub const SENSOR_START: &str = "sensor-start";

/// Entries of the forensic log are missing, and with them what they say of changes.
pub const LOG_CUT: &str = "forensic-log-cut";

/// The map had no entry of an enrolled inode, or another one.
pub const ENTRY_REMOVED: &str = "entry-removed";

/// The kernel left out a call of a program.
pub const RECURSION_MISSED: &str = "recursion-missed";

/// `ftrace_enabled` is 0: the kernel runs no fentry program.
pub const FTRACE_DISABLED: &str = "ftrace-disabled";

/// A process has `ftrace_enabled` open for writing, or had since the last look at it.
pub const FTRACE_OPENED: &str = "ftrace-opened";

/// The programs did not count the canary's change, or did not answer the look at it.
pub const CANARY_NOT_SEEN: &str = "canary-not-seen";

/// The canary's change was counted, and its record did not arrive.
pub const CANARY_NOT_HEARD: &str = "canary-not-heard";

/// The canary file cannot be written.
pub const CANARY_NOT_WRITTEN: &str = "canary-not-written";

/// The canary file has no entry in the map.
pub const CANARY_NOT_ENROLLED: &str = "canary-not-enrolled";

/// All of them.
pub const ALL: [&str; 15] = [
    FANOTIFY_OVERFLOW,
    UNWATCHED,
    FOREIGN,
    HANGS,
    MOUNTS_UNREADABLE,
    SENSOR_START,
    LOG_CUT,
    ENTRY_REMOVED,
    RECURSION_MISSED,
    FTRACE_DISABLED,
    FTRACE_OPENED,
    CANARY_NOT_SEEN,
    CANARY_NOT_HEARD,
    CANARY_NOT_WRITTEN,
    CANARY_NOT_ENROLLED,
];
