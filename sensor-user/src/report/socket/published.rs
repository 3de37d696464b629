//! The newest status, which the loop shares with the thread of the socket.
//!
//! In: each new status, and the beats of the loop. Out: the newest status with its number, and whether the loop still works. The
//! loop only replaces values: it never waits for a reader.

use crate::clock::Clock;
use crate::report::status_file::longest_age;
use hyper::body::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// One status.
#[derive(Debug, Clone)]
pub(super) struct StatusVersion {
    /// Its number, which no other status of this host has.
    pub(super) number: u64,
    /// The status as JSON.
    pub(super) text: Bytes,
}

/// The side of the loop.
#[derive(Debug)]
pub(in crate::report) struct StatusPublisher {
    status: watch::Sender<Option<StatusVersion>>,
    last: u64,
    beat: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
}

/// The side of the socket.
#[derive(Debug, Clone)]
pub(in crate::report) struct Published {
    pub(super) status: watch::Receiver<Option<StatusVersion>>,
    /// Boot-time nanoseconds of the last beat.
    beat: Arc<AtomicU64>,
    longest: Duration,
    clock: Arc<dyn Clock>,
}

/// The two sides. `pause`: the time between two beats of the loop.
pub(in crate::report) fn channel(clock: Arc<dyn Clock>, pause: Duration) -> (StatusPublisher, Published) {
    let (sender, status) = watch::channel(None);
    let now = clock.boot_ns();
    let beat = Arc::new(AtomicU64::new(now));
    let published =
        Published { status, beat: Arc::clone(&beat), longest: longest_age(pause), clock: Arc::clone(&clock) };
    // A peer that knows a number of an earlier daemon must not take it for one of this daemon.
    (StatusPublisher { status: sender, last: now, beat, clock }, published)
}

impl StatusPublisher {
    /// Replaces the status.
    pub(in crate::report) fn publish(&mut self, text: Vec<u8>) {
        self.last += 1;
        self.status.send_replace(Some(StatusVersion { number: self.last, text: text.into() }));
        self.beat();
    }

    /// The loop works.
    pub(in crate::report) fn beat(&self) {
        self.beat.store(self.clock.boot_ns(), Ordering::Relaxed);
    }
}

impl Published {
    /// The number of the newest status; `None` before the first.
    #[cfg(test)]
    pub(in crate::report) fn newest(&self) -> Option<u64> {
        self.status.borrow().as_ref().map(|status| status.number)
    }

    /// How long the loop has not worked, if that is too long for the status to be current.
    pub(super) fn outdated_for(&self) -> Option<Duration> {
        let age = self.clock.boot_ns().saturating_sub(self.beat.load(Ordering::Relaxed));
        Some(Duration::from_nanos(age)).filter(|age| *age > self.longest)
    }

    /// Boot-time nanoseconds of the last beat.
    pub(super) fn last_beat(&self) -> u64 {
        self.beat.load(Ordering::Relaxed)
    }

    /// The time after which the status is outdated unless the loop works until then.
    pub(super) fn current_for(&self) -> Duration {
        let age = self.clock.boot_ns().saturating_sub(self.beat.load(Ordering::Relaxed));
        self.longest.saturating_sub(Duration::from_nanos(age)) + Duration::from_millis(1)
    }
}
