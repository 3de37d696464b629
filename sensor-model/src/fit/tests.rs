use super::*;
use crate::chain::{ChainPlace, open, seal};
use crate::difference::{Difference, DifferenceKind};
use crate::record::{RecordKind, SCHEMA, ThingKind};
use serde_json::json;

fn record(actor: Actor) -> Record {
    Record {
        schema: SCHEMA.to_owned(),
        kind: RecordKind::Denied,
        time: "2026-11-21T11:00:00.123456789Z".to_owned(),
        boot_id: "0f7d3a52-6c1e-4b08-9a77-1f2e3d4c5b6a".to_owned(),
        monotonic_ns: u64::MAX,
        path: Some("/etc/a.conf".to_owned()),
        thing: Some(ThingKind::File),
        operation: Some("open-write".to_owned()),
        actor: Some(actor),
        actors: Vec::new(),
        differences: Vec::new(),
        verdict: None,
        source: Some("99-worker-a".to_owned()),
        before: None,
        after: None,
        diff: None,
        detail: serde_json::Map::new(),
    }
}

fn actor(argv: Vec<String>) -> Actor {
    let container_id = Some("ab".repeat(32));
    Actor {
        pid: 7,
        start_ns: u64::MAX,
        exe: Some("/bin/x".to_owned()),
        argv,
        container_id,
        ..Actor::default()
    }
}

/// A record that was cut: its line is within the limit, reads back as the same, matches the schema, and has the mark.
fn holds(record: &Record) -> Record {
    let schema: Value =
        serde_json::from_str(include_str!("../../../docs/schemas/forensic-record.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let cut = fitted(record);
    let place = ChainPlace { seq: u64::MAX - 1, ..ChainPlace::default() };
    let (line, _) = seal(&place, &cut).unwrap();
    assert!(line.len() < LONGEST_ENTRY, "{} bytes", line.len());
    assert_eq!(open(line.as_bytes()).unwrap().record, cut);
    let value: Value = serde_json::from_str(&line).unwrap();
    let faults: Vec<_> = schema.iter_errors(&value).map(|error| error.to_string()).collect();
    assert!(faults.is_empty(), "{line}: {faults:?}");
    assert_eq!(cut.detail["cut"], true);
    assert_eq!((cut.kind, &cut.time), (record.kind, &record.time));
    cut
}

#[test]
fn a_command_line_of_a_hundred_kilobytes_is_cut_and_marked() {
    let cut = holds(&record(actor(vec!["/bin/x".to_owned(), "y".repeat(100 << 10)])));
    let actor = cut.actor.unwrap();
    assert!(actor.argv_cut && actor.argv[0] == "/bin/x" && actor.argv[1].ends_with("y\u{2026}"));
    assert!(actor.argv[1].len() > 512, "as much as there is room for");
    assert_eq!(cut.path.as_deref(), Some("/etc/a.conf"));
}

#[test]
fn control_characters_count_with_their_length_in_the_line() {
    for text in ["\u{1}".repeat(1024), "\"".repeat(4096), "\u{1f980}".repeat(4096), "\\\n".repeat(4096)] {
        let mut deep = actor(vec![text.clone(); 4]);
        deep.exe = Some(text.clone());
        deep.ancestors = vec![actor(vec![text.clone()]); 8];
        deep.unit = Some(text.clone());
        let mut wide = record(deep);
        wide.actors = vec![actor(vec![text.clone()]); 16];
        let difference = Difference {
            kind: DifferenceKind::Unexpected,
            expected: text.clone(),
            found: text.clone(),
            text: text.clone(),
        };
        wide.differences = vec![difference; 65];
        wide.after = Some(json!({ "seen": "names", "names": vec![text.clone(); 64], "more": 5 }));
        wide.detail = json!({ "at": text }).as_object().unwrap().clone();
        let cut = holds(&wide);
        let actor = cut.actor.unwrap();
        assert_eq!((actor.pid, actor.container_id), (7, Some("ab".repeat(32))));
        assert!(!cut.differences.is_empty() && cut.after.unwrap()["seen"] == "names");
    }
}

#[test]
fn many_short_arguments_count_with_their_quotation_marks() {
    let cut = holds(&record(actor(vec![String::new(); 50_000])));
    let actor = cut.actor.unwrap();
    assert!(actor.argv_cut && actor.argv.len() > 100 && actor.argv.len() < 1024, "{}", actor.argv.len());
}

#[test]
fn a_diff_is_cut_to_the_lines_that_fit_and_the_actor_stays_whole() {
    let mut long = record(actor(vec!["vi".to_owned(), "/etc/a.conf".to_owned()]));
    long.diff = Some("-\"old\"\n+\"new\"\n".repeat(1170));
    assert!(length(&long) > LONGEST_ENTRY);
    let cut = holds(&long);
    assert_eq!(cut.actor, long.actor);
    let diff = cut.diff.unwrap();
    let (lines, last) = diff.trim_end().rsplit_once('\n').unwrap();
    assert!(diff.starts_with("-\"old\"\n+\"new\"\n") && lines.len() > 8 << 10);
    assert_eq!(last, format!("\\ and {} lines more", 2340 - lines.lines().count()));
}

#[test]
fn a_path_longer_than_an_entry_is_cut_last() {
    let mut long = record(actor(vec!["x".repeat(5000)]));
    long.path = Some("\u{1}".repeat(4096));
    let cut = holds(&long);
    assert!(cut.path.unwrap().starts_with('\u{1}') && cut.actor.unwrap().pid == 7);
}
