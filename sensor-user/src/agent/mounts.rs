//! Finds mounts and unmounts: compares the mount table with the last one.
//!
//! In: `/proc/self/mountinfo`, and records of mounts. Out: mount points that differ, and their actors. It owns the last table, the
//! announced mounts, and the gap while the table cannot be read. Records alone do not suffice: some system calls that change
//! mounts fire no hook (`mount_setattr`, propagation).

use super::episode::AttributedChange;
use super::verdicts::Verdicts;
use super::verifier::Verifier;
use crate::bounded;
use sensor_common::map::InodeKey;
use sensor_common::op::Operation;
use sensor_model::expectation::Thing;
use sensor_model::host::mountinfo;
use sensor_model::protocol::{GapReason, Scope, ThingChange, ThingId};
use sensor_model::record::Actor;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The mounts of the daemon's own namespace, which receives those of the host.
pub const TABLE: &str = "/proc/self/mountinfo";

/// Mount points, each with the mounts on it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MountTable {
    points: BTreeMap<PathBuf, Vec<Box<[u8]>>>,
    /// The devices at each mount point.
    devices: BTreeMap<PathBuf, PointDevices>,
    btrfs: bool,
}

/// The devices of the file systems at a mount point, as the kernel numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PointDevices {
    /// That of the uppermost mount.
    mounted: Option<u32>,
    /// That of the object mounted over. It is the device of the parent mount, also for a mount on top of another one.
    covered: Option<u32>,
}

/// The kernel's number of a device in the form `major:minor` (`MKDEV`).
fn device(text: &[u8]) -> Option<u32> {
    let (major, minor) = std::str::from_utf8(text).ok()?.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    (major < 1 << 12 && minor < 1 << 20).then_some(major << 20 | minor)
}

impl MountTable {
    /// Reads a mountinfo file, such as [`TABLE`].
    pub fn read(file: &Path) -> io::Result<Self> {
        Ok(Self::parse(&bounded::read(file, bounded::TABLE)?))
    }

    /// Parses the bytes of a mountinfo file (proc(5)). Ignores lines of another form.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut table = Self::default();
        let by_id: HashMap<&[u8], &[u8]> =
            mountinfo::mounts(bytes).map(|mount| (mount.id, mount.device)).collect();
        for mount in mountinfo::mounts(bytes) {
            let covered = by_id.get(mount.parent).copied().and_then(device);
            // The kernel lists mounts at one point in their order.
            let devices = PointDevices { mounted: device(mount.device), covered };
            table.devices.insert(mount.point.clone(), devices);
            let what = [mount.id, mount.device, mount.root, mount.options].join(&b' ');
            table.btrfs |= mount.file_system == Some(b"btrfs");
            table.points.entry(mount.point).or_default().push(what.into());
        }
        table
    }

    /// Whether any mount is a Btrfs.
    pub fn has_btrfs(&self) -> bool {
        self.btrfs
    }

    /// The devices that the record of a change at a mount point may have, from this table to a later one: that of the object mounted over,
    /// or that of the root of a mount that was unmounted or changed.
    fn devices_of_change(&self, later: &Self, point: &Path) -> Vec<u32> {
        let covered = later.devices.get(point).and_then(|devices| devices.covered);
        let mounted = self.devices.get(point).and_then(|devices| devices.mounted);
        covered.into_iter().chain(mounted).collect()
    }

    /// Mount points at which this table and another one differ.
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

/// A mount that appears in a table that was read within this time after its record has the record's actor.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Pause before the daemon tries again to read an unreadable table.
const RETRY_NS: u64 = 1_000_000_000;

/// First pause before the next comparison. Each further pause is about twice as long.
const PAUSE_NS: u64 = 50_000_000;

/// A mount or unmount that a record announced, before it takes effect.
#[derive(Debug, Clone)]
pub struct AnnouncedMount {
    /// The object mounted over, or the root of the unmounted file system. Zero if the record does not name it.
    pub key: InodeKey,
    /// The actor of the record.
    pub actor: Actor,
    /// The operation of the record.
    pub operation: Operation,
    /// Boot time of the record, in nanoseconds.
    pub at_ns: u64,
    /// The host's table does not show it, so no difference of the table is its actor's. The table is compared all the same.
    pub is_private: bool,
}

