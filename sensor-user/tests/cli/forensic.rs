//! `who` and `log`.

use crate::world::World;
use holdfast::{
    clock::{Clock, SystemClock},
    report::forensic::{ForensicLog, Limits},
    report::metrics::{BuildInfo, Telemetry},
};
use insta::assert_snapshot;
use sensor_model::{
    difference::{Difference, DifferenceKind},
    record::{Actor, Record, RecordKind},
    verdict::VerdictKind,
};
use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::Stdio,
    sync::Arc,
};

fn open(world: &World) -> ForensicLog {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let build = BuildInfo { version: "1".into(), commit: "c".into(), object: "o".into(), kernel: "k".into() };
    let telemetry = Arc::new(Telemetry::new(build, clock.now()));
    ForensicLog::open(&world.at("log"), Limits::default(), clock, "boot-1".into(), telemetry).unwrap()
}

fn record(log: &ForensicLog, kind: RecordKind, path: Option<&str>, second: u32) -> Record {
    let mut record = log.record(kind);
    record.time = format!("2026-01-02T03:04:{second:02}.000000000Z");
    record.path = path.map(str::to_owned);
    record
}

/// A drift of `/etc/app/app.conf` by a login behind sudo, its recovery, and a drift of another path.
pub(crate) fn log(world: &World) {
    let mut log = open(world);
    let mut start = record(&log, RecordKind::Start, None, 0);
    start.detail.insert("backend".into(), "lsm".into());
    let mut drift = record(&log, RecordKind::Drift, Some("/etc/app/app.conf"), 1);
    drift.operation = Some("write".into());
    drift.verdict = Some(VerdictKind::Drifted);
    drift.source = Some("99-worker-app".into());
    drift.actor = Some(Actor {
        pid: 4711,
        exe: Some("/usr/bin/vim".into()),
        argv: vec!["vim".into(), "/etc/app/app.conf\u{1b}[2J".into()],
        login_uid: Some(1000),
        login_user: Some("alice".into()),
        session: Some(3),
        tty: Some("pts/0".into()),
        unit: Some("session-3.scope".into()),
        ..Actor::default()
    });
    drift.differences = vec![Difference {
        kind: DifferenceKind::Content,
        expected: "sha256:aa (10 bytes)".into(),
        found: "sha256:bb (10 bytes)".into(),
        text: "content mismatch for file \"/etc/app/app.conf\"".into(),
    }];
    let mut recovered = record(&log, RecordKind::Recovered, Some("/etc/app/app.conf"), 2);
    recovered.operation = Some("rename".into());
    let other = record(&log, RecordKind::Drift, Some("/etc/app/app.conf.d/below"), 3);
    log.append(&[start, drift, recovered, other]);
}

#[test]
fn who_names_the_login_behind_a_change_and_only_changes_of_this_path() {
    let world = World::new();
    log(&world);
    assert_snapshot!(world.run(&["who", "/etc/app/app.conf", "LOG"]).golden());
    let report = world.run(&["who", "/etc/app/app.conf", "-n", "1", "-o", "json", "LOG"]).json("who");
    assert_eq!(report["changes"].as_array().unwrap().len(), 1);
    assert_eq!(report["changes"][0]["kind"], "recovered");
    assert_snapshot!("nobody", world.run(&["who", "/etc/other", "LOG"]).golden());
}

#[test]
fn log_shows_the_requested_entries() {
    let world = World::new();
    log(&world);
    assert_snapshot!("tail", world.run(&["log", "tail", "-n", "2", "LOG"]).golden());
    let kinds = world.run(&["log", "show", "--kind", "start", "--kind", "recovered", "LOG"]);
    assert_snapshot!("kinds", kinds.golden());
    let since = world.run(&["log", "show", "--since", "2026-01-02T03:04:03Z", "--path", "/etc/app", "LOG"]);
    assert!(since.out.contains("#4") && !since.out.contains("#3"), "{}", since.golden());
}

