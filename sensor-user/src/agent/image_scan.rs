//! The processes about the image of the OS: one makes the index of the booted commit, and one compares what the image has and the
//! daemon does not watch.
//!
//! In: the policy, and the time. Out: the index once in a run, and a scan while a round is due. The scan keeps its findings in a file.
//! The daemon reads it with the configs, and watches what differs.

use super::own_process::OwnProcess;
use crate::clock::{Clock as _, SystemClock};
use crate::desired::Inputs;
use std::time::Duration;

/// From one process of the scan to the next. A process ends at once if no round is due.
const PAUSE: Duration = Duration::from_hours(1);

/// The process that makes the index of the booted commit. It ends at once if there is one.
#[derive(Debug)]
pub(super) struct ImageIndexing(OwnProcess);

impl Default for ImageIndexing {
    fn default() -> Self {
        Self(OwnProcess::of("make-index"))
    }
}

impl ImageIndexing {
    /// Whether a process is due.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.0.is_due(now)
    }

    /// Whether a process runs.
    pub(super) fn is_running(&self) -> bool {
        self.0.is_running()
    }

    /// Starts the process once in a run. The booted commit stays the same in it.
    pub(super) fn follow(&mut self, inputs: &Inputs, now: u64) {
        self.0.follow(inputs, now, None);
    }

    /// For the next run. It does not matter to the process that configs or policies changed.
    pub(super) fn carry(self) -> Self {
        Self(self.0.carry())
    }
}

/// The process of the scan.
#[derive(Debug)]
pub(super) struct ImageScan {
    process: OwnProcess,
    /// Seconds since 1970 at which the daemon found that a policy asks for a scan; `None` if none does.
    asked: Option<i64>,
    /// A policy of this daemon asked for none before.
    was_off: bool,
}

impl Default for ImageScan {
    fn default() -> Self {
        Self { process: OwnProcess::of("scan"), asked: None, was_off: false }
    }
}

impl ImageScan {
    /// Starts the process if it is due, and takes its result.
    pub(super) fn follow(&mut self, inputs: &Inputs, now: u64) {
        self.process.follow(inputs, now, Some(PAUSE));
    }

    /// The time from which on a scan gets stale, in seconds since 1970: the end of the last round. If there is none, or if a policy asks for a
    /// scan again after none did, it is when the daemon found that.
    pub(super) fn stale_from(&mut self, ended: Option<i64>) -> i64 {
        let asked = *self.asked.get_or_insert_with(|| SystemClock.now().as_second());
        match ended {
            Some(ended) if self.was_off => ended.max(asked),
            Some(ended) => ended,
            None => asked,
        }
    }

    /// No policy asks for a scan.
    pub(super) fn not_asked(&mut self) {
        (self.asked, self.was_off) = (None, true);
    }

    /// Whether a process runs.
    pub(super) fn is_running(&self) -> bool {
        self.process.is_running()
    }

    /// Ends the process, for the next run. The next process goes on where it was.
    pub(super) fn end(self) -> Self {
        Self { process: self.process.end(), ..self }
    }
}