/// Announced mounts that the table does not show yet, oldest first.
#[derive(Debug, Default)]
pub struct AnnouncedMounts {
    /// The second value: a comparison found the mount.
    waiting: Vec<(AnnouncedMount, bool)>,
}

impl AnnouncedMounts {
    /// Adds an announced mount.
    pub fn push(&mut self, announced: AnnouncedMount) {
        self.waiting.push((announced, false));
    }

    /// The announced mount behind a difference at a mount point, found by the inodes that are or were there. A mount over an object of a
    /// file system that was mounted a moment before has an inode that no watch knows yet. Then it is the newest on one of these devices, and
    /// without such a one the newest of all, provided that one process made all of those. Such a one may be another mount that takes effect
    /// later, so it goes on waiting if `is_watched` says that a watch knows its inode: the table then shows it at the path of that watch.
    pub fn of(
        &mut self,
        keys: &[InodeKey],
        devices: &[u32],
        is_watched: impl Fn(InodeKey) -> bool,
    ) -> Option<&AnnouncedMount> {
        let has_key = |announced: &AnnouncedMount| !announced.is_private && keys.contains(&announced.key);
        let by_key = self.waiting.iter().rposition(|(announced, _)| has_key(announced));
        let has_device =
            |announced: &AnnouncedMount| !announced.is_private && devices.contains(&announced.key.dev);
        let at = match by_key {
            Some(at) => at,
            None if self.waiting.iter().any(|(announced, _)| has_device(announced)) => {
                self.only(has_device)?
            }
            None => self.only(|announced| !announced.is_private)?,
        };
        let (announced, shown) = self.waiting.get_mut(at)?;
        *shown |= by_key.is_some() || !is_watched(announced.key);
        Some(announced)
    }

    /// The place of the newest of these announced mounts, if one process made all of them.
    fn only(&self, is_one: impl Fn(&AnnouncedMount) -> bool) -> Option<usize> {
        let process = |at: usize| (self.waiting[at].0.actor.pid, self.waiting[at].0.actor.start_ns);
        let mut places = (0..self.waiting.len()).rev().filter(|at| is_one(&self.waiting[*at].0));
        let newest = places.next()?;
        places.all(|at| process(at) == process(newest)).then_some(newest)
    }

    /// Whether the table shows all announced mounts.
    pub fn are_shown(&self) -> bool {
        self.waiting.is_empty()
    }

    /// After a comparison: removes the mounts that the table shows, and those that are too old to appear. `read_at` is the boot
    /// time before the table was read. A mount may be announced after that, and the daemon may take long to read its record.
    pub fn table_compared(&mut self, read_at: u64) {
        self.waiting
            .retain(|(announced, shown)| !shown && read_at.saturating_sub(announced.at_ns) < PATIENCE_NS);
    }

    /// The time of the next comparison, after one with a table that was read at `read_at`; `None` if no announced mount waits.
    pub fn due(&self, read_at: u64, now: u64) -> Option<u64> {
        let age = |at: &(AnnouncedMount, bool)| read_at.saturating_sub(at.0.at_ns);
        let youngest = self.waiting.iter().map(age).min()?;
        Some(now.saturating_add(youngest.max(PAUSE_NS)))
    }
}

/// A mount point as a path below the host root; `None` if it is neither below nor above the root. Neither path has links.
pub(super) fn below(root: &Path, point: &Path) -> Option<PathBuf> {
    if let Ok(below) = point.strip_prefix(root) {
        return Some(Path::new("/").join(below));
    }
    // Mounted above the root: everything below may lie on another file system.
    root.starts_with(point).then(|| PathBuf::from("/"))
}

/// Whether a mount at a point can change a thing that lies above or below it. Only a mount at the hierarchy itself is mounted over that.
fn concerns(thing: &Thing, point: &Path) -> bool {
    match thing {
        Thing::Hierarchy { path } => **path == *point,
        _ => true,
    }
}

