//! A log that lacks entries that were on the disk.

use super::*;

/// A daemon that begins, writes so many entries, and stops or is killed.
fn run(place: &TestLog, entries: usize, stops: bool) -> Option<Shortfall> {
    let mut log = place.open();
    let shortfall = log.note_end(place.directory.path());
    let records: Vec<Record> = (0..entries).map(|n| drift(&log, &format!("/etc/{n}"))).collect();
    log.append(&records);
    if stops {
        log.close();
    }
    shortfall
}

/// Keeps so many of the log's lines.
fn cut(place: &TestLog, lines: usize) {
    let text = fs::read_to_string(place.current()).unwrap();
    let kept: String = text.split_inclusive('\n').take(lines).collect();
    fs::write(place.current(), kept).unwrap();
}

#[test]
fn the_next_start_finds_that_the_newest_entries_were_cut_off() {
    let place = TestLog::new();
    assert_eq!(run(&place, 5, true), None);
    assert_eq!(run(&place, 0, true), None, "nothing was cut");
    cut(&place, 3);
    assert!(verify(&place.path()).unwrap().fault.is_none(), "the chain alone does not show it");
    let shortfall = run(&place, 0, true).unwrap();
    assert_eq!((shortfall.missing, shortfall.note.map(|note| note.seq)), (2, Some(5)));
    assert!(place.metric("holdfast_forensic_missing_entries 2"));
    let record = place.entries().pop().unwrap().record;
    assert_eq!((record.kind, &record.detail["missing"]), (RecordKind::Tamper, &json!(2)));
    assert_eq!(run(&place, 0, true), None, "it is reported once");
}

#[test]
fn the_next_start_finds_that_a_log_was_emptied_or_replaced() {
    let place = TestLog::new();
    run(&place, 3, true);
    fs::remove_dir_all(place.path()).unwrap();
    assert_eq!(run(&place, 0, true).unwrap().missing, 3);
    // The same number of entries, and other ones.
    run(&place, 2, true);
    let last = place.entries().len();
    fs::remove_dir_all(place.path()).unwrap();
    place.clock.forward(Duration::from_secs(1));
    let mut log = place.open();
    let records: Vec<Record> = (0..=last).map(|n| drift(&log, &format!("/etc/{n}"))).collect();
    log.append(&records);
    drop(log);
    assert_eq!(run(&place, 0, true).unwrap().missing, 1);
}

#[test]
fn a_killed_daemon_has_noted_each_entry_older_than_a_minute() {
    let place = TestLog::new();
    let mut log = place.open();
    log.note_end(place.directory.path());
    let seq = || EndNote::read(place.directory.path(), &place.path()).unwrap().map(|note| note.seq);
    let write = |log: &mut ForensicLog| {
        let record = drift(log, "/etc/a");
        log.append(&[record]);
    };
    assert_eq!(seq(), Some(0), "there is a note before an entry names it");
    write(&mut log);
    assert_eq!(seq(), Some(1), "the first entry is noted at once");
    write(&mut log);
    place.clock.forward(Duration::from_secs(59));
    write(&mut log);
    assert_eq!((seq(), log.upkeep_in()), (Some(1), Duration::from_secs(1)));
    place.clock.forward(Duration::from_secs(1));
    // No new record.
    log.append(&[]);
    assert_eq!(seq(), Some(3));
    assert!(log.upkeep_in() > Duration::from_mins(1), "nothing is due while nothing is written");
    drop(log);
    cut(&place, 2);
    assert_eq!(run(&place, 0, false).unwrap().missing, 1);
}

#[test]
fn an_unreadable_note_counts_as_a_cut_and_the_note_of_another_log_does_not_count() {
    let place = TestLog::new();
    run(&place, 1, true);
    let note = place.directory.path().join(NOTE);
    fs::write(&note, "{").unwrap();
    assert_eq!(run(&place, 0, true).unwrap().missing, 1);
    assert_eq!(place.kinds().pop(), Some(RecordKind::Tamper));
    assert!(place.metric("holdfast_forensic_missing_entries 1"));
    assert_eq!(run(&place, 0, true), None, "it is reported once");
    fs::remove_file(&note).unwrap();
    std::os::unix::fs::symlink("elsewhere", &note).unwrap();
    assert_eq!(run(&place, 0, true).unwrap().file, note);
    let other = tempfile::tempdir().unwrap();
    fs::rename(place.path(), other.path().join("log")).unwrap();
    assert_eq!(EndNote::read(place.directory.path(), &other.path().join("log")).unwrap(), None);
}

/// A daemon that begins while the disk refuses.
fn refused(place: &TestLog) -> (ForensicLog, Option<Shortfall>) {
    REFUSE.set(Some(Errno::EROFS));
    let mut log = place.open();
    assert!(log.degraded().is_some());
    let shortfall = log.note_end(place.directory.path());
    (log, shortfall)
}

