//! The mount table, compared to see where something was mounted or unmounted.
//!
//! In: `/proc/self/mountinfo`, and records of mounts. Out: mount points that differ, and who mounted there. The table is needed
//! since some system calls that change mounts fire no hook (`mount_setattr`, propagation).

use super::episode::AttributedChange;
use super::reasons;
use super::verdicts::Verdicts;
use super::verifier::Looker;
use crate::bounded;
use sensor_common::map::InodeKey;
use sensor_common::op::Operation;
use sensor_model::host::mountinfo;
use sensor_model::protocol::{Event, Scope};
use sensor_model::record::Actor;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The mounts of the daemon's own namespace, which sees the host's.
pub const TABLE: &str = "/proc/self/mountinfo";

/// Mount points with what is on top there.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MountTable {
    points: BTreeMap<PathBuf, Vec<Box<[u8]>>>,
    btrfs: bool,
}

impl MountTable {
    /// Reads a mountinfo file, such as [`TABLE`].
    pub fn read(file: &Path) -> io::Result<Self> {
        Ok(Self::parse(&bounded::read(file, bounded::TABLE)?))
    }

    /// Parses the bytes of a mountinfo file (proc(5)). Lines that are none are left out.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut table = Self::default();
        for mount in mountinfo::mounts(bytes) {
            let what = [mount.id, mount.device, mount.root, mount.options].join(&b' ');
            table.btrfs |= mount.file_system == Some(b"btrfs");
            table.points.entry(mount.point).or_default().push(what.into());
        }
        table
    }

    /// Whether some mount is of Btrfs.
    pub fn has_btrfs(&self) -> bool {
        self.btrfs
    }

    /// Mount points at which this table and an other one differ.
    pub fn differences(&self, other: &Self) -> Vec<PathBuf> {
        let mut points: Vec<&PathBuf> = self.points.keys().chain(other.points.keys()).collect();
        points.sort();
        points.dedup();
        points
            .into_iter()
            .filter(|point| self.points.get(*point) != other.points.get(*point))
            .cloned()
            .collect()
    }
}

/// How long after its record a mount may appear in the table and still be attributed to the record's actor.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Pause before a table that could not be read is tried again.
const RETRY_NS: u64 = 1_000_000_000;

/// First pause before the table is compared again; the pauses double, roughly.
const PAUSE_NS: u64 = 50_000_000;

/// A mount or unmount that a record announced.
#[derive(Debug, Clone)]
pub struct Announced {
    /// The object mounted over, or the root of what is unmounted; zero if the record does not name it.
    pub key: InodeKey,
    /// By whom.
    pub actor: Actor,
    /// What was done.
    pub operation: Operation,
    /// Boot-time nanoseconds.
    pub at_ns: u64,
}

/// Announced mounts that the table does not show yet, oldest first.
#[derive(Debug, Default)]
pub struct Announcements {
    waiting: Vec<(Announced, bool)>,
}

impl Announcements {
    /// One more.
    pub fn push(&mut self, announced: Announced) {
        self.waiting.push((announced, false));
    }

    /// The announcement of a difference at a mount point, by the inodes that are or were there. If none names that point, it is
    /// the newest one, provided that one process made all of them.
    pub fn of(&mut self, keys: &[InodeKey]) -> Option<&Announced> {
        let by_key = self.waiting.iter().rposition(|(announced, _)| keys.contains(&announced.key));
        let process = |at: &(Announced, bool)| (at.0.actor.pid, at.0.actor.start_ns);
        let alone = self.waiting.windows(2).all(|pair| process(&pair[0]) == process(&pair[1]));
        let at = by_key.or_else(|| self.waiting.len().checked_sub(1).filter(|_| alone))?;
        let (announced, shown) = self.waiting.get_mut(at)?;
        *shown = true;
        Some(announced)
    }

