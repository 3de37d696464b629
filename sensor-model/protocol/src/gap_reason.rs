//! Why gaps open.
//!
//! In: nothing. Out: one value for each cause, with its name in records, in the status and in metrics. The detector keeps one
//! lasting gap for each reason whose things enter and leave one by one.

use crate::names;
use std::fmt;

names! {
    /// Why evidence may have been lost.
    pub enum GapReason {
        /// The fanotify queue was full.
        FanotifyOverflow = "fanotify-overflow",
        /// The fanotify mark on the thing's path failed.
        FanotifyUnwatched = "fanotify-unwatched",
        /// Other hosts, or a daemon, can change files on the thing's file system without this kernel.
        ForeignFileSystem = "foreign-file-system",
        /// The server of the thing's file system does not answer.
        FileSystemHangs = "file-system-hangs",
        /// The daemon cannot read `/proc/self/mountinfo`.
        MountsUnreadable = "mounts-unreadable",
        /// The daemon starts, and no programs of an earlier daemon were attached.
        SensorStart = "sensor-start",
        /// The daemon starts in another root directory than the daemon before, whose programs run. Until its inodes were enrolled,
        /// no program watched them.
        NewRoot = "new-root",
        /// A drift policy expects what the image has at the thing's path, and no index of the image exists.
        ImageNotIndexed = "image-not-indexed",
        /// The forensic log lacks entries that an earlier daemon wrote.
        ForensicLogCut = "forensic-log-cut",
        /// The map had no entry of an enrolled inode, or a changed one.
        EntryRemoved = "entry-removed",
        /// The kernel skipped a call of a program.
        RecursionMissed = "recursion-missed",
        /// `ftrace_enabled` is 0: the kernel runs neither fentry nor LSM programs.
        FtraceDisabled = "ftrace-disabled",
        /// A process has `ftrace_enabled` open for writing, or had since the daemon's last check.
        FtraceOpened = "ftrace-opened",
        /// The programs did not count the canary's change, or did not answer the daemon's observation of the canary.
        CanaryNotSeen = "canary-not-seen",
        /// The programs counted the canary's change, and its record did not arrive.
        CanaryNotReceived = "canary-not-heard",
        /// The daemon cannot write the canary file.
        CanaryNotWritten = "canary-not-written",
        /// The canary file has no entry in the map.
        CanaryNotEnrolled = "canary-not-enrolled",
    }
}

impl fmt::Display for GapReason {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.as_str())
    }
}
