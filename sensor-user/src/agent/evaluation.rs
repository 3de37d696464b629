//! When the daemon looks again which directories the globs of closed rules match and which trees are sealed, because of a change.
//!
//! In: changes of names in the directories in which the globs look for names, and mounts at paths of the image. Out: the time at which it is
//! due. A change proves nothing: it only has the daemon look, which happens with each beat of the canary besides.

use std::time::Duration;

/// The kernel reports a name before it exists. The daemon looks this long after the report, in nanoseconds.
const SETTLES_NS: u64 = 20_000_000;

/// When the daemon looked after a change, and when that is due again, in boot-time nanoseconds.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Evaluation {
    last: u64,
    due: Option<u64>,
}

impl Evaluation {
    /// Something changed. Changes may come without end, so after one look the next one waits for a pause.
    pub(super) fn request(&mut self, now: u64, pause: Duration) {
        let pause = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        let earliest = if self.last == 0 { 0 } else { self.last.saturating_add(pause) };
        let due = earliest.max(now.saturating_add(SETTLES_NS));
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    /// When the daemon looks again.
    pub(super) fn due(&self) -> Option<u64> {
        self.due
    }

    /// Whether it is due now. If so, the caller looks.
    pub(super) fn take_due(&mut self, now: u64) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            *self = Self { last: now, due: None };
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(5);
    const PAUSE_NS: u64 = 5_000_000_000;

    #[test]
    fn changes_without_end_are_due_once_in_a_pause() {
        let mut evaluation = Evaluation::default();
        let mut evaluated = Vec::new();
        for now in (1..=3 * PAUSE_NS).step_by(1_000_000) {
            evaluation.request(now, PAUSE);
            if evaluation.take_due(now) {
                evaluated.push(now);
            }
        }
        assert_eq!(evaluated.len(), 3, "{evaluated:?}");
        assert!(evaluated[0] < 2 * SETTLES_NS, "{evaluated:?}");
        assert!(evaluated.windows(2).all(|two| two[1] - two[0] >= PAUSE_NS), "{evaluated:?}");
    }

    #[test]
    fn a_change_in_the_pause_is_due_after_it_and_nothing_is_due_without_one() {
        let mut evaluation = Evaluation::default();
        evaluation.request(1, PAUSE);
        let first = evaluation.due().unwrap();
        assert!(
            !evaluation.take_due(first - 1) && evaluation.take_due(first) && !evaluation.take_due(u64::MAX)
        );
        evaluation.request(first + 1, PAUSE);
        assert_eq!(evaluation.due(), Some(first + PAUSE_NS));
        // A change of another kind need not wait for the pause of the first kind, and does not prolong it.
        evaluation.request(first + 1, Duration::from_secs(1));
        assert_eq!(evaluation.due(), Some(first + 1_000_000_000));
        evaluation.request(first + 1, PAUSE);
        assert_eq!(evaluation.due(), Some(first + 1_000_000_000));
    }
}