    /// Whether the table shows all that was announced.
    pub fn are_shown(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The table was compared: removes what it showed, and what it will not show any more.
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

/// A mount point as a path below the host root; `None` if it is neither below nor above the root. Both are without links.
fn below(root: &Path, point: &Path) -> Option<PathBuf> {
    if let Ok(below) = point.strip_prefix(root) {
        return Some(Path::new("/").join(below));
    }
    // Mounted above the root: everything below may lie on another file system.
    root.starts_with(point).then(|| PathBuf::from("/"))
}

/// What the loop knows of mounts.
pub(super) struct Mounts {
    table: MountTable,
    /// Where the table is read.
    pub(super) file: PathBuf,
    /// When to compare the table again, boot time.
    pub(super) due: Option<u64>,
    /// The gap that is open while the table cannot be read.
    unread: Option<u32>,
    pub(super) announced: Announcements,
}

impl Mounts {
    /// From the present table.
    pub(super) fn new(file: &Path) -> Self {
        Self {
            table: MountTable::read(file).unwrap_or_default(),
            file: file.to_owned(),
            due: None,
            unread: None,
            announced: Announcements::default(),
        }
    }

    /// A record announced a mount or unmount, which takes effect after the hook.
    pub(super) fn announce(&mut self, announced: Announced, now: u64) {
        self.announced.push(announced);
        self.due = Some(now);
    }

    /// Whether to compare the table now.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Reads the table. `None` if it cannot be read: then everything is unknown until it can.
    pub(super) fn read(&mut self, verdicts: &mut Verdicts) -> Option<MountTable> {
        match MountTable::read(&self.file) {
            Ok(table) => {
                if let Some(number) = self.unread.take() {
                    verdicts.end_lasting_gap(number);
                }
                Some(table)
            }
            Err(error) => {
                if self.unread.is_none() {
                    tracing::error!(file = %self.file.display(), %error, "Cannot read the mount table.");
                    let number = verdicts.open_lasting_gap(Scope::All, reasons::MOUNTS_UNREADABLE);
                    self.unread = Some(number);
                }
                self.due = Some(verdicts.now().saturating_add(RETRY_NS));
                None
            }
        }
    }

    /// Mount points at which a table differs from the last one.
    pub(super) fn differences(&self, table: &MountTable) -> Vec<PathBuf> {
        self.table.differences(table)
    }

    /// Has everything looked at that the differing mount points touch, and names who mounted there.
    pub(super) fn compared(
        &mut self,
        table: MountTable,
        points: &[PathBuf],
        root: &Path,
        looker: &mut Looker,
        verdicts: &mut Verdicts,
    ) {
        self.table = table;
        let now = verdicts.now();
        let root = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
        for point in points.iter().filter_map(|point| below(&root, point)) {
            let keys: Vec<_> = looker.registry.keys_at(&point).collect();
            let announced = self.announced.of(&keys).cloned();
            let touched = looker.registry.under_mount(&point);
            looker.reroute(touched.iter().copied());
            for thing in touched {
                if let Some(Announced { actor, operation, at_ns, .. }) = announced.clone() {
                    let made = AttributedChange { actor: Some(actor), operation: operation.name(), at_ns };
                    verdicts.note(thing, made, false);
                }
                verdicts.changed([thing], Event { own: false, beyond: true });
            }
        }
        self.announced.shown(now);
        self.due = self.announced.due(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    const TABLE: &str = "22 1 0:20 / / rw - tmpfs tmpfs rw\n23 22 0:21 / /proc rw,nosuid - proc proc rw\n";

    fn table(text: &str) -> MountTable {
        MountTable::parse(text.as_bytes())
    }

    #[test]
    fn a_mount_on_top_and_a_changed_option_are_differences() {
        let before = table(TABLE);
        let over = table(&format!("{TABLE}30 22 0:20 /etc/b /etc/a rw - tmpfs tmpfs rw\n"));
        assert_eq!(before.differences(&over), [PathBuf::from("/etc/a")]);
        let read_only = table(&TABLE.replace("/proc rw", "/proc ro"));
        assert_eq!(before.differences(&read_only), [PathBuf::from("/proc")]);
        assert_eq!(before.differences(&table(TABLE)), Vec::<PathBuf>::new());
    }

    fn announced(pid: u32, ino: u64, at_ns: u64) -> Announced {
        Announced {
            key: InodeKey { ino, dev: 1, volume: 0 },
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
        let mut who = |ino| waiting.of(&[InodeKey { ino, dev: 1, volume: 0 }]).map(|found| found.actor.pid);
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
        let blank = table("1 0 0:1 / /a\\040b rw - x y z\n");
        assert_eq!(blank.differences(&MountTable::default()), [PathBuf::from("/a b")]);
    }

    #[test]
    fn lines_that_are_none_are_left_out() {
        assert_eq!(table("nonsense\n\n1 2 3\n"), MountTable::default());
    }

    #[test]
    fn a_mount_point_that_is_no_text_hides_no_other() {
        let mut bytes = b"30 22 0:30 / /tmp/\xff rw - tmpfs tmpfs rw\n".to_vec();
        bytes.extend(TABLE.as_bytes());
        let with = MountTable::parse(&bytes);
        assert_eq!(table(TABLE).differences(&with), [Path::new(OsStr::from_bytes(b"/tmp/\xff"))]);
        bytes.extend(b"31 22 0:31 / /etc/a rw - tmpfs tmpfs rw\n");
        assert_eq!(with.differences(&MountTable::parse(&bytes)), [Path::new("/etc/a")]);
    }

    #[test]
    fn a_mount_point_is_told_below_the_host_root() {
        let at = |root: &str, point: &str| below(Path::new(root), Path::new(point));
        assert_eq!(at("/", "/var/home"), Some("/var/home".into()));
        assert_eq!(at("/host", "/host/var/home"), Some("/var/home".into()));
        assert_eq!(at("/host", "/host"), Some("/".into()));
        assert_eq!(at("/run/host", "/run"), Some("/".into()), "everything may lie elsewhere");
        assert_eq!(at("/host", "/hostile"), None);
    }
}
