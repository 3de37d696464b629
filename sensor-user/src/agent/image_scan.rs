//! The process that compares what the image has and the daemon does not watch.
//!
//! In: the policy, and the time. Out: a process of this program while a round is due. The process keeps its
//! findings in a file. The daemon reads it with the configs, and watches what differs.

use crate::clock::{Clock as _, SystemClock};
use crate::desired::{Inputs, reader_process};
use std::io;
use std::process::{Child, Stdio};
use std::time::Duration;

/// The subcommand of this program that scans.
const SUBCOMMAND: &str = "scan";
/// From one process to the next. A process ends at once if no round is due.
const PAUSE: Duration = Duration::from_hours(1);

/// The process of the scan, and when the next one is due.
#[derive(Debug, Default)]
pub(super) struct ImageScan {
    child: Option<Child>,
    /// Killed processes that may still exist.
    ending: Vec<Child>,
    /// Boot-time nanoseconds; 0 at the beginning of a run.
    due: u64,
    /// Seconds since 1970 at which the daemon found that a policy asks for a scan; `None` if none does.
    asked: Option<i64>,
    /// A policy of this daemon asked for none before.
    was_off: bool,
}

impl ImageScan {
    /// Starts the process if it is due, and takes its result.
    pub(super) fn follow(&mut self, inputs: &Inputs, now: u64) {
        self.ending.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let after = |pause: Duration| now.saturating_add(u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX));
        if let Some(child) = &mut self.child {
            let Ok(Some(status)) = child.try_wait() else { return };
            if !status.success() {
                tracing::warn!(%status, "A scan of what the image has ended early; the daemon tries again in an hour.");
            }
            self.child = None;
            self.due = after(PAUSE);
        }
        if now < self.due {
            return;
        }
        match start(inputs) {
            Ok(child) => self.child = Some(child),
            Err(error) => {
                tracing::warn!(%error, "Cannot start the scan of what the image has.");
                self.due = after(PAUSE);
            }
        }
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
        self.child.is_some()
    }

    /// Ends the process, for the next run. The next process goes on where it was.
    pub(super) fn end(mut self) -> Self {
        if let Some(mut child) = self.child.take() {
            if let Err(error) = child.kill() {
                tracing::warn!(%error, "Cannot end the scan of what the image has.");
            }
            self.ending.push(child);
        }
        self.ending.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        Self { child: None, ending: self.ending, due: 0, asked: self.asked, was_off: self.was_off }
    }
}

fn start(inputs: &Inputs) -> io::Result<Child> {
    reader_process::command(SUBCOMMAND, inputs).stdin(Stdio::null()).stdout(Stdio::null()).spawn()
}
