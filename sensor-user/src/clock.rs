//! Clocks. Callers receive a [`Clock`], so that tests need no sleep.
//!
//! In: nothing. Out: wall-clock times for records, boot-time nanoseconds (the clock of the kernel programs), and the boot id, with which
//! a boot time is unique. It never sleeps and never sets a clock.

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};
use std::{fmt::Debug, io, path::Path, time::Duration};

/// A source of times.
pub trait Clock: Debug + Send + Sync {
    /// Wall-clock time.
    fn now(&self) -> Timestamp;

    /// Nanoseconds since boot, suspended time included (`CLOCK_BOOTTIME`), as `bpf_ktime_get_boot_ns` and
    /// `task_struct.start_boottime` have them.
    fn boot_ns(&self) -> u64;

    /// The wall-clock time of a moment in boot-time nanoseconds, by the present difference between the two clocks. For a moment that
    /// the wall clock cannot express it gives the present time.
    fn wall_at(&self, boot_ns: u64) -> Timestamp {
        let now = self.now();
        let here = self.boot_ns();
        let moved = if boot_ns <= here {
            now.checked_sub(Duration::from_nanos(here - boot_ns))
        } else {
            now.checked_add(Duration::from_nanos(boot_ns - here))
        };
        moved.unwrap_or(now)
    }
}

/// The kernel's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn boot_ns(&self) -> u64 {
        let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// RFC 3339 in UTC with all nine digits of the nanoseconds, so that texts have the order of their times.
pub fn rfc3339(time: Timestamp) -> String {
    format!("{time:.9}")
}

/// The kernel's boot id, from below a mounted procfs (normally `/proc`).
pub fn boot_id(proc: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(proc.join("sys/kernel/random/boot_id"))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fixed;

    impl Clock for Fixed {
        fn now(&self) -> Timestamp {
            "2026-01-02T03:04:05Z".parse().unwrap()
        }
        fn boot_ns(&self) -> u64 {
            10_000_000_000
        }
    }

    #[test]
    fn a_boot_time_is_placed_on_the_wall_clock_before_and_after_now() {
        assert_eq!(rfc3339(Fixed.wall_at(9_000_000_001)), "2026-01-02T03:04:04.000000001Z");
        assert_eq!(rfc3339(Fixed.wall_at(12_000_000_000)), "2026-01-02T03:04:07.000000000Z");
    }

    #[test]
    fn a_moment_beyond_the_wall_clock_is_given_as_now() {
        // 2^64 ns are 584 years. The sum exceeds jiff's range only for a clock at the end of the range.
        #[derive(Debug)]
        struct End;
        impl Clock for End {
            fn now(&self) -> Timestamp {
                Timestamp::MAX
            }
            fn boot_ns(&self) -> u64 {
                0
            }
        }
        assert_eq!(End.wall_at(u64::MAX), Timestamp::MAX);
    }

    #[test]
    fn the_boot_clock_is_that_of_proc_uptime() {
        let before = SystemClock.boot_ns();
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let after = SystemClock.boot_ns();
        let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let uptime = Duration::from_secs_f64(seconds);
        assert!(Duration::from_nanos(before) <= uptime + Duration::from_millis(11), "{before} {uptime:?}");
        assert!(uptime <= Duration::from_nanos(after), "{uptime:?} {after}");
    }

    #[test]
    fn the_boot_id_is_a_uuid() {
        assert_eq!(boot_id(Path::new("/proc")).unwrap().len(), 36);
    }
}
