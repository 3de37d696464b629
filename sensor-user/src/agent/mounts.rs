//! The mount table, compared to see where something was mounted or unmounted.
//!
//! In: `/proc/self/mountinfo`. Out: mount points that differ. Needed because some of the calls that
//! change mounts fire no hook at all (`mount_setattr`, propagation). And, in: records of mounts. Out: which of
//! them made a difference.

use sensor_common::map::InodeKey;
use sensor_common::op::Operation;
use sensor_model::record::Actor;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Mount points with what is on top there.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MountTable(BTreeMap<PathBuf, Vec<String>>);

impl MountTable {
    /// Reads the daemon's own mount namespace, which sees the host's mounts.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/self/mountinfo")?))
    }

    /// Parses the text of a mountinfo file (proc(5)). Lines that are none are left out.
    pub fn parse(text: &str) -> Self {
        let mut table: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
        for line in text.lines() {
            // id parent major:minor root point options ... - type source options
            let mut fields = line.split(' ');
            let (Some(id), Some(_), Some(device), Some(root), Some(point), Some(options)) =
                (fields.next(), fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let what = format!("{id} {device} {root} {options}");
            table.entry(unescape(point).into()).or_default().push(what);
        }
        Self(table)
    }

    /// Mount points at which this table and an other one differ.
    pub fn differences(&self, other: &Self) -> Vec<PathBuf> {
        let mut points: Vec<&PathBuf> = self.0.keys().chain(other.0.keys()).collect();
        points.sort();
        points.dedup();
        points.into_iter().filter(|point| self.0.get(*point) != other.0.get(*point)).cloned().collect()
    }
}

/// How long after its record a mount may show in the table and be told as its actor's.
const PATIENCE_NS: u64 = 1_000_000_000;

/// First pause before the table is compared again; the pauses double, roughly.
const PAUSE_NS: u64 = 50_000_000;

/// A mount or unmount that a record told of.
#[derive(Debug, Clone)]
pub struct Announced {
    /// The object mounted over, or the root of what is taken away; no inode's where it was not told.
    pub key: InodeKey,
    /// By whom.
    pub actor: Actor,
    /// What was done.
    pub operation: Operation,
    /// Boot-time nanoseconds.
    pub at_ns: u64,
}

/// Those whose effect the table may still have to show, oldest first.
#[derive(Debug, Default)]
pub struct Announcements {
    waiting: Vec<(Announced, bool)>,
}

impl Announcements {
    /// One more.
    pub fn push(&mut self, announced: Announced) {
        self.waiting.push((announced, false));
    }

    /// The one that made a difference at a mount point, by the inodes that are or were there. Where none names
    /// that point, it is the newest if one process alone was at work, and else nobody can be named.
    pub fn of(&mut self, keys: &[InodeKey]) -> Option<&Announced> {
        let by_key = self.waiting.iter().rposition(|(announced, _)| keys.contains(&announced.key));
        let process = |at: &(Announced, bool)| (at.0.actor.pid, at.0.actor.start_ns);
        let alone = self.waiting.windows(2).all(|pair| process(&pair[0]) == process(&pair[1]));
        let at = by_key.or_else(|| self.waiting.len().checked_sub(1).filter(|_| alone))?;
        let (announced, shown) = self.waiting.get_mut(at)?;
        *shown = true;
        Some(announced)
    }

    /// The table was compared: forgets those that it showed, and those that it will not show any more.
    pub fn shown(&mut self, now: u64) {
        self.waiting.retain(|(announced, shown)| !shown && now.saturating_sub(announced.at_ns) < PATIENCE_NS);
    }

    /// When the table is to be compared again; `None` while nothing is waited for.
    pub fn due(&self, now: u64) -> Option<u64> {
        let age = |at: &(Announced, bool)| now.saturating_sub(at.0.at_ns);
        let youngest = self.waiting.iter().map(age).min()?;
        Some(now.saturating_add(youngest.max(PAUSE_NS)))
    }
}

/// Undoes the octal escapes of blanks, newlines and backslashes.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let digits: Vec<u8> = bytes.by_ref().take(3).collect();
        let value = std::str::from_utf8(&digits).ok().and_then(|text| u8::from_str_radix(text, 8).ok());
        match value {
            Some(value) => out.push(value),
            None => out.extend([b'\\'].into_iter().chain(digits)),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "22 1 0:20 / / rw - tmpfs tmpfs rw\n23 22 0:21 / /proc rw,nosuid - proc proc rw\n";

    #[test]
    fn a_mount_on_top_and_a_changed_option_are_differences() {
        let before = MountTable::parse(TABLE);
        let over = MountTable::parse(&format!("{TABLE}30 22 0:20 /etc/b /etc/a rw - tmpfs tmpfs rw\n"));
        assert_eq!(before.differences(&over), [PathBuf::from("/etc/a")]);
        let read_only = MountTable::parse(&TABLE.replace("/proc rw", "/proc ro"));
        assert_eq!(before.differences(&read_only), [PathBuf::from("/proc")]);
        assert_eq!(before.differences(&MountTable::parse(TABLE)), Vec::<PathBuf>::new());
    }

    fn announced(pid: u32, ino: u64, at_ns: u64) -> Announced {
        Announced {
            key: InodeKey { ino, dev: 1, padding: 0 },
            actor: Actor { pid, ..Actor::default() },
            operation: Operation::Mount,
            at_ns,
        }
    }

    #[test]
    fn of_two_mounts_each_point_gets_its_own_actor_and_an_unknown_point_none() {
        let mut waiting = Announcements::default();
        waiting.push(announced(7, 70, 1));
        waiting.push(announced(8, 80, 2));
        let mut who = |ino| waiting.of(&[InodeKey { ino, dev: 1, padding: 0 }]).map(|found| found.actor.pid);
        assert_eq!((who(70), who(80), who(90)), (Some(7), Some(8), None));
        waiting.shown(3);
        assert!(waiting.due(3).is_none(), "both were shown");
    }

    #[test]
    fn a_point_that_no_record_names_is_that_of_the_only_process_at_work_and_not_for_ever() {
        let mut waiting = Announcements::default();
        waiting.push(announced(7, 0, 1));
        assert_eq!(waiting.of(&[]).map(|found| found.actor.pid), Some(7));
        waiting.push(announced(9, 0, 2));
        waiting.shown(PATIENCE_NS + 1);
        assert_eq!(waiting.of(&[]).map(|found| found.actor.pid), Some(9), "the first was shown");
        waiting.push(announced(9, 0, 3));
        waiting.shown(PATIENCE_NS + 3);
        assert!(waiting.of(&[]).is_none());
    }

    #[test]
    fn escaped_blanks_are_read_as_blanks() {
        let table = MountTable::parse("1 0 0:1 / /a\\040b rw - x y z\n");
        assert_eq!(table.differences(&MountTable::default()), [PathBuf::from("/a b")]);
    }

    #[test]
    fn lines_that_are_none_are_left_out() {
        assert_eq!(MountTable::parse("nonsense\n\n1 2 3\n"), MountTable::default());
    }
}
