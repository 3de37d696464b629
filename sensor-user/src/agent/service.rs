//! What the daemon and systemd tell each other.
//!
//! In: the environment that systemd gives. Out: notifications, where it asked for any.

use std::{io, time::Duration};
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

/// Tells systemd, where it asked to be told.
pub(super) fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "Cannot notify systemd.");
    }
}
