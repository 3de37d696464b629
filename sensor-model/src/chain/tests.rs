use super::*;
use crate::{
    difference::{Difference, DifferenceKind},
    record::{Actor, RecordKind, SCHEMA, ThingKind},
};
use sensor_protocol::verdict::VerdictKind;
use serde_json::json;

/// Every kind. The match does not compile without a new kind, so each one is tested.
fn kinds() -> Vec<RecordKind> {
    use RecordKind::{
        Checkpoint, Denied, Drift, Exec, Gap, Recovered, Repaired, Reverted, Rotation, Start, Stop, Tamper,
        Touched,
    };
    match Start {
        Start | Stop | Drift | Touched | Recovered | Exec | Denied | Reverted | Gap | Rotation
        | Checkpoint | Repaired | Tamper => {}
    }
    vec![
        Start, Stop, Drift, Touched, Recovered, Exec, Denied, Reverted, Gap, Rotation, Checkpoint, Repaired,
        Tamper,
    ]
}

fn bare(kind: RecordKind) -> Record {
    Record {
        schema: SCHEMA.to_owned(),
        kind,
        time: "2026-11-21T11:00:00.123456789Z".to_owned(),
        boot_id: "0f7d3a52-6c1e-4b08-9a77-1f2e3d4c5b6a".to_owned(),
        monotonic_ns: 18_446_744_073_709_551_615,
        path: None,
        operation: None,
        actor: None,
        actors: vec![],
        differences: Vec::new(),
        verdict: None,
        source: None,
        before: None,
        after: None,
        diff: None,
        thing: None,
        detail: serde_json::Map::new(),
    }
}

fn full(kind: RecordKind) -> Record {
    let shell = Actor { pid: 7, argv: vec!["bash".to_owned()], ..Actor::default() };
    let actor = Actor {
        pid: 4242,
        start_ns: 99,
        exe: Some("/usr/bin/tee".to_owned()),
        argv: vec!["tee".to_owned(), "/etc/\u{e9}\n\u{1f980}".to_owned()],
        login_uid: Some(1000),
        login_user: Some("ann".to_owned()),
        session: Some(3),
        tty: Some("pts/0".to_owned()),
        unit: Some("session-3.scope".to_owned()),
        slice: Some("user-1000.slice".to_owned()),
        container_id: Some("ab".repeat(32)),
        pod_uid: Some("2b6f1d3e-8c47-4d0a-9e51-7a3c5b8d9f10".to_owned()),
        ancestors: vec![shell],
        ..Actor::default()
    };
    let difference = Difference {
        kind: DifferenceKind::Content,
        expected: "sha256:1".to_owned(),
        found: "sha256:2".to_owned(),
        text: "content mismatch for file \"/etc/foo\"".to_owned(),
    };
    Record {
        path: Some("/etc/foo".to_owned()),
        thing: Some(ThingKind::File),
        operation: Some("write".to_owned()),
        actor: Some(actor),
        differences: vec![difference],
        verdict: Some(VerdictKind::Drifted),
        source: Some("99-worker-foo".to_owned()),
        before: Some(json!({"from": "declaration", "seen": "object", "file_type": "regular", "size": 1})),
        after: Some(json!({"seen": "missing"})),
        diff: Some("-a\n+b\n".to_owned()),
        detail: json!({"previous_file": "forensic-1.jsonl", "last_seq": 1})
            .as_object()
            .expect("an object")
            .clone(),
        ..bare(kind)
    }
}

fn log(count: usize) -> Vec<String> {
    let mut place = ChainPlace::default();
    (0..count)
        .map(|_| {
            let (line, next) = seal(&place, &full(RecordKind::Drift)).unwrap();
            place = next;
            line + "\n"
        })
        .collect()
}

fn check(lines: &[String]) -> Result<usize, FirstBad> {
    verify(&mut Chain::default(), lines.concat().as_bytes()).unwrap()
}

