//! `who` and `log`.

use crate::world::World;
use holdfast::{
    clock::{Clock, SystemClock},
    report::forensic::{ForensicLog, LogLimits},
    report::metrics::{BuildInfo, Metrics},
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
    let metrics = Arc::new(Metrics::new(build, clock.now()));
    ForensicLog::open(&world.at("log"), LogLimits::default(), clock, "boot-1".into(), metrics).unwrap()
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
    assert_snapshot!("no_change", world.run(&["who", "/etc/other", "LOG"]).golden());
}

#[test]
fn who_ran_a_file_or_was_refused_is_not_who_changed_it() {
    let world = World::new();
    log(&world);
    let mut log = open(&world);
    let others = [RecordKind::Exec, RecordKind::Denied].map(|kind| Record {
        actor: Some(Actor { pid: 1, ..Actor::default() }),
        ..record(&log, kind, Some("/etc/app/app.conf"), 4)
    });
    log.append(&others);
    let report = world.run(&["who", "/etc/app/app.conf", "-o", "json", "LOG"]).json("who");
    let changes = report["changes"].as_array().unwrap().iter();
    assert_eq!(changes.map(|change| &change["kind"]).collect::<Vec<_>>(), ["recovered", "drift"]);
}

/// A drift by a process in a pod, and an audit log with an exec by a user whose name has a terminal sequence.
fn pod_change(world: &World) -> String {
    let uid = "2b6f1d3e-8c47-4d0a-9e51-7a3c5b8d9f10";
    let mut log = open(world);
    let mut drift = record(&log, RecordKind::Drift, Some("/etc/app/app.conf"), 9);
    (drift.operation, drift.monotonic_ns) = (Some("write".into()), 60_000_000_000);
    drift.actor = Some(Actor {
        pid: 4711,
        start_ns: 59_000_000_000,
        container_id: Some("c".repeat(64)),
        pod_uid: Some(uid.into()),
        ..Actor::default()
    });
    log.append(&[drift]);
    fs::create_dir_all(world.at(&format!("pod-logs/pods/shop_web-0_{uid}"))).unwrap();
    let event = serde_json::json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "auditID": "a-1", "stage": "ResponseStarted", "verb": "get",
        "requestURI": "/api/v1/namespaces/shop/pods/web-0/exec?command=sh&container=app",
        "user": {"username": "alice@example.com\u{1b}[2J"}, "sourceIPs": ["192.0.2.7"],
        "objectRef": {"resource": "pods", "namespace": "shop", "name": "web-0", "subresource": "exec"},
        "requestReceivedTimestamp": "2026-01-02T03:04:07.5Z", "stageTimestamp": "2026-01-02T03:04:07.6Z",
    });
    world.write("audit.log", &format!("{event}\n"));
    world.at("audit.log").display().to_string()
}

