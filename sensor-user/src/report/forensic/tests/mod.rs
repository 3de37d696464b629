//! A log that is written, rotated, torn, changed or refused by the disk.

mod ending;
mod reading;
mod writing;

use super::{
    segment::tests::{FAIL, REFUSE},
    *,
};
use crate::report::metrics::BuildInfo;
use jiff::Timestamp;
use sensor_model::{
    chain::ORIGIN,
    difference::{Difference, DifferenceKind},
    record::{Actor, ThingKind, ThingName},
};
use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    sync::atomic::{AtomicU64, Ordering},
};
use tempfile::TempDir;

/// A clock that the test sets forward.
#[derive(Debug, Default)]
struct Hand(AtomicU64);

impl Hand {
    fn forward(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).unwrap(), Ordering::Relaxed);
    }
}

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanosecond(1_767_323_045_000_000_000 + i128::from(self.boot_ns())).unwrap()
    }
    fn boot_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct TestLog {
    directory: TempDir,
    clock: Arc<Hand>,
    metrics: Arc<Metrics>,
    limits: LogLimits,
}

impl TestLog {
    fn new() -> Self {
        let build = BuildInfo {
            version: "1".to_owned(),
            commit: "c".to_owned(),
            object: "o".to_owned(),
            kernel: "k".to_owned(),
        };
        Self {
            directory: tempfile::tempdir().unwrap(),
            clock: Arc::default(),
            metrics: Arc::new(Metrics::new(build, Timestamp::UNIX_EPOCH)),
            limits: LogLimits::default(),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn current(&self) -> PathBuf {
        self.path().join(CURRENT)
    }

    fn open(&self) -> ForensicLog {
        self.try_open().unwrap()
    }

    fn try_open(&self) -> Result<ForensicLog, ForensicError> {
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        ForensicLog::open(&self.path(), self.limits, clock, "boot".to_owned(), Arc::clone(&self.metrics))
    }

    fn entries(&self) -> Vec<LogEntry> {
        tail(&self.path(), usize::MAX, &Filter::default()).unwrap()
    }

    fn kinds(&self) -> Vec<RecordKind> {
        self.entries().into_iter().map(|entry| entry.record.kind).collect()
    }

    fn metric(&self, line: &str) -> bool {
        self.metrics.page().unwrap().lines().any(|found| found == line)
    }
}

fn file(path: &str) -> ThingName {
    ThingName { path: path.to_owned(), kind: ThingKind::File }
}

fn drift(log: &ForensicLog, path: &str) -> Record {
    let mut record = log.record(RecordKind::Drift);
    record.set_name(file(path));
    record.actor = Some(Actor { pid: 7, start_ns: u64::MAX - 1, ..Actor::default() });
    record.differences.push(Difference {
        kind: DifferenceKind::Content,
        expected: "sha256:a".to_owned(),
        found: "sha256:b".to_owned(),
        text: format!("content mismatch for file \"{path}\""),
    });
    record
}

#[test]
fn what_is_written_is_read_back_in_order_and_verifies() {
    let place = TestLog::new();
    let mut log = place.open();
    let records: Vec<Record> = (0..5).map(|n| drift(&log, &format!("/etc/{n}\n\u{1f600}\""))).collect();
    assert_eq!(log.append(&records[..2]), Durability::Written);
    assert_eq!(log.append(&records[2..]), Durability::Written);
    let read: Vec<Record> = place.entries().into_iter().map(|entry| entry.record).collect();
    assert_eq!(read, records);
    let found = verify(&place.path()).unwrap();
    assert_eq!((found.files, found.entries, found.first_seq, found.last_seq), (1, 5, Some(1), Some(5)));
    assert_eq!((found.fault, found.unfinished), (None, 0));
    assert!(place.metric("holdfast_forensic_records_total{kind=\"drift\"} 5"));
}

#[test]
fn the_chain_goes_on_over_restarts() {
    let place = TestLog::new();
    for _ in 0..3 {
        let mut log = place.open();
        let record = drift(&log, "/etc/a");
        log.append(&[record]);
    }
    let entries = place.entries();
    assert_eq!(entries.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(entries[0].previous_hash, ORIGIN);
    assert_eq!(entries[2].previous_hash, entries[1].hash);
    assert_eq!(verify(&place.path()).unwrap().fault, None);
}

#[test]
fn only_the_owner_can_read_the_log() {
    let place = TestLog::new();
    let mut log = place.open();
    let record = drift(&log, "/etc/a");
    log.append(&[record]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&place.path()), mode(&place.current())), (0o700, 0o600));
}

#[test]
fn a_torn_tail_is_cut_off_wherever_it_is_torn_and_that_is_recorded() {
    let place = TestLog::new();
    let mut log = place.open();
    let records: Vec<Record> = (0..3).map(|n| drift(&log, &format!("/etc/{n}"))).collect();
    log.append(&records);
    drop(log);
    let whole = fs::read(place.current()).unwrap();
    let second = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(1).unwrap().0 + 1;
    for length in second + 1..whole.len() {
        fs::write(place.current(), &whole[..length]).unwrap();
        let log = place.open();
        assert_eq!(log.degraded(), None);
        drop(log);
        assert_eq!(
            place.kinds(),
            [RecordKind::Drift, RecordKind::Drift, RecordKind::Repaired],
            "at {length}"
        );
        assert_eq!(place.entries()[2].record.detail["cut_bytes"], length - second);
        assert_eq!(verify(&place.path()).unwrap().fault, None, "at {length}");
    }
}

#[test]
fn zeros_that_a_power_loss_left_are_a_torn_tail() {
    let place = TestLog::new();
    let mut log = place.open();
    let record = drift(&log, "/etc/a");
    log.append(&[record]);
    drop(log);
    let mut file = fs::OpenOptions::new().append(true).open(place.current()).unwrap();
    file.write_all(&[0; 5000]).unwrap();
    file.write_all(b"\n{\"half\n").unwrap();
    drop(file);
    drop(place.open());
    assert_eq!(place.kinds(), [RecordKind::Drift, RecordKind::Repaired]);
    assert_eq!(verify(&place.path()).unwrap().fault, None);
}

#[test]
fn a_changed_entry_is_recorded_and_not_cut_off() {
    let place = TestLog::new();
    let mut log = place.open();
    let records: Vec<Record> = (0..3).map(|n| drift(&log, &format!("/etc/{n}"))).collect();
    log.append(&records);
    drop(log);
    let changed = fs::read_to_string(place.current()).unwrap().replace("/etc/1", "/etc/x");
    fs::write(place.current(), &changed).unwrap();
    drop(place.open());
    assert!(fs::read_to_string(place.current()).unwrap().starts_with(&changed), "evidence was cut off");
    assert_eq!(place.kinds().last(), Some(&RecordKind::Tamper));
    assert_eq!(verify(&place.path()).unwrap().fault.unwrap().line, Some(2));
}

#[test]
fn files_are_rotated_by_size_linked_and_the_oldest_removed() {
    let mut place = TestLog::new();
    place.limits = LogLimits { file_bytes: 4000, files: 3, ..LogLimits::default() };
    let mut log = place.open();
    for n in 0..60 {
        let record = drift(&log, &format!("/etc/{n}"));
        assert_eq!(log.append(&[record]), Durability::Written);
    }
    let all = files(&place.path()).unwrap();
    assert_eq!(all.len(), 4, "{all:?}");
    assert_eq!(all.last().unwrap(), &place.current());
    let found = verify(&place.path()).unwrap();
    assert_eq!(found.fault, None);
    assert!(found.first_seq > Some(1), "the oldest were removed: {found:?}");
    for file in &all[1..] {
        let first = fs::read_to_string(file).unwrap().lines().next().unwrap().to_owned();
        let entry: LogEntry = serde_json::from_str(&first).unwrap();
        assert_eq!(entry.record.kind, RecordKind::Rotation);
        assert_eq!(entry.record.detail["last_hash"], entry.previous_hash);
        assert_eq!(entry.record.detail["last_seq"], entry.seq - 1);
    }
    // A missing file in the middle is found.
    fs::remove_file(&all[1]).unwrap();
    assert_eq!(verify(&place.path()).unwrap().fault.unwrap().file, all[2]);
}

#[test]
fn an_old_file_that_cannot_be_removed_is_recorded_and_the_log_continues() {
    let mut place = TestLog::new();
    place.limits = LogLimits { file_bytes: 1000, files: 1, ..LogLimits::default() };
    let mut log = place.open();
    let kept = place.path().join("forensic-00000000000000000000.jsonl");
    fs::create_dir(&kept).unwrap();
    for n in 0..20 {
        let record = drift(&log, &format!("/etc/{n}"));
        assert_eq!(log.append(&[record]), Durability::Written);
    }
    let found: Vec<LogEntry> = tail(&place.path(), 1000, &Filter::default()).unwrap_or_default();
    assert!(found.is_empty(), "a directory is no log");
    fs::remove_dir(&kept).unwrap();
    let filter = Filter { kinds: vec![RecordKind::Rotation], ..Filter::default() };
    let rotations = tail(&place.path(), 1000, &filter).unwrap();
    let reason =
        |entry: &LogEntry| entry.record.detail["not_removed"]["forensic-00000000000000000000.jsonl"].clone();
    assert!(
        !rotations.is_empty() && rotations.iter().all(|entry| reason(entry).is_string()),
        "{rotations:?}"
    );
    assert!(
        rotations.iter().any(|entry| entry.record.detail["removed"][0].is_string()),
        "others are removed: {rotations:?}"
    );
}

#[test]
fn a_restart_right_after_a_rotation_takes_the_chain_up() {
    let mut place = TestLog::new();
    place.limits.file_bytes = 1000;
    let mut log = place.open();
    let records: Vec<Record> = (0..5).map(|n| drift(&log, &format!("/etc/{n}"))).collect();
    log.append(&records);
    drop(log);
    // Killed between the rename and the first line of the next file.
    fs::rename(place.current(), place.path().join("forensic-00000000000000000005.jsonl")).unwrap();
    let mut log = place.open();
    let record = drift(&log, "/etc/next");
    log.append(&[record]);
    let found = verify(&place.path()).unwrap();
    assert_eq!((found.fault, found.last_seq), (None, Some(6)));
}

#[test]
fn a_checkpoint_is_written_after_each_fixed_number_of_entries() {
    let mut place = TestLog::new();
    place.limits.checkpoint_every = 10;
    let mut log = place.open();
    let records: Vec<Record> = (0..25).map(|n| drift(&log, &format!("/etc/{n}"))).collect();
    log.append(&records);
    let at: Vec<u64> = place
        .entries()
        .into_iter()
        .filter(|entry| entry.record.kind == RecordKind::Checkpoint)
        .map(|entry| entry.seq)
        .collect();
    assert_eq!(at, [10, 20]);
    assert_eq!(verify(&place.path()).unwrap().fault, None);
}

#[test]
fn a_disk_that_refuses_loses_nothing_that_fits_into_memory() {
    let place = TestLog::new();
    let mut log = place.open();
    let first = drift(&log, "/etc/0");
    log.append(&[first]);
    FAIL.set(Some(Errno::ENOSPC));
    for n in 1..4 {
        let record = drift(&log, &format!("/etc/{n}"));
        assert_eq!(log.append(&[record]), Durability::Pending);
    }
    assert!(log.degraded().unwrap().contains("No space left"), "{:?}", log.degraded());
    assert!(place.metric("holdfast_forensic_degraded 1") && place.metric("holdfast_forensic_pending 3"));
    FAIL.set(None);
    // There is no attempt before the pause is over.
    assert_eq!(log.append(&[]), Durability::Pending);
    place.clock.forward(log.retry_in().unwrap());
    assert_eq!(log.append(&[]), Durability::Written);
    assert_eq!(log.degraded(), None);
    let paths: Vec<_> = place.entries().into_iter().filter_map(|entry| entry.record.path).collect();
    assert_eq!(paths, ["/etc/0", "/etc/1", "/etc/2", "/etc/3"]);
    let found = verify(&place.path()).unwrap();
    assert_eq!((found.fault, found.entries), (None, 4), "no half line, no repeated one, no repair");
    assert!(place.metric("holdfast_forensic_degraded 0") && place.metric("holdfast_forensic_pending 0"));
}

#[test]
fn beyond_the_limit_the_oldest_records_are_dropped_and_counted_in_the_log() {
    let mut place = TestLog::new();
    place.limits.memory_bytes = 20_000;
    let mut log = place.open();
    FAIL.set(Some(Errno::EIO));
    for n in 0..100 {
        let record = drift(&log, &format!("/etc/{n}"));
        log.append(&[record]);
        place.clock.forward(Duration::from_millis(1));
    }
    let kept = log.pending().count();
    assert!((2..60).contains(&kept), "{kept}");
    FAIL.set(None);
    place.clock.forward(MAXIMUM_BACKOFF);
    assert_eq!(log.append(&[]), Durability::Written);
    let entries = place.entries();
    assert_eq!(entries[0].record.kind, RecordKind::Gap);
    assert_eq!(entries[0].record.detail["dropped"], 100 - kept);
    assert!(entries[0].record.detail["error"].as_str().unwrap().contains("Input/output error"));
    let paths: Vec<_> = entries.iter().filter_map(|entry| entry.record.path.clone()).collect();
    assert_eq!(paths.last().map(String::as_str), Some("/etc/99"));
    assert_eq!(paths.len(), kept);
    assert!(place.metric(&format!("holdfast_forensic_dropped_total {}", 100 - kept)));
    assert_eq!(verify(&place.path()).unwrap().fault, None);
}

#[test]
fn the_pause_between_attempts_doubles_while_the_disk_refuses() {
    let place = TestLog::new();
    let mut log = place.open();
    FAIL.set(Some(Errno::EROFS));
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let record = drift(&log, "/etc/a");
        log.append(&[record]);
        let pause = log.retry_in().unwrap();
        pauses.push(pause);
        place.clock.forward(pause);
    }
    FAIL.set(None);
    assert_eq!(pauses[..3], [FIRST_BACKOFF, FIRST_BACKOFF * 2, FIRST_BACKOFF * 4]);
    assert_eq!(pauses[11], MAXIMUM_BACKOFF);
}