fn is_hierarchy(verdicts: &Verdicts, thing: ThingId) -> bool {
    matches!(verdicts.expectation(thing).thing, Thing::Hierarchy { .. })
}

/// Follows the mount table.
pub(super) struct MountTracker {
    table: MountTable,
    /// Boot time before the newest table was read.
    read_at: u64,
    /// The file of the table.
    pub(super) file: PathBuf,
    /// Boot time of the next comparison.
    pub(super) due: Option<u64>,
    /// The gap that is open while the table cannot be read.
    unread: Option<u32>,
    pub(super) announced: AnnouncedMounts,
    /// How often the mounts at each hierarchy changed.
    over: HashMap<ThingId, u64>,
}

impl MountTracker {
    /// Begins with the present table.
    pub(super) fn new(file: &Path) -> Self {
        Self {
            table: MountTable::read(file).unwrap_or_default(),
            read_at: 0,
            file: file.to_owned(),
            due: None,
            unread: None,
            announced: AnnouncedMounts::default(),
            over: HashMap::new(),
        }
    }

    /// Adds a mount or unmount from a record. It takes effect after the hook.
    pub(super) fn announce(&mut self, announced: AnnouncedMount, now: u64) {
        self.announced.push(announced);
        self.due = Some(now);
    }

    /// Whether a comparison is due.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Reads the table. `None` if that fails: then everything is unknown until a read succeeds.
    pub(super) fn read(&mut self, verdicts: &mut Verdicts) -> Option<MountTable> {
        self.read_at = verdicts.now();
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
                    let number = verdicts.open_lasting_gap(Scope::All, GapReason::MountsUnreadable);
                    self.unread = Some(number);
                }
                self.due = Some(verdicts.now().saturating_add(RETRY_NS));
                None
            }
        }
    }

    /// How often the mounts at a hierarchy changed; 0 for other things.
    pub(super) fn changes_over(&self, thing: ThingId) -> u64 {
        self.over.get(&thing).copied().unwrap_or(0)
    }

    /// Mount points at which a table differs from the last one.
    pub(super) fn differences(&self, table: &MountTable) -> Vec<PathBuf> {
        self.table.differences(table)
    }

    /// Has the things verified that the differing mount points concern, and names the actors of the mounts.
    pub(super) fn apply_table(
        &mut self,
        table: MountTable,
        points: &[PathBuf],
        root: &Path,
        verifier: &mut Verifier,
        verdicts: &mut Verdicts,
    ) {
        let before = std::mem::replace(&mut self.table, table);
        let root = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
        for (of_table, point) in points.iter().filter_map(|point| Some((point, below(&root, point)?))) {
            let devices = before.devices_of_change(&self.table, of_table);
            let is_watched = |key| verifier.registry.is_enrolled(key);
            let announced = self.announced.of(&verifier.keys_at(&point), &devices, is_watched).cloned();
            let mut things = verifier.mount_changed(&point);
            things.retain(|thing| concerns(&verdicts.expectation(*thing).thing, &point));
            // The record of the hierarchy tells of the mount. The things below have one only if they differ.
            let is_told = things.iter().any(|thing| is_hierarchy(verdicts, *thing));
            for thing in things {
                let is_hierarchy = is_hierarchy(verdicts, thing);
                if is_hierarchy {
                    *self.over.entry(thing).or_default() += 1;
                }
                let own = is_told && !is_hierarchy;
                if let Some(AnnouncedMount { actor, operation, at_ns, .. }) = announced.clone() {
                    let made = AttributedChange { actor: Some(actor), operation: operation.name(), at_ns };
                    verdicts.add_change(thing, made, false);
                } else if verdicts.has_changed(thing)
                    && verdicts.expectation(thing).thing.path().starts_with(&point)
                {
                    // This change is the newest one, and its actor is unknown. The actors of earlier changes stay in the list.
                    let operation = Operation::Mount.name();
                    let made = AttributedChange { actor: None, operation, at_ns: self.read_at };
                    verdicts.add_change(thing, made, false);
                }
                verdicts.verify_soon([thing], ThingChange { own, outside_evidence: true });
            }
        }
        self.announced.table_compared(self.read_at);
        self.due = self.announced.due(self.read_at, verdicts.now());
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

    fn announced(pid: u32, ino: u64, at_ns: u64) -> AnnouncedMount {
        AnnouncedMount {
            key: InodeKey { ino, dev: 1, volume: 0 },
            actor: Actor { pid, ..Actor::default() },
            operation: Operation::Mount,
            at_ns,
            is_private: false,
        }
    }

    #[test]
    fn of_two_mounts_each_point_has_its_own_actor_and_an_unknown_point_has_none() {
        let mut waiting = AnnouncedMounts::default();
        waiting.push(announced(7, 70, 1));
        waiting.push(announced(8, 80, 2));
        let mut who = |ino| {
            waiting.of(&[InodeKey { ino, dev: 1, volume: 0 }], &[], |_| false).map(|found| found.actor.pid)
        };
        assert_eq!((who(70), who(80), who(90)), (Some(7), Some(8), None));
        waiting.table_compared(3);
        assert!(waiting.due(3, 3).is_none(), "the table showed both");
    }

    #[test]
    fn a_point_that_no_record_names_has_the_actor_of_all_records_if_there_is_only_one() {
        let mut waiting = AnnouncedMounts::default();
        waiting.push(announced(7, 0, 1));
        assert_eq!(waiting.of(&[], &[], |_| false).map(|found| found.actor.pid), Some(7));
        waiting.push(announced(9, 0, 2));
        waiting.table_compared(PATIENCE_NS + 1);
        assert_eq!(
            waiting.of(&[], &[], |_| false).map(|found| found.actor.pid),
            Some(9),
            "the table showed the first"
        );
        waiting.push(announced(9, 0, 3));
        waiting.table_compared(PATIENCE_NS + 3);
        assert!(waiting.of(&[], &[], |_| false).is_none());
    }

    #[test]
    fn a_mount_of_another_namespace_is_behind_no_difference_and_the_table_is_compared_after_it() {
        let mut waiting = AnnouncedMounts::default();
        waiting.push(AnnouncedMount { is_private: true, ..announced(7, 70, 1) });
        let key = InodeKey { ino: 70, dev: 1, volume: 0 };
        assert!(waiting.of(&[key], &[1], |_| true).is_none() && waiting.of(&[], &[], |_| true).is_none());
        assert!(waiting.due(2, 2).is_some());
        waiting.push(announced(8, 80, 2));
        assert_eq!(waiting.of(&[key], &[1], |_| true).map(|found| found.actor.pid), Some(8), "of all others");
    }

    #[test]
    fn a_mount_of_a_watched_inode_waits_for_its_own_point_when_another_point_changes_before() {
        let mut waiting = AnnouncedMounts::default();
        waiting.push(announced(7, 70, 1));
        let [own, other] = [70, 90].map(|ino| InodeKey { ino, dev: 1, volume: 0 });
        let is_watched = |key: InodeKey| key.ino == 70;
        assert_eq!(waiting.of(&[other], &[1], is_watched).map(|found| found.actor.pid), Some(7));
        waiting.table_compared(2);
        assert!(!waiting.are_shown());
        assert_eq!(waiting.of(&[own], &[1], is_watched).map(|found| found.actor.pid), Some(7));
        waiting.table_compared(3);
        assert!(waiting.are_shown());
    }

    /// A system extension was refreshed: its program unmounted the old overlay (device 2) and mounted a new one (device 3) over a directory of
    /// the host (device 1). Some of its mounts were in a namespace of its own, and no table shows them.
    #[test]
    fn a_mount_over_a_file_system_that_no_watch_knows_yet_has_the_actor_of_its_device() {
        let on = |pid, dev, at_ns| {
            let mut announced = announced(pid, u64::from(pid), at_ns);
            announced.key.dev = dev;
            announced
        };
        let old_inode = [InodeKey { ino: 70, dev: 2, volume: 0 }];
        let mut waiting = AnnouncedMounts::default();
        for (dev, at_ns) in [(9, 1), (2, 2), (1, 3)] {
            waiting.push(on(7, dev, at_ns));
        }
        waiting.push(on(8, 3, 4));
        assert_eq!(waiting.of(&old_inode, &[3], |_| false).map(|found| found.actor.pid), Some(8));
        waiting.push(on(9, 3, 5));
        assert_eq!(
            waiting.of(&old_inode, &[3], |_| false).map(|found| found.actor.pid),
            None,
            "two processes"
        );
    }

    #[test]
    fn the_devices_of_a_change_are_that_of_the_object_mounted_over_and_that_of_the_mount_before() {
        let before = table("22 1 8:1 / / rw - ext4 d rw\n30 22 0:50 / /usr ro - overlay o ro\n");
        let after = table(
            "22 1 8:1 / / rw - ext4 d rw\n31 22 0:51 / /usr ro - overlay o ro\n32 31 8:1 /x /usr/a rw - ext4 d rw\n\
             33 32 0:9 / /usr/a rw - tmpfs t rw\n",
        );
        let ext4 = 8 << 20 | 1;
        let of = |point: &str| before.devices_of_change(&after, Path::new(point));
        assert_eq!(of("/usr"), [ext4, 50]);
        assert_eq!(of("/usr/a"), [ext4], "the uppermost mount is on top of another one");
        assert_eq!(after.devices_of_change(&before, Path::new("/usr/a")), [9], "it was unmounted");
        assert_eq!(table("22 1 8:1 / / rw - ext4 d rw\n").devices_of_change(&after, Path::new("/x")), [0; 0]);
        for text in ["", "8", "x:1", "4096:0", "0:1048576", "8:-1"] {
            assert_eq!(device(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_mount_after_the_table_was_read_waits_for_the_next_table_however_late_its_record_is_read() {
        let mut waiting = AnnouncedMounts::default();
        let (read_at, made_at) = (5_000, 6_000);
        waiting.push(announced(7, 70, made_at));
        waiting.table_compared(read_at);
        let late = made_at + 10 * PATIENCE_NS;
        assert_eq!(waiting.due(read_at, late), Some(late + PAUSE_NS));
        waiting.table_compared(late);
        assert!(waiting.due(late, late).is_none(), "the next table did not show it");
    }

    #[test]
    fn escaped_blanks_are_read_as_blanks() {
        let blank = table("1 0 0:1 / /a\\040b rw - x y z\n");
        assert_eq!(blank.differences(&MountTable::default()), [PathBuf::from("/a b")]);
    }

    #[test]
    fn lines_of_another_form_are_ignored() {
        assert_eq!(table("nonsense\n\n1 2 3\n"), MountTable::default());
    }

    #[test]
    fn a_mount_point_that_is_not_utf_8_hides_no_other() {
        let mut bytes = b"30 22 0:30 / /tmp/\xff rw - tmpfs tmpfs rw\n".to_vec();
        bytes.extend(TABLE.as_bytes());
        let with = MountTable::parse(&bytes);
        assert_eq!(table(TABLE).differences(&with), [Path::new(OsStr::from_bytes(b"/tmp/\xff"))]);
        bytes.extend(b"31 22 0:31 / /etc/a rw - tmpfs tmpfs rw\n");
        assert_eq!(with.differences(&MountTable::parse(&bytes)), [Path::new("/etc/a")]);
    }

    #[test]
    fn a_mount_point_is_a_path_below_the_host_root() {
        let at = |root: &str, point: &str| below(Path::new(root), Path::new(point));
        assert_eq!(at("/", "/var/home"), Some("/var/home".into()));
        assert_eq!(at("/host", "/host/var/home"), Some("/var/home".into()));
        assert_eq!(at("/host", "/host"), Some("/".into()));
        assert_eq!(at("/run/host", "/run"), Some("/".into()), "everything may lie elsewhere");
        assert_eq!(at("/host", "/hostile"), None);
    }
}
