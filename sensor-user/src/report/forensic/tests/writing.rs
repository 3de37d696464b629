//! The log with its own thread.

use super::*;

fn path_of(entry: &LogEntry) -> &str {
    entry.record.path.as_deref().unwrap_or_default()
}

#[tokio::test]
async fn records_that_arrive_during_a_write_are_written_after_it_in_order() {
    let place = TestLog::new();
    let log = place.open();
    let records: Vec<Record> = (0..200).map(|n| drift(&log, &format!("/etc/{n}"))).collect();
    let mut writer = LogWriter::new(log);
    for record in records.clone() {
        writer.append([record]);
        tokio::task::yield_now().await;
    }
    assert_eq!(writer.finish().await.unwrap().pending().count(), 0);
    let entries = place.entries();
    let paths: Vec<&str> = entries.iter().map(path_of).collect();
    let wanted: Vec<&str> = records.iter().map(|record| record.path.as_deref().unwrap()).collect();
    assert_eq!(paths, wanted);
    assert!(verify(&place.path()).unwrap().fault.is_none());
}

#[tokio::test]
async fn the_writer_is_full_while_too_many_records_wait() {
    let place = TestLog::new();
    let log = place.open();
    let record = drift(&log, "/etc/a");
    let mut writer = LogWriter::new(log);
    // The first group is taken at once; the others wait for it.
    writer.append([record.clone()]);
    writer.append(vec![record; 10_000]);
    assert!(writer.is_full());
    writer.progress().await.unwrap();
    assert!(!writer.is_full());
    writer.finish().await.unwrap();
    assert_eq!(place.kinds().iter().filter(|kind| **kind == RecordKind::Drift).count(), 10_001);
}

#[tokio::test]
async fn the_writer_repeats_a_failed_write_by_itself() {
    let place = TestLog::new();
    fs::remove_dir(place.directory.path()).unwrap();
    let log = place.open();
    let record = drift(&log, "/etc/a");
    let mut writer = LogWriter::new(log);
    writer.append([record]);
    writer.progress().await.unwrap();
    assert!(writer.degraded().is_some());
    fs::create_dir(place.directory.path()).unwrap();
    place.clock.forward(MAXIMUM_BACKOFF);
    // The pause, then the write.
    writer.progress().await.unwrap();
    writer.progress().await.unwrap();
    assert_eq!(writer.degraded(), None);
    assert!(place.kinds().contains(&RecordKind::Drift));
}

#[tokio::test]
async fn the_next_writer_writes_the_records_that_the_disk_refused() {
    let place = TestLog::new();
    fs::remove_dir(place.directory.path()).unwrap();
    let log = place.open();
    let (first, second) = (drift(&log, "/etc/a"), drift(&log, "/etc/b"));
    let mut writer = LogWriter::new(log);
    writer.append([first]);
    let log = writer.finish().await.unwrap();
    assert_eq!(log.pending().count(), 1);
    fs::create_dir(place.directory.path()).unwrap();
    place.clock.forward(MAXIMUM_BACKOFF);
    let mut writer = LogWriter::new(log);
    writer.append([second]);
    assert_eq!(writer.finish().await.unwrap().pending().count(), 0);
    let entries = place.entries();
    assert_eq!(entries.iter().map(path_of).collect::<Vec<_>>(), ["/etc/a", "/etc/b"]);
}

#[test]
fn a_checkpoint_is_written_after_half_an_hour_without_records() {
    let place = TestLog::new();
    let mut log = place.open();
    assert_eq!(log.append(&[]), Durability::Written);
    assert_eq!(place.kinds(), []);
    place.clock.forward(place.limits.checkpoint_after);
    assert_eq!(log.append(&[]), Durability::Written);
    log.append(&[]);
    assert_eq!(place.kinds(), [RecordKind::Checkpoint]);
}

#[test]
fn no_entry_is_longer_than_its_limit_and_the_chain_stays_sound() {
    let place = TestLog::new();
    let mut log = place.open();
    let records = ["y".repeat(100 << 10), "\u{1}".repeat(1024), "x".to_owned()].map(|argument| {
        let mut record = drift(&log, "/etc/a");
        let actor = Actor { pid: 7, argv: vec![argument], ..Actor::default() };
        record.actor = Some(Actor { ancestors: vec![actor.clone(); 8], ..actor });
        record
    });
    assert_eq!(log.append(&records), Durability::Written);
    let text = fs::read_to_string(place.current()).unwrap();
    assert_eq!(text.lines().count(), 3);
    assert!(text.split_inclusive('\n').all(|line| line.len() <= LONGEST_ENTRY));
    assert_eq!(verify(&place.path()).unwrap().fault, None);
    let read: Vec<Record> = place.entries().into_iter().map(|entry| entry.record).collect();
    let cut: Vec<bool> = read.iter().map(|record| record.detail.contains_key("cut")).collect();
    assert_eq!(cut, [true, true, false]);
    assert_eq!(
        (read[0].actor.as_ref().unwrap().pid, read[0].actor.as_ref().unwrap().ancestors.len()),
        (7, 8)
    );
    assert_eq!(read[2], records[2]);
}

#[tokio::test]
async fn the_writer_is_full_with_few_records_of_long_command_lines() {
    let place = TestLog::new();
    let log = place.open();
    let mut record = drift(&log, "/etc/a");
    let actor = Actor { argv: vec!["y".repeat(1024)], ..Actor::default() };
    record.actor = Some(Actor { ancestors: vec![actor.clone(); 8], ..actor });
    let mut writer = LogWriter::new(log);
    writer.append([record.clone()]);
    writer.append(vec![record; 1000]);
    assert!(writer.is_full());
    writer.progress().await.unwrap();
    assert!(!writer.is_full());
    writer.finish().await.unwrap();
}
