//! Reading sound and damaged logs.

use super::*;

#[test]
fn entries_are_shown_by_path_kind_and_time() {
    let place = TestLog::new();
    let mut log = place.open();
    for (n, path) in ["/etc/a", "/etc/a/b", "/etc/ab"].into_iter().enumerate() {
        let mut record = drift(&log, path);
        if n == 1 {
            record.kind = RecordKind::Recovered;
        }
        log.append(&[record]);
        place.clock.forward(Duration::from_secs(1));
    }
    let shown = |filter: Filter| {
        let mut paths = Vec::new();
        show(&place.path(), &filter, &mut |entry| paths.extend(entry.record.path)).unwrap();
        paths
    };
    let path = Some(PathBuf::from("/etc/a"));
    assert_eq!(shown(Filter { path, ..Filter::default() }), ["/etc/a", "/etc/a/b"]);
    assert_eq!(shown(Filter { kinds: vec![RecordKind::Recovered], ..Filter::default() }), ["/etc/a/b"]);
    let since = Some("2026-01-02T03:04:06Z".parse().unwrap());
    assert_eq!(shown(Filter { since, ..Filter::default() }), ["/etc/a/b", "/etc/ab"]);
    assert_eq!(tail(&place.path(), 1, &Filter::default()).unwrap()[0].seq, 3);
    assert!(tail(&place.path(), 0, &Filter::default()).unwrap().is_empty());
}

#[test]
fn the_drifts_that_are_open_at_the_end_have_their_beginning_and_their_actor() {
    let place = TestLog::new();
    let mut log = place.open();
    let begin = rfc3339(place.clock.now());
    let mut records = vec![drift(&log, "/etc/open"), drift(&log, "/etc/gone"), drift(&log, "/etc/reverted")];
    place.clock.forward(Duration::from_secs(5));
    let mut again = drift(&log, "/etc/open");
    again.actor = Some(Actor { pid: 9, ..Actor::default() });
    records.push(again.clone());
    for (kind, path) in [
        (RecordKind::Recovered, "/etc/gone"),
        // Without differences: it failed. With differences: it was done, and the next verification shows whether it helped.
        (RecordKind::Reverted, "/etc/open"),
        (RecordKind::Reverted, "/etc/reverted"),
    ] {
        let mut record = log.record(kind);
        record.set_name(file(path));
        if path == "/etc/reverted" {
            record.differences.clone_from(&again.differences);
        }
        records.push(record);
    }
    log.append(&records);
    let open = open_drifts(&place.path()).unwrap();
    assert_eq!(open.keys().collect::<Vec<_>>(), [&file("/etc/open"), &file("/etc/reverted")]);
    assert_eq!(open[&file("/etc/open")], LoggedDrift { since: begin, last: again });
}

#[test]
fn of_two_things_at_one_path_only_the_drifted_one_is_open() {
    let place = TestLog::new();
    let mut log = place.open();
    let unit = ThingName { kind: ThingKind::Unit, ..file("/etc/systemd/system/a.service") };
    let mut of_unit = drift(&log, &unit.path);
    of_unit.set_name(unit.clone());
    let mut of_file = log.record(RecordKind::Recovered);
    of_file.set_name(file(&unit.path));
    log.append(&[drift(&log, &unit.path), of_unit, of_file]);
    assert_eq!(open_drifts(&place.path()).unwrap().into_keys().collect::<Vec<_>>(), [unit]);
}

#[test]
fn a_rotated_file_that_was_cut_short_is_found() {
    let mut place = TestLog::new();
    place.limits.file_bytes = 1500;
    let mut log = place.open();
    for n in 0..10 {
        let record = drift(&log, &format!("/etc/{n}"));
        log.append(&[record]);
    }
    let first = files(&place.path()).unwrap().remove(0);
    let whole = fs::read(&first).unwrap();
    fs::write(&first, &whole[..whole.len() - 10]).unwrap();
    let fault = verify(&place.path()).unwrap().fault.unwrap();
    assert_eq!((fault.file, fault.line), (first, None));
}

