//! What a scan spends, between two files and inside a long one.
//!
//! In: the pace, and the parts of a file that are read. Out: pauses.

use nix::time::{ClockId, clock_gettime};
use sensor_model::image::{ScanPace, ScanSpent};
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// What was spent since the last pause.
pub(super) struct Spending {
    pub(super) since: Instant,
    processor: Duration,
    pub(super) bytes: u64,
}

impl Spending {
    pub(super) fn now() -> Self {
        Self { since: Instant::now(), processor: processor_time(), bytes: 0 }
    }

    pub(super) fn so_far(&self) -> ScanSpent {
        ScanSpent { processor: processor_time().saturating_sub(self.processor), bytes: self.bytes }
    }
}

/// Pauses while a file is read, for [`Observer::with_pauses`](crate::observation::Observer::with_pauses): after each part that exceeds the
/// pace. A scan also pauses after each file. It counts the time of these pauses, so no byte counts twice.
pub fn pauses_in_a_file(
    pace: ScanPace,
    pause: impl Fn(Duration) + Send + Sync,
) -> impl Fn(u64, u64) + Send + Sync {
    let spending = Mutex::new(Spending::now());
    move |before, part| {
        // A panic leaves the last pause as it was.
        let mut spending = spending.lock().unwrap_or_else(PoisonError::into_inner);
        if before == 0 {
            *spending = Spending::now();
        }
        spending.bytes += part;
        if let Some(due) = pace.pause(spending.so_far(), spending.since.elapsed()) {
            pause(due);
            *spending = Spending::now();
        }
    }
}

/// Processor time of this process.
fn processor_time() -> Duration {
    // The clock exists on every Linux.
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_long_file_has_its_pause() {
        let paused = Mutex::new(Vec::new());
        let pace = ScanPace { processor: 1.0, bytes: 1.0 };
        let seconds = |due: Duration| (due + Duration::from_millis(500)).as_secs();
        let after_part = pauses_in_a_file(pace, |due| paused.lock().unwrap().push(seconds(due)));
        for (before, part) in [(0, 0), (0, 1_000), (1_000, 500), (0, 100)] {
            after_part(before, part);
        }
        drop(after_part);
        assert_eq!(*paused.lock().unwrap(), [1_000, 500, 100], "an empty file needs no pause");
    }
}
