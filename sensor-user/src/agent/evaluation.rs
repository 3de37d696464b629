//! When the daemon evaluates again which directories the globs of closed rules match, and which trees are sealed, because of a change.
//!
//! In: changes of names in the directories in which globs have names, and mounts at paths of the image. Out: the time of the next evaluation. A
//! change only causes an evaluation. Each beat of the canary causes one, too.

use super::mounts::below;
use crate::observation::is_of_host;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel reports a name before it exists. The evaluation comes this long after the report, in nanoseconds.
const SETTLES_NS: u64 = 20_000_000;

/// The shortest pause between two evaluations because of mounts, in nanoseconds.
const MOUNTS_PAUSE_NS: u64 = 1_000_000_000;

/// When the last evaluation after a change ended, and when the next one is due, in boot-time nanoseconds.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Evaluation {
    last: u64,
    due: Option<u64>,
    /// The pause between two evaluations because of mounts. It doubles while they follow one another.
    mounts_pause: u64,
}

impl Evaluation {
    /// A name changed. A user who can write in such a directory may change names without end, so the next evaluation waits for a
    /// pause after the last one.
    pub(super) fn name_changed(&mut self, now: u64, pause: Duration) {
        self.request(now, nanoseconds(pause));
    }

    /// Something was mounted or unmounted at a path of the image. The pause is at most `longest`.
    pub(super) fn mounted(&mut self, now: u64, longest: Duration) {
        self.request(now, self.mounts_pause.max(MOUNTS_PAUSE_NS).min(nanoseconds(longest)));
    }

    fn request(&mut self, now: u64, pause: u64) {
        let earliest = if self.last == 0 { 0 } else { self.last.saturating_add(pause) };
        let due = earliest.max(now.saturating_add(SETTLES_NS));
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    /// When the next evaluation is due.
    pub(super) fn due(&self) -> Option<u64> {
        self.due
    }

    /// Whether it is due now. If so, the caller evaluates, and then calls [`Evaluation::ended`].
    pub(super) fn take_due(&mut self, now: u64) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.due = None;
        }
        is_due
    }

    /// An evaluation has ended, which may have taken long. Pauses are at most `longest`.
    pub(super) fn ended(&mut self, now: u64, longest: Duration) {
        let pause = self.mounts_pause.max(MOUNTS_PAUSE_NS);
        let follows = self.last != 0 && now.saturating_sub(self.last) < pause.saturating_mul(4);
        let longest = nanoseconds(longest).max(MOUNTS_PAUSE_NS);
        self.mounts_pause = if follows { pause.saturating_mul(2).min(longest) } else { MOUNTS_PAUSE_NS };
        self.last = now;
    }
}

/// Whether a mount at one of these points may hide a part of what the image has at these paths, or show it again. The mounts of running pods are
/// in directories whose contents are not the image's.
pub(super) fn concern_image(points: &[PathBuf], root: &Path, paths: &BTreeSet<PathBuf>) -> bool {
    let concerns = |point: PathBuf| {
        !is_of_host(&point) && paths.iter().any(|path| point.starts_with(path) || path.starts_with(&point))
    };
    points.iter().filter_map(|point| below(root, point)).any(concerns)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(10);
    const SECOND: u64 = 1_000_000_000;

    /// The times of the evaluations while something changes each millisecond for so many seconds. Each takes half a second.
    fn evaluations(seconds: u64, change: impl Fn(&mut Evaluation, u64)) -> Vec<u64> {
        let mut evaluation = Evaluation::default();
        let mut times = Vec::new();
        let mut now = 1;
        while now < seconds * SECOND {
            change(&mut evaluation, now);
            if evaluation.take_due(now) {
                times.push(now);
                now += SECOND / 2;
                evaluation.ended(now, PAUSE);
            }
            now += 1_000_000;
        }
        times
    }

    #[test]
    fn names_that_change_without_end_cause_an_evaluation_in_each_pause() {
        let times = evaluations(30, |evaluation, now| evaluation.name_changed(now, PAUSE));
        assert_eq!(times.len(), 3, "{times:?}");
        assert!(times[0] < 2 * SETTLES_NS, "{times:?}");
        assert!(times.windows(2).all(|two| two[1] - two[0] >= 10 * SECOND), "{times:?}");
    }

    #[test]
    fn mounts_without_end_cause_evaluations_with_a_pause_that_grows_to_that_of_the_canary() {
        let times = evaluations(100, |evaluation, now| evaluation.mounted(now, PAUSE));
        let pauses: Vec<u64> = times.windows(2).map(|two| (two[1] - two[0]) / SECOND).collect();
        assert_eq!(pauses[..5], [1, 2, 4, 8, 10], "{pauses:?}");
        assert!(pauses[5..].iter().all(|pause| *pause == 10), "{pauses:?}");
    }

    #[test]
    fn after_a_quiet_time_a_mount_causes_an_evaluation_at_once() {
        let mut evaluation = Evaluation::default();
        for now in [1, 60 * SECOND, 61 * SECOND, 200 * SECOND] {
            evaluation.mounted(now, PAUSE);
            let due = evaluation.due().unwrap();
            assert!(due <= now + SECOND, "{now}: {due}");
            assert!(
                !evaluation.take_due(due - 1) && evaluation.take_due(due) && !evaluation.take_due(u64::MAX)
            );
            evaluation.ended(due, PAUSE);
        }
    }

    #[test]
    fn a_mount_concerns_what_the_image_has_at_it_below_it_and_above_it_below_the_hosts_root() {
        let concerns = |root: &str, point: &str, path: &str| {
            concern_image(&[PathBuf::from(point)], Path::new(root), &BTreeSet::from([PathBuf::from(path)]))
        };
        for point in ["/usr/bin/a", "/usr/bin", "/usr", "/"] {
            assert!(concerns("/", point, "/usr/bin"), "{point}");
            assert!(concerns("/host", &format!("/host{point}"), "/usr/bin"), "{point}");
        }
        assert!(concerns("/host", "/", "/usr/bin"), "the root is below it");
        for point in ["/usr/binary", "/mnt", "/etc"] {
            assert!(!concerns("/", point, "/usr/bin"), "{point}");
        }
        assert!(!concerns("/host", "/usr/bin", "/usr/bin"), "beside the host's root");
        // A rule about everything.
        assert!(!concerns("/", "/var/lib/kubelet/pods/a/volumes/b", "/") && concerns("/", "/opt/a", "/"));
    }

    #[test]
    fn of_two_changes_the_earlier_time_counts() {
        let mut evaluation = Evaluation::default();
        evaluation.ended(1, PAUSE);
        evaluation.name_changed(2, PAUSE);
        assert_eq!(evaluation.due(), Some(1 + 10 * SECOND));
        evaluation.mounted(2, PAUSE);
        assert_eq!(evaluation.due(), Some(1 + SECOND));
        evaluation.name_changed(3, PAUSE);
        assert_eq!(evaluation.due(), Some(1 + SECOND));
    }
}