#[test]
fn log_lines_as_json_are_those_that_were_written() {
    let world = World::new();
    log(&world);
    let written = fs::read_to_string(world.at("log/forensic.jsonl")).unwrap();
    assert_eq!(world.run(&["log", "show", "-o", "json", "LOG"]).out, written);
}

#[test]
fn log_verify_names_the_first_changed_entry() {
    let world = World::new();
    log(&world);
    let said = world.run(&["log", "verify", "-o", "json", "LOG"]);
    let report = said.json("log-verify");
    assert_eq!((said.code, &report["sound"], &report["entries"]), (0, &true.into(), &4.into()));
    let path = world.at("log/forensic.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"pid\":4711", "\"pid\":4712")).unwrap();
    let said = world.run(&["log", "verify", "LOG"]);
    // The hashes in the reason depend on this run's clock.
    assert!(
        said.code == 1 && said.out.starts_with("broken: [HERE]/log/forensic.jsonl, line 2, entry 2: "),
        "{}",
        said.golden()
    );
    assert!(said.out.ends_with("1 entry before it is intact\n"), "{}", said.golden());
    let report = world.run(&["log", "verify", "-o", "json", "LOG"]).json("log-verify");
    assert_eq!((&report["fault"]["line"], &report["fault"]["seq"]), (&2.into(), &2.into()));
}