#[test]
fn every_kind_of_record_fits_the_schema_and_reads_back() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../docs/schemas/forensic-record.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let mut place = ChainPlace::default();
    for kind in kinds() {
        for record in [bare(kind), full(kind)] {
            let (line, next) = seal(&place, &record).unwrap();
            let value: Value = serde_json::from_str(&line).unwrap();
            let faults: Vec<_> = schema.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(faults.is_empty(), "{line}: {faults:?}");
            let entry = open(line.as_bytes()).unwrap();
            assert_eq!((&entry.record, entry.seq, &entry.hash), (&record, place.seq, &next.previous_hash));
            assert_eq!(entry.next_place(), next);
            place = next;
        }
    }
}

#[test]
fn the_schema_refuses_what_is_no_record() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../docs/schemas/forensic-record.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let (line, _) = seal(&ChainPlace::default(), &full(RecordKind::Drift)).unwrap();
    let good: Value = serde_json::from_str(&line).unwrap();
    for key in [
        "schema",
        "seq",
        "kind",
        "time",
        "boot_id",
        "monotonic_ns",
        "path",
        "operation",
        "actor",
        "differences",
        "verdict",
        "source",
        "previous_hash",
        "hash",
    ] {
        let mut bad = good.clone();
        bad.as_object_mut().unwrap().remove(key);
        assert!(!schema.is_valid(&bad), "without {key}");
    }
    for (pointer, value) in [
        ("/kind", json!("drifted")),
        ("/hash", json!("abc")),
        ("/actor/holdfast", json!(null)),
        ("/actor/ancestors/0/pid", json!("7")),
        ("/differences/0/kind", json!("colour")),
        ("/verdict", json!("fine")),
        ("/seq", json!(0)),
        ("/thing", json!("service")),
        ("/before/seen", json!("something")),
        ("/before/sha256", json!("abc")),
        ("/after/mode", json!(0o10000)),
        ("/diff", json!("x".repeat(20_000))),
    ] {
        let mut bad = good.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        match bad.pointer_mut(parent).unwrap() {
            Value::Object(map) => map.insert(key.to_owned(), value),
            list => Some(std::mem::replace(list.pointer_mut(&format!("/{key}")).unwrap(), value)),
        };
        assert!(!schema.is_valid(&bad), "{pointer}");
    }
}

#[test]
fn unknown_fields_are_null_and_the_actor_is_always_there() {
    let (line, _) = seal(&ChainPlace::default(), &bare(RecordKind::Gap)).unwrap();
    let value: Value = serde_json::from_str(&line).unwrap();
    for key in ["actor", "path", "operation", "verdict", "source"] {
        assert_eq!(value.get(key), Some(&Value::Null), "{key}");
    }
    let (line, _) = seal(&ChainPlace::default(), &full(RecordKind::Drift)).unwrap();
    let value: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["actor"]["holdfast"], json!(false));
    assert_eq!(value["actor"]["ancestors"][0]["holdfast"], json!(false));
}

#[test]
fn the_hash_is_that_of_the_canonical_json_without_it() {
    let (line, next) = seal(&ChainPlace::default(), &bare(RecordKind::Start)).unwrap();
    let without = line.replace(&format!("\"hash\":\"{}\",", next.previous_hash), "");
    assert_eq!(hex::encode(Sha256::digest(&without)), next.previous_hash);
    let expected = format!(
        "{{\"actor\":null,\"boot_id\":\"0f7d3a52-6c1e-4b08-9a77-1f2e3d4c5b6a\",\"differences\":[],\"kind\":\"start\",\"monotonic_ns\":18446744073709551615,\"operation\":null,\"path\":null,\"previous_hash\":\"{ORIGIN}\",\"schema\":\"holdfast.forensic/v1\",\"seq\":1,\"source\":null,\"time\":\"2026-11-21T11:00:00.123456789Z\",\"verdict\":null}}"
    );
    assert_eq!(without, expected);
}