#[test]
fn who_names_the_user_whose_request_matches_a_change_in_a_pod() {
    let world = World::new();
    let audit = pod_change(&world);
    let pods = world.at("pod-logs").display().to_string();
    let ask = ["who", "/etc/app/app.conf", "--audit-log", &audit, "--pod-logs", &pods, "LOG"];
    assert_snapshot!("user", world.run(&ask).golden());
    let json: Vec<&str> = ask.iter().copied().chain(["-o", "json"]).collect();
    let report = world.run(&json).json("who");
    assert_eq!(report["changes"][0]["users"][0]["request"], "exec");

    let unnamed =
        world.run(&["who", "/etc/app/app.conf", "--audit-log", &audit, "--pod-logs", "/nonexistent", "LOG"]);
    assert_snapshot!("unnamed_pod", unnamed.golden());
    let without = world.run(&["who", "/etc/app/app.conf", "-o", "json", "LOG"]).json("who");
    assert_eq!(without["changes"][0].get("users"), None);
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
fn log_prints_as_json_the_very_lines_of_the_file() {
    let world = World::new();
    log(&world);
    let written = fs::read_to_string(world.at("log/forensic.jsonl")).unwrap();
    assert_eq!(world.run(&["log", "show", "-o", "json", "LOG"]).out, written);
}

#[test]
fn log_verify_names_the_first_changed_entry() {
    let world = World::new();
    log(&world);
    let result = world.run(&["log", "verify", "-o", "json", "LOG"]);
    let report = result.json("log-verify");
    assert_eq!((result.code, &report["sound"], &report["entries"]), (0, &true.into(), &4.into()));
    let path = world.at("log/forensic.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"pid\":4711", "\"pid\":4712")).unwrap();
    let result = world.run(&["log", "verify", "LOG"]);
    // The hashes in the reason depend on this run's clock.
    assert!(
        result.code == 1 && result.out.starts_with("broken: [HERE]/log/forensic.jsonl, line 2, entry 2: "),
        "{}",
        result.golden()
    );
    assert!(result.out.ends_with("1 entry before it is intact\n"), "{}", result.golden());
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
    let result = world.run(&verify);
    assert_eq!(result.code, 0, "{}", result.golden());
    let path = world.at("log/forensic.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.split_inclusive('\n').take(4).collect::<String>()).unwrap();
    let result = world.run(&verify);
    let expected = "broken: [HERE]/forensic-end.json, entry 5: the log ends with entry 4, but entry 5 was on the disk at ";
    assert!(result.code == 1 && result.out.starts_with(expected), "{}", result.golden());
}

#[test]
fn log_tail_prints_entries_as_they_are_added() {
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
fn an_answer_from_a_damaged_log_is_printed_and_the_command_fails() {
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
    // A changed process number; a missing entry; a line that is no JSON.
    let second = text.lines().nth(1).unwrap();
    for damaged in [
        text.replace("\"pid\":4711", "\"pid\":4712"),
        text.replace(&format!("{second}\n"), ""),
        text.replace(second, "rubbish"),
    ] {
        fs::write(&path, damaged).unwrap();
        for question in questions {
            let result = world.run(question);
            assert_eq!(result.code, 3, "{question:?}: {}", result.golden());
            let reason = "the log is not sound, so this answer may be false or not all of it: [HERE]/log/forensic.jsonl, line 2";
            assert!(result.err.contains(reason), "{question:?}: {}", result.golden());
            assert!(result.out.contains("recovered"), "the entries are shown, too: {}", result.golden());
        }
    }
}

#[test]
fn an_emptied_log_is_not_sound() {
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
        let result = world.run(question);
        assert_eq!(result.code, 3, "{question:?}: {}", result.golden());
        let all = format!("{}{}", result.out, result.err);
        assert!(all.contains("there is no entry in it"), "{question:?}: {}", result.golden());
    }
    let report = world.run(&["log", "verify", "-o", "json", "LOG"]).json("log-verify");
    assert_eq!((&report["sound"], report["doubt"].is_string()), (&false.into(), true), "{report}");
}

#[test]
fn a_command_fails_if_the_end_of_the_log_was_cut_off_or_its_note_was_removed() {
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
        let result = ask(question);
        assert_eq!((result.code, result.err.as_str()), (code, ""), "{question:?}: {}", result.golden());
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
            let result = ask(question);
            assert!(result.code == 3 && result.err.contains(&reason), "{question:?}: {}", result.golden());
            assert!(result.out.contains("drift"), "the entries are shown, too: {}", result.golden());
        }
        let result = ask(&["log", "verify", "LOG"]);
        assert!(result.code == 1 && result.out.contains("forensic-end.json"), "{}", result.golden());
    }
    fs::remove_dir_all(world.at("log")).unwrap();
    fs::write(&note, "{").unwrap();
    let result = ask(questions[3]);
    assert!(result.code == 3 && result.out.ends_with("last change: not known\n"), "{}", result.golden());
}

#[test]
fn explain_fails_for_an_unreadable_log_and_not_without_a_log() {
    let world = World::in_sync();
    let log = |path: &str| world.at(path).display().to_string();
    let result =
        world.run(&["explain", "/etc/app/app.conf", "CONFIG", "--log", &log("config/99-worker-app.yaml")]);
    assert!(result.code == 3 && result.out.ends_with("last change: not known\n"), "{}", result.golden());
    assert!(result.err.contains("99-worker-app.yaml"), "{}", result.golden());
    let result = world.run(&["explain", "/etc/app/app.conf", "CONFIG", "--log", &log("nowhere")]);
    assert_eq!((result.code, result.err.as_str()), (0, ""), "{}", result.golden());
}