#[test]
fn log_verify_finds_that_the_newest_entries_were_cut_off() {
    let world = World::new();
    log(&world);
    let mut written = open(&world);
    assert_eq!(written.note_end(&world.at("")), None);
    let last = record(&written, RecordKind::Gap, None, 9);
    written.append(&[last]);
    written.close();
    let state = world.at("");
    let verify = ["log", "verify", "--state", state.to_str().unwrap(), "LOG"];
    let said = world.run(&verify);
    assert_eq!(said.code, 0, "{}", said.golden());
    let path = world.at("log/forensic.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.split_inclusive('\n').take(4).collect::<String>()).unwrap();
    let said = world.run(&verify);
    let expected = "broken: [HERE]/forensic-end.json, entry 5: the log ends with entry 4, but entry 5 was on the disk at ";
    assert!(said.code == 1 && said.out.starts_with(expected), "{}", said.golden());
}

#[test]
fn log_tail_follows_what_is_written() {
    let world = World::new();
    log(&world);
    let mut child =
        world.command(&["log", "tail", "-n", "1", "-f", "LOG"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "#4 /etc/app/app.conf.d/below");
    let mut log = open(&world);
    let stop = record(&log, RecordKind::Stop, None, 9);
    log.append(&[stop]);
    let found = lines.map(Result::unwrap).find(|line| line.starts_with("#5"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found.as_deref(), Some("#5 2026-01-02 03:04:09Z stop"));
}

#[test]
fn an_answer_from_a_damaged_log_is_given_with_the_reason_and_is_a_failure() {
    let world = World::new();
    log(&world);
    let path = world.at("log/forensic.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let questions = [
        &["who", "/etc/app/app.conf", "LOG"][..],
        &["log", "show", "LOG"],
        &["log", "show", "-o", "json", "LOG"],
        &["log", "tail", "LOG"],
        &["explain", "/etc/app/app.conf", "LOG", "CONFIG"],
        &["explain", "/etc/app/app.conf", "-o", "json", "LOG", "CONFIG"],
    ];
    // Another process's name; a missing entry; a line that is no JSON.
    let second = text.lines().nth(1).unwrap();
    for damaged in [
        text.replace("\"pid\":4711", "\"pid\":4712"),
        text.replace(&format!("{second}\n"), ""),
        text.replace(second, "rubbish"),
    ] {
        fs::write(&path, damaged).unwrap();
        for question in questions {
            let said = world.run(question);
            assert_eq!(said.code, 3, "{question:?}: {}", said.golden());
            let reason = "the log is not sound, so this answer may be false or not all of it: [HERE]/log/forensic.jsonl, line 2";
            assert!(said.err.contains(reason), "{question:?}: {}", said.golden());
            assert!(said.out.contains("recovered"), "what there is is shown all the same: {}", said.golden());
        }
    }
}

#[test]
fn an_emptied_log_is_not_intact_and_has_no_answer() {
    let world = World::new();
    log(&world);
    fs::write(world.at("log/forensic.jsonl"), "").unwrap();
    for question in [
        &["who", "/etc/app/app.conf", "LOG"][..],
        &["log", "show", "LOG"],
        &["log", "tail", "LOG"],
        &["log", "verify", "LOG"],
        &["explain", "/etc/app/app.conf", "LOG", "CONFIG"],
    ] {
        let said = world.run(question);
        assert_eq!(said.code, 3, "{question:?}: {}", said.golden());
        let all = format!("{}{}", said.out, said.err);
        assert!(all.contains("there is no entry in it"), "{question:?}: {}", said.golden());
    }
    let report = world.run(&["log", "verify", "-o", "json", "LOG"]).json("log-verify");
    assert_eq!((&report["sound"], report["doubt"].is_string()), (&false.into(), true), "{report}");
}

#[test]
fn an_answer_from_a_log_whose_end_was_cut_off_is_a_failure_and_so_is_one_without_the_note() {
    let world = World::new();
    let (state, note) = (world.at("state"), world.at("state/forensic-end.json"));
    fs::create_dir(&state).unwrap();
    let mut written = open(&world);
    assert_eq!(written.note_end(&state), None);
    let entries = [RecordKind::Start, RecordKind::Drift, RecordKind::Recovered];
    let entries = entries.map(|kind| record(&written, kind, Some("/etc/app/app.conf"), 1));
    written.append(&entries);
    written.close();
    drop(written);
    let state = state.to_str().unwrap();
    let ask = |question: &[&str]| world.run(&[question, &["--state", state]].concat());
    let questions = [
        &["who", "/etc/app/app.conf", "LOG"][..],
        &["log", "show", "LOG"],
        &["log", "tail", "LOG"],
        &["explain", "/etc/app/app.conf", "LOG", "CONFIG"],
    ];
    for (question, code) in questions.into_iter().zip([0, 0, 0, 1]) {
        let said = ask(question);
        assert_eq!((said.code, said.err.as_str()), (code, ""), "{question:?}: {}", said.golden());
    }
    let path = world.at("log/forensic.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.split_inclusive('\n').take(2).collect::<String>()).unwrap();
    for (hide, reason) in [
        (
            (|_| Ok(())) as fn(&std::path::Path) -> std::io::Result<()>,
            "the log ends with entry 2, but entry 3 was",
        ),
        (|note| fs::write(note, "{"), "the note of the log's end is not what was written"),
        (|note| fs::remove_file(note), "entry 1 names this note of the log's end, and there is none"),
    ] {
        hide(&note).unwrap();
        let reason = format!("[HERE]/state/forensic-end.json: {reason}");
        for question in questions {
            let said = ask(question);
            assert!(said.code == 3 && said.err.contains(&reason), "{question:?}: {}", said.golden());
            assert!(said.out.contains("drift"), "what there is is shown all the same: {}", said.golden());
        }
        let said = ask(&["log", "verify", "LOG"]);
        assert!(said.code == 1 && said.out.contains("forensic-end.json"), "{}", said.golden());
    }
    fs::remove_dir_all(world.at("log")).unwrap();
    fs::write(&note, "{").unwrap();
    let said = ask(questions[3]);
    assert!(said.code == 3 && said.out.ends_with("last change: not known\n"), "{}", said.golden());
}

#[test]
fn explain_from_a_log_that_cannot_be_read_says_so_and_without_a_log_it_answers() {
    let world = World::in_sync();
    let log = |path: &str| world.at(path).display().to_string();
    let said =
        world.run(&["explain", "/etc/app/app.conf", "CONFIG", "--log", &log("config/99-worker-app.yaml")]);
    assert!(said.code == 3 && said.out.ends_with("last change: not known\n"), "{}", said.golden());
    assert!(said.err.contains("99-worker-app.yaml"), "{}", said.golden());
    let said = world.run(&["explain", "/etc/app/app.conf", "CONFIG", "--log", &log("nowhere")]);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{}", said.golden());
}
