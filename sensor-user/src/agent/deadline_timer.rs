//! A timer for the next turn, to the nanosecond.
//!
//! In: a boot time. Out: a wake-up at that time. It owns the timer. The runtime's own timers round up to the next millisecond,
//! twice, which is as long as the pause that lets a writer finish.

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A timer that expires once for each time that the loop sets.
#[derive(Debug)]
pub(super) struct DeadlineTimer {
    timer: AsyncFd<Timer>,
    at: Option<u64>,
}

#[derive(Debug)]
struct Timer(TimerFd);

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl DeadlineTimer {
    /// A timer that is not set.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = Timer(TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?);
        #[expect(
            deprecated,
            reason = "the replacement is unsafe; the timer owns its descriptor while it is registered"
        )]
        let timer = AsyncFd::with_interest(timer, Interest::READABLE)?;
        Ok(Self { timer, at: None })
    }

    /// Sets the boot time in nanoseconds. A past time expires at once, and `None` never does.
    pub(super) fn set(&mut self, at: Option<u64>) -> io::Result<()> {
        if at == self.at {
            return Ok(());
        }
        let Timer(timer) = self.timer.get_ref();
        match at {
            // Zero would disarm the timer.
            Some(at) => timer.set(
                Expiration::OneShot(TimeSpec::from_duration(Duration::from_nanos(at.max(1)))),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            )?,
            None => timer.unset()?,
        }
        self.at = at;
        Ok(())
    }

    /// Waits until the time. The caller may drop the future at any point.
    pub(super) async fn expired(&mut self) -> io::Result<()> {
        self.timer.readable_mut().await?.clear_ready();
        self.at = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock as _, SystemClock};

    #[tokio::test]
    async fn the_timer_expires_for_each_set_time_and_not_before() {
        let mut timer = DeadlineTimer::new().unwrap();
        for pause in [0, 300_000, 2_000_000] {
            let at = SystemClock.boot_ns() + pause;
            timer.set(Some(at)).unwrap();
            timer.expired().await.unwrap();
            assert!(SystemClock.boot_ns() >= at);
        }
    }
}
