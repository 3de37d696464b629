//! Signals, and notifications to systemd (`sd_notify(3)`).
//!
//! In: signals, and the environment from systemd. Out: requests to the loop; notifications, if systemd asked for them. It owns the
//! handlers of the signals.

use sd_notify::NotifyState;
use std::{future::Future, io, pin::pin, time::Duration};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A request by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalRequest {
    /// End.
    Stop,
    /// Read configs and policies again.
    Reload,
}

/// The signals of the daemon, which it handles from the start on.
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

    /// Waits for a signal. The caller may drop the future at any point.
    pub(super) async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.terminate.recv() => SignalRequest::Stop,
            _ = self.interrupt.recv() => SignalRequest::Stop,
            _ = self.hangup.recv() => SignalRequest::Reload,
        }
    }
}

/// Half of the watchdog's time, if the unit has a watchdog.
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

/// Awaits work, and calls `notify` at once and after every pause meanwhile.
pub(super) async fn notify_during<T>(work: impl Future<Output = T>, pause: Duration, notify: &dyn Fn()) -> T {
    let mut work = pin!(work);
    let mut pauses = tokio::time::interval(pause);
    loop {
        tokio::select! {
            // No notification follows the end of the work.
            biased;
            done = &mut work => return done,
            _ = pauses.tick() => notify(),
        }
    }
}

/// Asks systemd to wait longer for the start, and resets its watchdog.
pub(super) fn notify_recovery() {
    let patience = u32::try_from(WATCHDOG_PAUSE.as_micros().saturating_mul(6)).unwrap_or(u32::MAX);
    notify(&[
        NotifyState::ExtendTimeoutUsec(patience),
        NotifyState::Watchdog,
        NotifyState::Status("recovering an interrupted apply"),
    ]);
}

/// Clears the status of the recovery. The remaining start has the unit's time limit for a whole start.
pub(super) fn notify_recovery_ended() {
    let start = u32::try_from(START.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::ExtendTimeoutUsec(start), NotifyState::Status("")]);
}

/// Notifies systemd, if it gave the daemon a socket.
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
    async fn long_work_is_notified_until_it_is_done() {
        let (notified, enough) = (Cell::new(0), Notify::new());
        let notify = || {
            notified.set(notified.get() + 1);
            if notified.get() == 3 {
                enough.notify_one();
            }
        };
        notify_during(enough.notified(), Duration::from_millis(1), &notify).await;
        assert_eq!(notified.get(), 3);
    }
}
