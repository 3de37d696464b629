//! When one object is to be written: at once if it changed, later if the last attempt failed, and again after a while.

use super::error::PublishError;
use crate::backoff::Backoff;
use std::time::Duration;
use tokio::time::Instant;

/// First pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Longest pause that the API server may ask for.
const LONGEST_ASKED: Duration = Duration::from_mins(5);

/// What was written last, and when the next attempt may be.
#[derive(Debug)]
pub(super) struct WriteAttempts<T> {
    written: Option<(T, Instant)>,
    /// An unchanged value is written again after this time.
    refresh: Duration,
    backoff: Backoff,
    not_before: Option<Instant>,
    /// Since when each attempt failed to write what is to be written.
    failing_since: Option<Instant>,
}

impl<T: PartialEq> WriteAttempts<T> {
    pub(super) const fn new(refresh: Duration) -> Self {
        let backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        Self { written: None, refresh, backoff, not_before: None, failing_since: None }
    }

    /// When this value is to be written; `None` if at once.
    pub(super) fn later(&mut self, value: &T) -> Option<Instant> {
        let now = Instant::now();
        let due = match &self.written {
            Some((written, at)) if written == value => *at + self.refresh,
            _ => now,
        };
        if due > now {
            // The value is the last written one again, so the API server has it.
            self.failing_since = None;
        }
        let due = self.not_before.map_or(due, |not_before| due.max(not_before));
        (due > now).then_some(due)
    }

    /// Takes the result of an attempt to write this value. Gives the time at which the next one is due if nothing changes.
    pub(super) fn done(&mut self, value: T, result: Result<(), PublishError>) -> Instant {
        let now = Instant::now();
        match result {
            Ok(()) => {
                if self.backoff.is_failing() {
                    tracing::info!("The API server takes this node's reports again.");
                }
                self.backoff.reset();
                self.not_before = None;
                self.failing_since = None;
                self.written = Some((value, now));
                now + self.refresh
            }
            Err(error) => {
                let is_first = !self.backoff.is_failing();
                // A kind that does not exist has no object that could be out of date.
                self.failing_since = if error.is_missing() { None } else { self.failing_since.or(Some(now)) };
                let pause = self.backoff.next_pause().max(error.retry_after().min(LONGEST_ASKED));
                let error = anyhow::Error::from(error);
                if is_first {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "The API server was not written to; trying again."
                    );
                } else {
                    tracing::debug!(error = format!("{error:#}"), ?pause, "not written again");
                }
                self.not_before = Some(now + pause);
                now + pause
            }
        }
    }

    /// When a value was written last.
    pub(super) fn written_at(&self) -> Option<Instant> {
        self.written.as_ref().map(|(_, at)| *at)
    }

    /// Since when each attempt failed; `None` if the API server has what is to be written, or does not know the kind.
    pub(super) const fn failing_since(&self) -> Option<Instant> {
        self.failing_since
    }

    /// The next value is written even if it is the same.
    pub(super) fn forget(&mut self) {
        self.written = None;
    }
}