/// The disk accepts writes again. Gives what the records of the log's faults say is missing.
fn accepted(place: &TestLog, mut log: ForensicLog) -> Vec<u64> {
    REFUSE.set(None);
    place.clock.forward(MAXIMUM_BACKOFF);
    let record = drift(&log, "/etc/later");
    assert_eq!(log.append(&[record]), Durability::Written);
    let mut records = place.entries().into_iter().map(|entry| entry.record).collect::<Vec<_>>();
    records.retain(|record| record.kind == RecordKind::Tamper);
    records.iter().filter_map(|record| record.detail["missing"].as_u64()).collect()
}

#[test]
fn a_start_while_the_disk_refuses_finds_a_cut_and_reports_no_whole_log_as_cut() {
    let place = TestLog::new();
    run(&place, 5, true);
    let (log, shortfall) = refused(&place);
    assert_eq!(shortfall, None);
    assert!(place.metric("holdfast_forensic_missing_entries 0"));
    assert!(accepted(&place, log).is_empty());
    assert_eq!(run(&place, 0, true), None);

    let place = TestLog::new();
    run(&place, 5, true);
    cut(&place, 3);
    let (log, shortfall) = refused(&place);
    assert_eq!(shortfall.unwrap().missing, 2);
    assert_eq!(accepted(&place, log), [2], "it is reported once");
}

#[test]
fn a_log_that_could_not_be_compared_at_the_start_is_compared_before_the_first_write() {
    // It is cut after the start.
    let place = TestLog::new();
    run(&place, 5, true);
    let (log, shortfall) = refused(&place);
    assert_eq!(shortfall, None);
    cut(&place, 3);
    assert_eq!(accepted(&place, log), [2]);
    assert!(place.metric("holdfast_forensic_missing_entries 2"));

    // It is cut before, and cannot be read.
    let place = TestLog::new();
    run(&place, 5, true);
    cut(&place, 4);
    let aside = place.directory.path().join("aside");
    fs::rename(place.current(), &aside).unwrap();
    fs::create_dir(place.current()).unwrap();
    let (log, shortfall) = refused(&place);
    assert_eq!(shortfall, None, "what cannot be read may be whole");
    fs::remove_dir(place.current()).unwrap();
    fs::rename(&aside, place.current()).unwrap();
    assert_eq!(accepted(&place, log), [1]);
}

/// A daemon that records its start, and stops.
fn begin(place: &TestLog) -> Option<Shortfall> {
    let mut log = place.open();
    let shortfall = log.note_end(place.directory.path());
    let records = [log.record(RecordKind::Start), drift(&log, "/etc/a")];
    log.append(&records);
    log.close();
    shortfall
}

#[test]
fn a_removed_note_is_found_only_if_the_log_names_it() {
    let place = TestLog::new();
    let note = place.directory.path().join(NOTE);
    let mut old = place.open();
    let start = old.record(RecordKind::Start);
    old.append(&[start]);
    drop(old);
    assert_eq!(run(&place, 0, true), None, "a version without notes wrote this log");
    fs::remove_file(&note).unwrap();
    assert_eq!(begin(&place), None, "no entry names the note yet");
    assert_eq!(begin(&place), None);
    let copy = place.directory.path().join("copy");
    fs::create_dir(&copy).unwrap();
    fs::copy(place.current(), copy.join(CURRENT)).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    for (state, log) in [(place.directory.path(), &copy), (elsewhere.path(), &place.path())] {
        assert_eq!(
            NotedEnd::read(state, log).compare(5).unwrap(),
            None,
            "another log, or another state directory"
        );
    }
    fs::remove_file(&note).unwrap();
    cut(&place, 4);
    assert!(verify(&place.path()).unwrap().fault.is_none(), "the chain alone does not show it");
    let shortfall = begin(&place).unwrap();
    assert_eq!((shortfall.missing, shortfall.note), (1, None));
    assert!(place.metric("holdfast_forensic_missing_entries 1"));
    assert!(place.kinds().contains(&RecordKind::Tamper));
    assert_eq!(begin(&place), None, "it is reported once");
}

#[test]
fn a_checkpoint_names_the_note_too_since_rotation_removes_the_start() {
    let mut place = TestLog::new();
    place.limits.checkpoint_every = 2;
    run(&place, 3, true);
    let found = place.entries().into_iter().find(|entry| entry.record.kind == RecordKind::Checkpoint);
    let note = place.directory.path().canonicalize().unwrap().join(NOTE);
    assert_eq!(found.unwrap().record.detail["end_noted"]["note"], json!(note));
}