#[test]
fn a_log_without_its_directory_is_degraded_until_the_directory_can_be_made() {
    let place = TestLog::new();
    let parent = place.directory.path().join("later");
    let clock = Arc::clone(&place.clock) as Arc<dyn Clock>;
    let metrics = Arc::clone(&place.metrics);
    let mut log =
        ForensicLog::open(&parent.join("log"), place.limits, clock, "boot".to_owned(), metrics).unwrap();
    assert!(log.degraded().is_some());
    let record = drift(&log, "/etc/a");
    assert_eq!(log.append(&[record]), Durability::Pending);
    fs::create_dir(&parent).unwrap();
    place.clock.forward(log.retry_in().unwrap());
    assert_eq!(log.append(&[]), Durability::Written);
    assert_eq!(verify(&parent.join("log")).unwrap().entries, 1);
}

#[test]
fn a_log_that_another_process_changes_gets_a_record_of_that() {
    let acts: [fn(&Path); 4] = [
        |log| fs::remove_file(log).unwrap(),
        |log| drop(fs::File::create(log).unwrap()),
        |log| fs::rename(log, log.with_extension("moved")).unwrap(),
        |log| fs::OpenOptions::new().append(true).open(log).unwrap().write_all(b"noise\n").unwrap(),
    ];
    for (number, act) in acts.into_iter().enumerate() {
        let place = TestLog::new();
        let mut log = place.open();
        let record = drift(&log, "/etc/before");
        log.append(&[record.clone(), record.clone()]);
        act(&place.current());
        assert_eq!(log.append(&[record]), Durability::Written, "act {number}");
        let entries = place.entries();
        let tampered: Vec<_> =
            entries.iter().filter(|entry| entry.record.kind == RecordKind::Tamper).collect();
        assert_eq!(tampered.len(), 1, "act {number}: {entries:?}");
        // The numbers continue, so a copy that is kept elsewhere shows which entries are missing.
        assert!(tampered[0].seq >= 3, "act {number}: {tampered:?}");
        assert_eq!(entries.last().unwrap().record.kind, RecordKind::Drift, "act {number}");
    }
}

