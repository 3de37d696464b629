//! When the globs of closed directories are evaluated again because of a new name.
//!
//! In: changes of names in the directories in which the globs look for names. Out: the time at which it is due. A name proves
//! nothing: it only has the globs evaluated, which happens with each beat of the canary besides.

use std::time::Duration;

/// The kernel reports a name before it exists. The globs are evaluated this long after the report, in nanoseconds.
const SETTLES_NS: u64 = 20_000_000;

/// When the globs were evaluated after a change of a name, and when that is due again, in boot-time nanoseconds.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct GlobNames {
    last: u64,
    due: Option<u64>,
}

impl GlobNames {
    /// A name changed. A user who can write in such a directory may change names without end, so after one evaluation the next
    /// one waits for a pause.
    pub(super) fn changed(&mut self, now: u64, pause: Duration) {
        let pause = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        let earliest = if self.last == 0 { 0 } else { self.last.saturating_add(pause) };
        self.due.get_or_insert(earliest.max(now.saturating_add(SETTLES_NS)));
    }

    /// When the globs are due.
    pub(super) fn due(&self) -> Option<u64> {
        self.due
    }

    /// Whether the globs are due now. If so, the caller evaluates them.
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
    fn names_that_change_without_end_are_due_once_in_a_pause() {
        let mut names = GlobNames::default();
        let mut evaluated = Vec::new();
        for now in (1..=3 * PAUSE_NS).step_by(1_000_000) {
            names.changed(now, PAUSE);
            if names.take_due(now) {
                evaluated.push(now);
            }
        }
        assert_eq!(evaluated.len(), 3, "{evaluated:?}");
        assert!(evaluated[0] < 2 * SETTLES_NS, "{evaluated:?}");
        assert!(evaluated.windows(2).all(|two| two[1] - two[0] >= PAUSE_NS), "{evaluated:?}");
    }

    #[test]
    fn a_name_that_changed_in_the_pause_is_due_after_it_and_nothing_is_due_without_one() {
        let mut names = GlobNames::default();
        names.changed(1, PAUSE);
        let first = names.due().unwrap();
        assert!(!names.take_due(first - 1) && names.take_due(first) && !names.take_due(u64::MAX));
        names.changed(first + 1, PAUSE);
        assert_eq!(names.due(), Some(first + PAUSE_NS));
    }
}
