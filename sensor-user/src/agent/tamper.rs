//! What by-passes the sensor or blinds it: block devices and tunables that are opened for writing.
//!
//! In: records of such openings. Out: a forensic record of each with its actor, and full verifications: what is
//! written to a device is seen by nobody. These come at once and once more when a while has passed, and not more
//! often, so that a node on which devices are opened all the time still has time for other things.

use super::Agent;
use super::canary::DEVICES_ID;
use crate::event::Change;
use sensor_model::protocol::Scope;
use sensor_model::record::RecordKind;
use std::fs;
use std::path::{Path, PathBuf};

/// Between two full verifications because of openings, in nanoseconds: what was written after the first is found by
/// the second.
const PAUSE_NS: u64 = 30_000_000_000;

/// When things are verified because somebody could write beneath them.
#[derive(Debug, Default)]
pub(super) struct Beneath {
    last: Option<u64>,
    due: Option<u64>,
}

impl Beneath {
    /// Somebody could write now; whether to verify at once.
    fn opened(&mut self, now: u64) -> bool {
        let at_once = self.last.is_none_or(|last| now.saturating_sub(last) >= PAUSE_NS);
        if at_once {
            self.last = Some(now);
        }
        self.due = Some(self.last.unwrap_or(now) + PAUSE_NS);
        at_once
    }

    /// When to verify again.
    pub(super) fn due(&self) -> Option<u64> {
        self.due
    }

    /// Whether that time has come; then it is over.
    fn is_due(&mut self, now: u64) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.due = None;
            self.last = Some(now);
        }
        is_due
    }
}

impl Agent {
    /// Something that could blind or by-pass the sensor was opened for writing.
    pub(super) fn tampered(&mut self, change: &Change) {
        let path = if change.record.id == DEVICES_ID {
            Some(device(Path::new("/sys/dev/block"), change.record.detail))
        } else {
            self.canary.as_ref().and_then(|canary| canary.tampered(change.record.id)).map(Path::to_owned)
        };
        // An earlier daemon may have watched more.
        let Some(path) = path.map(|path| path.display().to_string()) else { return };
        let actor = self.attributor.attribute(&change.record, &*self.processes);
        tracing::warn!(path, pid = actor.pid, exe = actor.exe, "Opened for writing.");
        let mut record = self.log.record(RecordKind::Tamper);
        record.time = self.wall(change.record.time_ns);
        record.monotonic_ns = change.record.time_ns;
        record.path = Some(path);
        record.operation = Some(change.operation.name().to_owned());
        record.actor = Some(actor);
        self.group.push(record);
        if self.canary.as_ref().is_some_and(|canary| canary.is_switch(change.record.id)) {
            self.blind("ftrace-opened");
        } else {
            self.look_beneath();
        }
    }

    /// Verifies everything, now or soon.
    pub(super) fn look_beneath(&mut self) {
        let now = self.clock.boot_ns();
        // What a raw write did shows at once where the page cache is shared, and else when it is read anew.
        if self.beneath.opened(now) {
            self.detector.recheck(Scope::All, now);
        }
    }

    /// Verifies everything when that is due.
    pub(super) fn follow_devices(&mut self) {
        let now = self.clock.boot_ns();
        if self.beneath.is_due(now) {
            self.detector.recheck(Scope::All, now);
        }
    }
}

/// The path that the kernel gives a block device of a number of its own (`include/linux/kdev_t.h`). The node that was
/// opened may have any other name.
fn device(sysfs: &Path, number: u64) -> PathBuf {
    let (major, minor) = (number >> 20, number & 0xf_ffff);
    let name = fs::read_link(sysfs.join(format!("{major}:{minor}")));
    match name.as_ref().ok().and_then(|target| target.file_name()) {
        // A slash in a name is an exclamation mark there.
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
    fn openings_without_end_verify_once_in_a_while_and_the_last_one_is_followed_by_a_look() {
        let mut beneath = Beneath::default();
        let mut looks = Vec::new();
        let second = 1_000_000_000;
        for now in (0..200 * second).step_by(usize::try_from(second).unwrap()) {
            let opened = now <= 100 * second && beneath.opened(now);
            if opened || beneath.is_due(now) {
                looks.push(now / second);
            }
        }
        assert_eq!(looks, [0, 30, 60, 90, 120]);
        assert_eq!(beneath.due(), None);
    }
}