#[test]
fn two_daemons_cannot_write_one_log() {
    let place = TestLog::new();
    let first = place.open();
    assert!(matches!(place.try_open(), Err(ForensicError::Busy { .. })));
    drop(first);
    place.open();
}

#[test]
fn a_link_in_the_place_of_the_log_or_its_directory_is_not_followed() {
    let place = TestLog::new();
    let elsewhere = place.directory.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, place.path()).unwrap();
    assert!(matches!(place.try_open(), Err(ForensicError::Directory { .. })));
    fs::remove_file(place.path()).unwrap();
    fs::create_dir(place.path()).unwrap();
    fs::write(elsewhere.join("target"), "").unwrap();
    std::os::unix::fs::symlink(elsewhere.join("target"), place.current()).unwrap();
    assert!(matches!(place.try_open(), Err(ForensicError::Directory { .. })));
    assert_eq!(fs::read(elsewhere.join("target")).unwrap(), b"");
}

#[test]
fn a_record_that_cannot_be_written_is_named_and_blocks_no_other() {
    let place = TestLog::new();
    let mut log = place.open();
    let mut broken = drift(&log, "/etc/broken");
    broken.after = Some(json!({ "share": 0.5 }));
    let good = drift(&log, "/etc/good");
    assert_eq!(log.append(&[broken, good]), Durability::Written);
    let entries = place.entries();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0].record.path.as_deref(), Some("/etc/broken"));
    assert!(entries[0].record.detail.contains_key("unwritable"), "{entries:?}");
    assert_eq!(verify(&place.path()).unwrap().fault, None);
}