#[test]
fn removed_swapped_and_repeated_entries_are_found() {
    let place = TestLog::new();
    let mut log = place.open();
    let records: Vec<Record> = (0..4).map(|n| drift(&log, &format!("/etc/{n}"))).collect();
    log.append(&records);
    drop(log);
    let text = fs::read_to_string(place.current()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    for (order, line) in [(vec![0, 2, 3], 2), (vec![0, 2, 1, 3], 2), (vec![0, 1, 1, 2], 3), (vec![3, 0], 2)] {
        let kept: Vec<&str> = order.iter().map(|n| lines[*n]).collect();
        let changed = format!("{}\n", kept.join("\n"));
        fs::write(place.current(), changed).unwrap();
        let fault = verify(&place.path()).unwrap().fault.unwrap();
        assert_eq!((fault.line, fault.file), (Some(line), place.current()), "{order:?}: {}", fault.reason);
    }
}

#[test]
fn every_change_of_a_written_byte_is_found_and_named() {
    let place = TestLog::new();
    let mut log = place.open();
    let records: Vec<Record> = (0..4).map(|n| drift(&log, &format!("/etc/{n}"))).collect();
    log.append(&records);
    drop(log);
    let whole = fs::read(place.current()).unwrap();
    let mut line = 1;
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x01;
        fs::write(place.current(), &changed).unwrap();
        let found = verify(&place.path()).unwrap();
        let last = at == whole.len() - 1;
        let fault = found.fault.as_ref().map(|fault| (fault.line.unwrap(), fault.seq.unwrap_or(1)));
        if last {
            // A last line without its end is still being written.
            assert!(fault.is_none() && found.unfinished > 0, "byte {at}: {found:?}");
        } else {
            assert_eq!(fault, Some((line, line)), "byte {at}: {found:?}");
        }
        if whole[at] == b'\n' {
            line += 1;
        }
    }
}

/// The numbers of the entries from one number to another.
fn numbers(place: &TestLog, first: u64, last: u64, limit: usize) -> Vec<u64> {
    match entries_from(&place.path(), first, last, limit).unwrap() {
        EntriesFrom::Lines(lines) => {
            let lines = String::from_utf8(lines).unwrap();
            lines.lines().map(|line| sensor_model::chain::open(line.as_bytes()).unwrap().seq).collect()
        }
        EntriesFrom::Gone(oldest) => panic!("the oldest entry is {oldest}"),
    }
}

#[test]
fn entries_are_found_by_their_number_in_a_long_log_and_over_rotations() {
    let mut place = TestLog::new();
    place.limits.file_bytes = 300 << 10;
    let mut log = place.open();
    for _ in 0..30 {
        let records: Vec<Record> = (0..100).map(|n| drift(&log, &format!("/etc/{n}"))).collect();
        log.append(&records);
    }
    assert!(files(&place.path()).unwrap().len() > 2);
    let last = place.entries().last().unwrap().seq;
    for first in (1..=last).step_by(37).chain([last]) {
        let found = numbers(&place, first, last, 8 << 10);
        assert_eq!(found, (first..first + found.len() as u64).collect::<Vec<_>>());
    }
    assert_eq!(numbers(&place, 7, last, 1), [7], "at least one");
    assert_eq!(numbers(&place, last - 1, last - 1, 8 << 10), [last - 1], "no entry that is not synced yet");
    assert!(numbers(&place, last + 1, last + 1, 8 << 10).is_empty());
    let all = numbers(&place, 1, last, usize::MAX);
    assert_eq!(all, (1..=last).collect::<Vec<_>>());
}

#[test]
fn removed_entries_are_gone_and_an_unfinished_line_is_no_entry_yet() {
    let place = TestLog::new();
    let mut log = place.open();
    log.append(&[drift(&log, "/etc/a"), drift(&log, "/etc/b"), drift(&log, "/etc/c")]);
    let text = fs::read_to_string(place.current()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    fs::write(place.current(), format!("{}\n{}\n", lines[0], lines[2])).unwrap();
    assert_eq!(entries_from(&place.path(), 2, 3, 1 << 20).unwrap(), EntriesFrom::Gone(3));
    fs::write(place.current(), format!("{}\n{}", lines[0], lines[1])).unwrap();
    assert_eq!(numbers(&place, 1, 3, 1 << 20), [1]);
    assert_eq!(entries_from(&place.path(), 2, 3, 1 << 20).unwrap(), EntriesFrom::Lines(Vec::new()));
}

#[test]
fn the_newest_entry_is_announced_at_the_start_and_after_each_write() {
    let place = TestLog::new();
    let mut log = place.open();
    log.append(&[drift(&log, "/etc/a")]);
    drop(log);
    let mut log = place.open();
    let (sender, newest) = tokio::sync::watch::channel(None);
    log.announce_to(sender);
    for count in 1..3 {
        let announced = newest.borrow().clone().unwrap();
        let entry = place.entries().pop().unwrap();
        assert_eq!((announced.sequence, announced.hash), (count, entry.hash));
        assert_eq!(announced.time, entry.record.time);
        log.append(&[drift(&log, "/etc/b")]);
    }
}
