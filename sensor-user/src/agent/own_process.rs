//! A process of this program that works for the daemon in the background.
//!
//! In: the inputs of the daemon, and the time. Out: one process while its work is due. It reads the same configs and policies as the
//! daemon, and leaves its result in the state directory.

use crate::desired::{Inputs, reader_process};
use std::io;
use std::process::{Child, Stdio};
use std::time::Duration;

/// From a process that failed to the next one.
const PAUSE: Duration = Duration::from_hours(1);

/// The process, and when the next one is due.
#[derive(Debug)]
pub(super) struct OwnProcess {
    subcommand: &'static str,
    child: Option<Child>,
    /// Killed processes that may still exist.
    ending: Vec<Child>,
    /// Boot-time nanoseconds; 0 at the beginning of a run.
    due: u64,
}

impl OwnProcess {
    /// Runs a subcommand of this program, at once.
    pub(super) fn of(subcommand: &'static str) -> Self {
        Self { subcommand, child: None, ending: Vec::new(), due: 0 }
    }

    /// Whether a process is due.
    pub(super) fn is_due(&self, now: u64) -> bool {
        now >= self.due
    }

    /// Whether a process runs.
    pub(super) fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Starts the process if it is due, and takes its result. After a success the next one is due `again` later; with `None`, in the next
    /// run.
    pub(super) fn follow(&mut self, inputs: &Inputs, now: u64, again: Option<Duration>) {
        self.ending.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let after = |pause: Duration| now.saturating_add(u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX));
        let subcommand = self.subcommand;
        if let Some(child) = &mut self.child {
            let Ok(Some(status)) = child.try_wait() else { return };
            self.child = None;
            self.due = if status.success() {
                again.map_or(u64::MAX, after)
            } else {
                tracing::warn!(
                    subcommand,
                    %status,
                    "A process of the daemon ended early; the daemon tries again in an hour."
                );
                after(PAUSE)
            };
        }
        if now < self.due {
            return;
        }
        match self.start(inputs) {
            Ok(child) => self.child = Some(child),
            Err(error) => {
                tracing::warn!(subcommand, %error, "Cannot start a process of the daemon.");
                self.due = after(PAUSE);
            }
        }
    }

    fn start(&self, inputs: &Inputs) -> io::Result<Child> {
        let mut command = reader_process::command(self.subcommand, inputs);
        command.stdin(inputs.standard_input()).stdout(Stdio::null()).spawn()
    }

    /// For the next run: it goes on with a process that runs, or has one start at once.
    pub(super) fn carry(self) -> Self {
        Self { due: 0, ..self }
    }

    /// Ends the process, for the next run.
    pub(super) fn end(mut self) -> Self {
        if let Some(mut child) = self.child.take() {
            if let Err(error) = child.kill() {
                tracing::warn!(subcommand = self.subcommand, %error, "Cannot end a process of the daemon.");
            }
            self.ending.push(child);
        }
        self.ending.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        self.carry()
    }
}