#[test]
fn a_rotation_that_failed_halfway_is_continued_and_recorded_as_one() {
    let mut place = TestLog::new();
    place.limits.file_bytes = 1500;
    let mut log = place.open();
    let record = drift(&log, "/etc/a");
    while log.append(std::slice::from_ref(&record)) == Durability::Written {
        let full = fs::metadata(place.current()).unwrap().len() >= place.limits.file_bytes;
        REFUSE.set(full.then_some(Errno::ENOSPC));
    }
    assert!(!place.current().exists(), "it failed after the file was put aside");
    for _ in 0..2 {
        place.clock.forward(MAXIMUM_BACKOFF);
        assert_eq!(log.append(std::slice::from_ref(&record)), Durability::Pending);
    }
    REFUSE.set(None);
    place.clock.forward(MAXIMUM_BACKOFF);
    assert_eq!(log.append(&[]), Durability::Written);
    let kinds = place.kinds();
    assert!(!kinds.contains(&RecordKind::Tamper), "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == RecordKind::Rotation).count(), 1, "{kinds:?}");
    let first = entries_of(&place.current()).remove(0);
    assert_eq!(first.record.kind, RecordKind::Rotation);
    assert_eq!(verify(&place.path()).unwrap().fault, None);
}

fn entries_of(file: &Path) -> Vec<LogEntry> {
    fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
