//! Signals, and the notifications of systemd (`sd_notify(3)`).
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

/// Signals, received from the first moment on.
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

    /// Waits for one. May be dropped at any point.
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

/// Pause between two watchdog notifications during work before the loop.
pub(super) const WATCHDOG_PAUSE: Duration = Duration::from_secs(10);

/// The shipped unit's limit for a start.
const START: Duration = Duration::from_mins(5);

/// Awaits work, and calls `tell` at once and after every pause meanwhile.
pub(super) async fn patiently<T>(work: impl Future<Output = T>, pause: Duration, tell: &dyn Fn()) -> T {
    let mut work = pin!(work);
    let mut pauses = tokio::time::interval(pause);
    loop {
        tokio::select! {
            // No notification after the work is done, however many pauses went by meanwhile.
            biased;
            done = &mut work => return done,
            _ = pauses.tick() => tell(),
        }
    }
}

/// Asks systemd to wait longer for the start than the unit says, and resets its watchdog.
pub(super) fn work_goes_on() {
    let patience = u32::try_from(WATCHDOG_PAUSE.as_micros().saturating_mul(6)).unwrap_or(u32::MAX);
    notify(&[
        NotifyState::ExtendTimeoutUsec(patience),
        NotifyState::Watchdog,
        NotifyState::Status("recovering an interrupted apply"),
    ]);
}

/// Clears the status of the work. The rest of the start has as long as the unit grants for all of it.
pub(super) fn work_is_over() {
    let start = u32::try_from(START.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::ExtendTimeoutUsec(start), NotifyState::Status("")]);
}

/// Notifies systemd, if it set a socket for that.
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
