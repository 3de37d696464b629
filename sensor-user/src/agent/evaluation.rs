//! When the daemon looks again which directories the globs of closed rules match, and which trees are sealed, because of a change.
//!
//! In: changes of names in the directories in which the globs look for names, and mounts at paths of the image. Out: the time at which a look
//! is due. A change only makes the daemon look. It looks with each beat of the canary besides.

use super::mounts::below;
use crate::observation::OF_THE_HOST;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel reports a name before it exists. The daemon looks this long after the report, in nanoseconds.
const SETTLES_NS: u64 = 20_000_000;

/// The shortest pause between two looks because of mounts, in nanoseconds.
const MOUNTS_PAUSE_NS: u64 = 1_000_000_000;

/// When the daemon looked after a change, and when the next look is due, in boot-time nanoseconds.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Evaluation {
    last: u64,
    due: Option<u64>,
    /// The pause between two looks because of mounts. It doubles while looks follow one another.
    mounts_pause: u64,
}

impl Evaluation {
    /// A name changed. A user who can write in such a directory may change names without end, so the next look waits for a pause after the
    /// last one.
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

    /// When the next look is due.
    pub(super) fn due(&self) -> Option<u64> {
        self.due
    }

    /// Whether it is due now. If so, the caller looks, and then calls [`Evaluation::looked`].
    pub(super) fn take_due(&mut self, now: u64) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.due = None;
        }
        is_due
    }

    /// A look has ended, which may have taken long. Pauses are at most `longest`.
    pub(super) fn looked(&mut self, now: u64, longest: Duration) {
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
        let is_of_host = OF_THE_HOST.iter().any(|above| point.starts_with(above));
        !is_of_host && paths.iter().any(|path| point.starts_with(path) || path.starts_with(&point))
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

    /// The times of the looks while something changes each millisecond for so many seconds. Each look takes half a second.
    fn looks(seconds: u64, change: impl Fn(&mut Evaluation, u64)) -> Vec<u64> {
        let mut evaluation = Evaluation::default();
        let mut looks = Vec::new();
        let mut now = 1;
        while now < seconds * SECOND {
            change(&mut evaluation, now);
            if evaluation.take_due(now) {
                looks.push(now);
                now += SECOND / 2;
                evaluation.looked(now, PAUSE);
            }
            now += 1_000_000;
        }
        looks
    }

    #[test]
    fn names_that_change_without_end_cause_a_look_in_each_pause() {
        let looks = looks(30, |evaluation, now| evaluation.name_changed(now, PAUSE));
        assert_eq!(looks.len(), 3, "{looks:?}");
        assert!(looks[0] < 2 * SETTLES_NS, "{looks:?}");
        assert!(looks.windows(2).all(|two| two[1] - two[0] >= 10 * SECOND), "{looks:?}");
    }

    #[test]
    fn mounts_without_end_cause_looks_with_a_pause_that_grows_to_that_of_the_canary() {
        let looks = looks(100, |evaluation, now| evaluation.mounted(now, PAUSE));
        let pauses: Vec<u64> = looks.windows(2).map(|two| (two[1] - two[0]) / SECOND).collect();
        assert_eq!(pauses[..5], [1, 2, 4, 8, 10], "{pauses:?}");
        assert!(pauses[5..].iter().all(|pause| *pause == 10), "{pauses:?}");
    }

    #[test]
    fn after_a_quiet_time_a_mount_causes_a_look_at_once() {
        let mut evaluation = Evaluation::default();
        for now in [1, 60 * SECOND, 61 * SECOND, 200 * SECOND] {
            evaluation.mounted(now, PAUSE);
            let due = evaluation.due().unwrap();
            assert!(due <= now + SECOND, "{now}: {due}");
            assert!(
                !evaluation.take_due(due - 1) && evaluation.take_due(due) && !evaluation.take_due(u64::MAX)
            );
            evaluation.looked(due, PAUSE);
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
        evaluation.looked(1, PAUSE);
        evaluation.name_changed(2, PAUSE);
        assert_eq!(evaluation.due(), Some(1 + 10 * SECOND));
        evaluation.mounted(2, PAUSE);
        assert_eq!(evaluation.due(), Some(1 + SECOND));
        evaluation.name_changed(3, PAUSE);
        assert_eq!(evaluation.due(), Some(1 + SECOND));
    }
}