#[test]
fn every_change_of_a_log_is_found_where_it_is() {
    let lines = log(5);
    assert_eq!(check(&lines), Ok(0));
    let mut changed = lines.clone();
    changed[2] = changed[2].replace("ann", "bob");
    assert_eq!(check(&changed).map_err(|bad| (bad.line, bad.seq)), Err((3, Some(3))));
    let mut removed = lines.clone();
    removed.remove(3);
    let bad = check(&removed).unwrap_err();
    assert_eq!((bad.line, bad.seq), (4, Some(4)));
    assert!(matches!(bad.reason, EntryFault::Number { found: 5, .. }), "{}", bad.reason);
    let mut swapped = lines.clone();
    swapped.swap(0, 1);
    assert!(check(&swapped).is_err());
    let mut spaced = lines.clone();
    spaced[4] = spaced[4].replacen(',', ", ", 1);
    assert_eq!(check(&spaced).unwrap_err().reason, EntryFault::Form);
    // An entry is replaced together with its hash: the next one does not follow it.
    let mut forged = lines.clone();
    let place = open(lines[1].trim_end().as_bytes()).unwrap().next_place();
    forged[2] = seal(&place, &bare(RecordKind::Drift)).unwrap().0 + "\n";
    assert_eq!(check(&forged).map_err(|bad| bad.line), Err(4));
}

#[test]
fn a_chain_spans_files_and_its_oldest_may_be_removed() {
    let lines = log(6);
    let mut chain = Chain::default();
    for file in [&lines[2..4], &lines[4..]] {
        assert_eq!(verify(&mut chain, file.concat().as_bytes()).unwrap(), Ok(0));
    }
    assert_eq!((chain.first_seq, chain.entries), (Some(3), 4));
    assert_eq!(chain.place.clone().map(|place| place.seq), Some(7));
    assert!(verify(&mut chain, lines[4].as_bytes()).unwrap().is_err(), "a file in the wrong place");
    // A log without its first entries does not pass for a whole one.
    let (line, _) = seal(&ChainPlace { seq: 2, ..ChainPlace::default() }, &bare(RecordKind::Start)).unwrap();
    assert!(check(&[line + "\n"]).is_err());
}

#[test]
fn an_unfinished_end_differs_from_a_changed_entry() {
    let lines = log(4);
    let whole = lines.concat();
    assert_eq!(sound_tail(whole.as_bytes()).sound, whole.len());
    let kept = lines[..3].concat().len();
    for cut in 1..lines[3].len() {
        let torn = &whole.as_bytes()[..whole.len() - cut];
        let tail = sound_tail(torn);
        assert_eq!((tail.sound, tail.broken), (kept, None));
        assert_eq!(tail.place.map(|place| place.seq), Some(4));
        assert_eq!(verify(&mut Chain::default(), torn).unwrap(), Ok(torn.len() - kept));
    }
    let zeros = [&whole.as_bytes()[..kept], &[0; 512][..], b"\n"].concat();
    assert_eq!(sound_tail(&zeros).sound, kept, "blocks that were never written are zeros");
    let broken = whole.replacen("ann", "bob", 1);
    let tail = sound_tail(broken.as_bytes());
    assert_eq!(tail.sound, whole.len());
    assert!(tail.broken.is_some());
    assert_eq!(sound_tail(b""), SoundTail::default());
}

#[test]
fn a_number_with_a_fraction_is_refused_rather_than_sealed_badly() {
    let record = Record { after: Some(json!({"load": [0.1]})), ..bare(RecordKind::Touched) };
    assert!(seal(&ChainPlace::default(), &record).is_err());
}

#[test]
fn a_line_without_an_end_is_read_up_to_its_limit_and_is_a_fault() {
    let mut log = log(2).concat().into_bytes();
    log.resize(log.len() + usize::try_from(MAXIMUM_LINE).unwrap() + 1, 0);
    let bad = verify(&mut Chain::default(), &log[..]).unwrap().unwrap_err();
    assert_eq!((bad.line, bad.seq, bad.reason), (3, Some(3), EntryFault::TooLong));
    // The line has no end, so it is read up to the limit.
    let mut line = Vec::new();
    let endless = &mut io::BufReader::new(io::repeat(b'x'));
    assert_eq!(next_line(endless, &mut line).unwrap(), LogLine::TooLong);
    assert_eq!(line.len() as u64, MAXIMUM_LINE + 1);
}
