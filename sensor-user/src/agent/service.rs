//! What the daemon and systemd tell each other.
//!
//! In: the environment that systemd gives. Out: notifications, where it asked for any.

use sd_notify::NotifyState;
use std::{future::Future, io, pin::pin, time::Duration};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What the daemon is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// End.
    Stop,
    /// Read configs and policies again.
    Reload,
}

/// Requests, heard from the first moment on.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for one. It may be given up at any time.
    pub(super) async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.hangup.recv() => Asked::Reload,
        }
    }
}

/// Half of the watchdog's patience, where systemd has one.
pub(super) fn watchdog_pause() -> Duration {
    std::env::var("WATCHDOG_USEC")
        .ok()
        .and_then(|text| text.parse().ok())
        .map_or(Duration::from_hours(1), |micros: u64| Duration::from_micros(micros / 2))
}

/// Pause between two signs of life during work before the loop.
pub(super) const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// The shipped unit's limit for a start.
const START: Duration = Duration::from_mins(5);

/// Awaits work and tells meanwhile that it goes on, at once and after every pause.
pub(super) async fn patiently<T>(work: impl Future<Output = T>, pause: Duration, tell: &dyn Fn()) -> T {
    let mut work = pin!(work);
    let mut pauses = tokio::time::interval(pause);
    loop {
        tokio::select! {
            // Work that is done is not told of once more, however many pauses went by meanwhile.
            biased;
            done = &mut work => return done,
            _ = pauses.tick() => tell(),
        }
    }
}

/// Tells systemd to wait longer than the unit says for the start, and that the process lives.
pub(super) fn still_at_work() {
    let patience = u32::try_from(SIGN_OF_LIFE.as_micros().saturating_mul(6)).unwrap_or(u32::MAX);
    notify(&[
        NotifyState::ExtendTimeoutUsec(patience),
        NotifyState::Watchdog,
        NotifyState::Status("working off an apply that was interrupted"),
    ]);
}

/// Takes back what was said of work. What is left of the start has as long as the unit gives all of it.
pub(super) fn work_is_over() {
    let start = u32::try_from(START.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::ExtendTimeoutUsec(start), NotifyState::Status("")]);
}

/// Tells systemd, where it asked to be told.
pub(super) fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "Cannot notify systemd.");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn long_work_is_told_of_until_it_is_done() {
        let (told, enough) = (Cell::new(0), Notify::new());
        let tell = || {
            told.set(told.get() + 1);
            if told.get() == 3 {
                enough.notify_one();
            }
        };
        patiently(enough.notified(), Duration::from_millis(1), &tell).await;
        assert_eq!(told.get(), 3);
    }
}
