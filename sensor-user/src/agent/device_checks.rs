//! Writes to block devices, which bypass every hook.
//!
//! In: records of block devices that a process opened for writing. Out: the times of full verifications: at once, and once more
//! after a pause. It owns these times. The pause leaves time for other work on a node where processes open devices all the time.

use std::fs;
use std::path::{Path, PathBuf};

/// Pause between two full verifications, in nanoseconds. The second finds what was written after the first.
const PAUSE_NS: u64 = 30_000_000_000;

/// The times of full verifications because a process may write to a device.
#[derive(Debug, Default)]
pub(super) struct DeviceChecks {
    last: Option<u64>,
    due: Option<u64>,
}

impl DeviceChecks {
    /// A process may write from now on. Gives whether to verify everything at once.
    pub(super) fn opened(&mut self, now: u64) -> bool {
        let at_once = self.last.is_none_or(|last| now.saturating_sub(last) >= PAUSE_NS);
        if at_once {
            self.last = Some(now);
        }
        self.due = Some(self.last.unwrap_or(now) + PAUSE_NS);
        at_once
    }

    /// The time of the next verification.
    pub(super) fn due(&self) -> Option<u64> {
        self.due
    }

    /// Whether the verification is due now. `true` once.
    pub(super) fn is_due(&mut self, now: u64) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.due = None;
            self.last = Some(now);
        }
        is_due
    }
}

/// The path that the kernel gives a block device with this number in the kernel's form (`include/linux/kdev_t.h`). The opened
/// device node may have another name.
pub(super) fn device(sysfs: &Path, number: u64) -> PathBuf {
    let (major, minor) = (number >> 20, number & 0xf_ffff);
    let name = fs::read_link(sysfs.join(format!("{major}:{minor}")));
    match name.as_ref().ok().and_then(|target| target.file_name()) {
        // sysfs writes a slash in a name as an exclamation mark.
        Some(name) => Path::new("/dev").join(name.to_string_lossy().replace('!', "/")),
        None => PathBuf::from(format!("/dev/block/{major}:{minor}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_the_kernels_name_or_its_number() {
        let sysfs = tempfile::tempdir().unwrap();
        for (number, target) in [("7:3", "../../devices/virtual/block/loop3"), ("104:1", "../x/cciss!c0d0p1")]
        {
            std::os::unix::fs::symlink(target, sysfs.path().join(number)).unwrap();
        }
        let named = |major: u64, minor: u64| device(sysfs.path(), major << 20 | minor);
        assert_eq!(named(7, 3), Path::new("/dev/loop3"));
        assert_eq!(named(104, 1), Path::new("/dev/cciss/c0d0p1"));
        assert_eq!(named(8, 0), Path::new("/dev/block/8:0"));
    }

    #[test]
    fn endless_openings_verify_everything_once_in_a_pause_and_once_after_the_last() {
        let mut checks = DeviceChecks::default();
        let mut verifications = Vec::new();
        let second = 1_000_000_000;
        for now in (0..200 * second).step_by(usize::try_from(second).unwrap()) {
            let opened = now <= 100 * second && checks.opened(now);
            if opened || checks.is_due(now) {
                verifications.push(now / second);
            }
        }
        assert_eq!(verifications, [0, 30, 60, 90, 120]);
        assert_eq!(checks.due(), None);
    }
}
