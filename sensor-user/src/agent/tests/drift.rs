//! Open drifts over reload, apply and restart, and things that are written back.

use super::super::mounts::AnnouncedMount;
use super::*;
use sensor_common::map::InodeKey;
use sensor_model::difference::DifferenceKind;
use sensor_model::record::{FileIdentity, ThingKind};
use sensor_model::verdict::VerdictKind;
use std::path::Path;

fn revert() -> serde_json::Value {
    json!({ "path": FILE, "action": "revert", "allowedActors": { "users": ["alice"] } })
}

fn of_file(records: Vec<Record>) -> Vec<Record> {
    records.into_iter().filter(|record| record.path.as_deref() == Some(FILE)).collect()
}

#[tokio::test]
async fn a_change_by_an_allowed_actor_stays_allowed_over_reload_and_restart() {
    let node = Node::new(&revert());
    let mut daemon = node.begin(None).await;
    node.write("allowed\n");
    node.changed(&mut daemon, &file(), Some(alice())).await;
    let mut carried = Some(node.end(daemon).await);
    // A reload, then a restart, which has only the log, then another one.
    for carried in [carried.take(), None, None] {
        let daemon = node.begin(carried).await;
        assert_eq!(node.content(), "allowed\n");
        let status = node.status();
        let drifted = status.drifted.iter().find(|drifted| drifted.path == FILE).unwrap();
        assert_eq!(drifted.actor, Some(alice()));
        assert!(!drifted.differences.is_empty());
        node.end(daemon).await;
    }
    assert_eq!(of_file(node.recorded(RecordKind::Drift)).len(), 1, "recorded once");
    assert!(of_file(node.recorded(RecordKind::Recovered)).is_empty());
}

#[tokio::test]
async fn another_actors_change_after_a_restart_is_written_back() {
    let node = Node::new(&revert());
    let mut daemon = node.begin(None).await;
    node.write("allowed\n");
    node.changed(&mut daemon, &file(), Some(alice())).await;
    node.end(daemon).await;
    let mut daemon = node.begin(None).await;
    node.write("forbidden\n");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    assert_eq!(node.content(), DECLARED);
    // The same without a known actor.
    node.end(daemon).await;
    node.write("forbidden\n");
    let daemon = node.begin(None).await;
    assert_eq!(node.content(), DECLARED);
    node.end(daemon).await;
    let recorded = of_file(node.recorded(RecordKind::Drift));
    let actors: Vec<_> = recorded.iter().map(|record| record.actor.as_ref().map(|actor| actor.pid)).collect();
    assert_eq!(actors, [Some(7), Some(8), None]);
}

#[tokio::test]
async fn a_daemon_that_only_observes_degrades_the_node_and_writes_nothing_back() {
    let node = Node::new(&revert());
    node.observes.set(true);
    let mut daemon = node.begin(None).await;
    node.write("forbidden\n");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    assert_eq!(node.content(), "forbidden\n");
    assert!(node.status().degraded);
    node.end(daemon).await;
    assert!(of_file(node.recorded(RecordKind::Reverted)).is_empty());
}

/// A host on which one program may change the file, and that program's path on it.
fn host_with_program() -> (Node, PathBuf) {
    let node = Node::new(
        &json!({ "path": FILE, "action": "revert", "allowedActors": { "exes": ["/usr/bin/writer"] } }),
    );
    let program = node.path("root/usr/bin/writer");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    fs::write(&program, "allowed").unwrap();
    (node, program)
}

/// An actor whose executable has the program's path and the inode of this file.
fn runner(from: &Path) -> Actor {
    let from = fs::metadata(from).unwrap();
    let exe_file = Some(FileIdentity { device: from.dev(), inode: from.ino(), volume: 0, generation: None });
    Actor { pid: 7, exe: Some("/usr/bin/writer".to_owned()), exe_file, ..Actor::default() }
}

#[tokio::test]
async fn a_program_that_is_mounted_over_an_allowed_program_is_not_allowed() {
    let (node, program) = host_with_program();
    let mut daemon = node.begin(None).await;
    let other = node.path("other");
    fs::write(&other, "other").unwrap();
    for forged in [runner(&other), Actor { exe_file: None, ..runner(&program) }] {
        node.write("forbidden\n");
        node.changed(&mut daemon, &file(), Some(forged)).await;
        assert_eq!(node.content(), DECLARED);
    }
    node.write("allowed\n");
    node.changed(&mut daemon, &file(), Some(runner(&program))).await;
    assert_eq!(node.content(), "allowed\n");
    node.end(daemon).await;
}

#[tokio::test]
async fn a_path_that_matches_a_glob_and_leads_elsewhere_is_no_allowed_program() {
    let rule = json!({ "path": FILE, "action": "revert", "allowedActors": { "exes": ["/usr/bin/**"] } });
    let node = Node::new(&rule);
    let (program, other) = (node.path("root/usr/bin/writer"), node.path("root/home/other"));
    for file in [&program, &other] {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "program").unwrap();
    }
    let mut daemon = node.begin(None).await;
    let forged = Actor { exe: Some("/usr/bin/../../home/other".to_owned()), ..runner(&other) };
    node.write("forbidden\n");
    node.changed(&mut daemon, &file(), Some(forged)).await;
    assert_eq!(node.content(), DECLARED);
    node.write("allowed\n");
    node.changed(&mut daemon, &file(), Some(runner(&program))).await;
    assert_eq!(node.content(), "allowed\n");
    node.end(daemon).await;
}

#[tokio::test]
async fn a_program_that_was_replaced_is_no_allowed_one() {
    let (node, program) = host_with_program();
    let mut daemon = node.begin(None).await;
    let before = runner(&program);
    let new = node.path("new");
    fs::write(&new, "new").unwrap();
    fs::rename(&new, &program).unwrap();
    node.write("forbidden\n");
    node.changed(&mut daemon, &file(), Some(before)).await;
    assert_eq!(node.content(), DECLARED);
    // A process of the new program is allowed. It stays allowed over a restart after which the program is replaced again.
    node.write("allowed\n");
    node.changed(&mut daemon, &file(), Some(runner(&program))).await;
    assert_eq!(node.content(), "allowed\n");
    node.end(daemon).await;
    fs::write(&new, "newer").unwrap();
    fs::rename(&new, &program).unwrap();
    let daemon = node.begin(None).await;
    assert_eq!(node.content(), "allowed\n");
    node.end(daemon).await;
}

#[tokio::test]
async fn a_difference_after_a_write_of_holdfast_has_another_actor_and_is_written_back() {
    let node = Node::new(&revert());
    let mut daemon = node.begin(None).await;
    // Holdfast wrote the file back. Another process changed it again before the new inode was enrolled.
    node.write("forbidden\n");
    let ours = Actor { pid: 9, holdfast: true, ..Actor::default() };
    node.changed(&mut daemon, &file(), Some(ours)).await;
    assert_eq!(node.content(), DECLARED);
    node.end(daemon).await;
    let recorded = of_file(node.recorded(RecordKind::Drift));
    assert_eq!(recorded.len(), 1);
    assert_eq!((&recorded[0].actor, recorded[0].operation.as_deref()), (&None, Some("sweep")));
}

#[tokio::test]
async fn everything_is_unknown_while_the_mount_table_cannot_be_read() {
    let node = Node::new(&revert());
    let mut daemon = node.begin(None).await;
    let reason = |daemon: &Daemon| {
        daemon.agent.verdicts.detector.gaps().map(|gap| gap.reason.as_str()).collect::<Vec<_>>()
    };
    let verdict = |daemon: &Daemon| {
        let things = daemon.agent.verdicts.desired.expectations.iter().map(|expectation| &expectation.thing);
        let (thing, _) = (0..).map(ThingId).zip(things).find(|(_, thing)| **thing == file()).unwrap();
        daemon.agent.verdicts.detector.thing_verdict(thing).unwrap().verdict
    };
    assert_eq!(verdict(&daemon), VerdictKind::Compliant);
    daemon.agent.mounts.file = node.path("nothing");
    for _ in 0..2 {
        daemon.agent.compare_mounts(&mut daemon.changes).unwrap();
        node.settle(&mut daemon).await;
        assert_eq!(reason(&daemon), ["mounts-unreadable"]);
        assert_eq!(verdict(&daemon), VerdictKind::Unknown);
        let again = daemon.agent.mounts.due.unwrap();
        assert!(again <= node.clock.boot_ns() + 1_000_000_000, "it is tried again within a second");
    }
    // The daemon still finds drift.
    node.write("allowed\n");
    node.changed(&mut daemon, &file(), Some(alice())).await;
    assert_eq!(verdict(&daemon), VerdictKind::Drifted);
    node.write(DECLARED);
    node.changed(&mut daemon, &file(), Some(alice())).await;

    fs::write(node.path("nothing"), "").unwrap();
    daemon.agent.compare_mounts(&mut daemon.changes).unwrap();
    node.settle(&mut daemon).await;
    assert_eq!(reason(&daemon), [""; 0]);
    assert_eq!(verdict(&daemon), VerdictKind::Compliant);
    node.end(daemon).await;
    let recorded = node.recorded(RecordKind::Gap);
    let recorded: Vec<_> =
        recorded.iter().filter(|record| record.detail["reason"] == "mounts-unreadable").collect();
    assert_eq!(recorded.len(), 2, "its begin and its end: {recorded:?}");
}

/// An actor changes the mounts at the file's directory, and writes the file as it is then. The record arrives before the mount
/// takes effect, and a verification observes the file before the table is due again.
async fn mounted_late(node: &Node, daemon: &mut Daemon, operation: Operation, table: &str, content: &str) {
    daemon.agent.mounts.announced.push(AnnouncedMount {
        key: InodeKey::default(),
        actor: mallory(),
        operation,
        at_ns: node.clock.boot_ns(),
        is_private: false,
    });
    daemon.agent.compare_mounts(&mut daemon.changes).unwrap();
    let due = daemon.agent.mounts.due.as_mut().unwrap();
    assert!(*due > node.clock.boot_ns(), "it is read again later");
    // This is later than any verification of the file.
    *due = u64::MAX;
    fs::write(node.path("table"), table).unwrap();
    node.write(content);
    let things = &daemon.agent.verdicts.desired.expectations;
    let thing = things.iter().position(|expectation| expectation.thing == file()).unwrap();
    let seen = ThingChange { own: false, outside_evidence: true };
    daemon.agent.verdicts.detector.changed(
        ThingId(u32::try_from(thing).unwrap()),
        node.clock.boot_ns(),
        seen,
    );
    daemon.agent.turn(&mut daemon.changes).await.unwrap();
    node.settle(daemon).await;
}

#[tokio::test]
async fn a_mount_and_its_unmount_that_a_verification_finds_before_the_table_is_read_have_the_records_actor() {
    let node = Node::new(&json!({ "path": FILE, "action": "observe" }));
    let declared = fs::read_to_string(node.file()).unwrap();
    let mut daemon = node.begin(None).await;
    daemon.agent.mounts.file = node.path("table");
    fs::write(node.path("table"), "").unwrap();
    daemon.agent.compare_mounts(&mut daemon.changes).unwrap();
    node.settle(&mut daemon).await;
    let point = node.file().parent().unwrap().canonicalize().unwrap();
    let mounted = format!("30 22 0:20 / {} rw - tmpfs tmpfs rw\n", point.display());
    mounted_late(&node, &mut daemon, Operation::MoveMount, &mounted, "mounted over\n").await;
    mounted_late(&node, &mut daemon, Operation::Unmount, "", &declared).await;
    node.end(daemon).await;
    for (kind, operation) in [(RecordKind::Drift, "move-mount"), (RecordKind::Recovered, "unmount")] {
        let recorded = of_file(node.recorded(kind));
        assert_eq!(recorded.len(), 1, "{kind:?}");
        let (actor, named) = (&recorded[0].actor, recorded[0].operation.as_deref());
        assert_eq!((actor, named), (&Some(mallory()), Some(operation)));
    }
}

#[tokio::test]
async fn an_open_drift_by_another_actor_is_not_allowed_when_an_allowed_actor_changes_the_file_later() {
    let rule = json!({ "path": FILE, "action": "degrade", "allowedActors": { "users": ["alice"] } });
    let node = Node::new(&rule);
    let mut daemon = node.begin(None).await;
    node.write("forbidden\n");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    assert!(node.status().degraded);
    node.write("forbidden\nallowed\n");
    node.changed(&mut daemon, &file(), Some(alice())).await;
    assert!(node.status().degraded);
    // After a recovery, the next drift has only its own actor.
    node.write(DECLARED);
    node.changed(&mut daemon, &file(), Some(alice())).await;
    node.write("allowed\n");
    node.changed(&mut daemon, &file(), Some(alice())).await;
    assert!(!node.status().degraded);
    node.end(daemon).await;
    let recorded = of_file(node.recorded(RecordKind::Drift));
    let pids = |record: &Record| record.actors.iter().map(|actor| actor.pid).collect::<Vec<_>>();
    assert_eq!(recorded.iter().map(pids).collect::<Vec<_>>(), [vec![], vec![8, 7], vec![]]);
    let allowed: Vec<_> = recorded.iter().map(|record| record.detail.contains_key("allowed")).collect();
    assert_eq!(allowed, [false, false, true]);
}

#[tokio::test]
async fn a_change_whose_record_was_lost_is_not_allowed() {
    let rule = json!({ "path": FILE, "action": "degrade", "allowedActors": { "users": ["alice"] } });
    let node = Node::new(&rule);
    let mut daemon = node.begin(None).await;
    node.write("allowed\n");
    node.announced(&mut daemon, &file(), Some(alice()), false);
    daemon.agent.verdicts.changes_missed(GapReason::RecursionMissed);
    node.settle(&mut daemon).await;
    assert!(node.status().degraded);
    node.end(daemon).await;
    let recorded = of_file(node.recorded(RecordKind::Drift));
    assert_eq!(recorded[0].actor, Some(alice()));
    assert!(!recorded[0].detail.contains_key("allowed"));
    assert_eq!(recorded[0].detail["more_actors"], 1);
}

#[tokio::test]
async fn a_policy_that_no_longer_allows_a_change_applies_from_the_reload_on() {
    let node = Node::new(&revert());
    let mut daemon = node.begin(None).await;
    node.write("allowed\n");
    node.changed(&mut daemon, &file(), Some(alice())).await;
    let carried = node.end(daemon).await;
    node.decide(&json!({ "path": FILE, "action": "revert" }));
    let daemon = node.begin(Some(carried)).await;
    assert_eq!(node.content(), DECLARED);
    node.end(daemon).await;
}

#[tokio::test]
async fn a_drift_is_allowed_only_if_all_its_actors_are_and_names_one_that_is_not() {
    let allowed = json!({ "path": FILE, "action": "degrade", "allowedActors": { "users": ["alice"] } });
    for (others, expected) in [(vec![mallory()], false), (vec![], true)] {
        let node = Node::new(&allowed);
        let mut daemon = node.begin(None).await;
        node.write("appended\n");
        for actor in others {
            node.announced(&mut daemon, &file(), Some(actor), false);
        }
        node.changed(&mut daemon, &file(), Some(alice())).await;
        node.end(daemon).await;
        let recorded = of_file(node.recorded(RecordKind::Drift));
        assert_eq!(recorded[0].detail.get("allowed").is_some(), expected);
        if expected {
            assert_eq!((recorded[0].actor.clone(), recorded[0].actors.clone()), (Some(alice()), vec![]));
        } else {
            assert_eq!(recorded[0].actor, Some(mallory()));
            assert_eq!(recorded[0].actors, [mallory(), alice()]);
        }
        // After a restart the daemon has only the log.
        let daemon = node.begin(None).await;
        assert_eq!(node.status().degraded, !expected);
        node.end(daemon).await;
    }
}

#[tokio::test]
async fn the_actor_of_an_attempt_that_the_kernel_refuses_is_not_the_actor_of_the_drift() {
    let node = Node::new(&json!({ "path": FILE, "action": "degrade" }));
    let mut daemon = node.begin(None).await;
    node.write("root's\n");
    node.announced(&mut daemon, &file(), Some(alice()), false);
    node.announced(&mut daemon, &file(), Some(mallory()), true);
    node.settle(&mut daemon).await;
    // Without another actor the record names none, and shows the attempt apart.
    node.write("unseen\n");
    node.announced(&mut daemon, &file(), Some(mallory()), true);
    node.settle(&mut daemon).await;
    node.end(daemon).await;
    let recorded = of_file(node.recorded(RecordKind::Drift));
    assert_eq!((recorded[0].actor.clone(), recorded[0].actors.len()), (Some(alice()), 0));
    assert_eq!((&recorded[1].actor, recorded[1].operation.as_deref()), (&None, Some("sweep")));
    assert_eq!(recorded[1].detail["attempt"]["pid"], mallory().pid);
}

#[tokio::test]
async fn the_actor_of_the_found_state_is_named_when_another_state_is_declared() {
    let node = Node::new(&revert());
    let mut daemon = node.begin(None).await;
    node.write("allowed\n");
    node.changed(&mut daemon, &file(), Some(alice())).await;
    let carried = node.end(daemon).await;
    node.declare("another\n");
    let daemon = node.begin(Some(carried)).await;
    assert_eq!(node.content(), "allowed\n");
    node.end(daemon).await;
    let recorded = of_file(node.recorded(RecordKind::Drift));
    assert_eq!(recorded[1].actor, Some(alice()));
    assert_eq!(recorded[1].operation.as_deref(), Some("config"));
}

#[tokio::test]
async fn a_drift_of_an_unwatched_file_ends_when_a_verification_after_a_restart_finds_none() {
    let node = Node::new(&json!({ "path": FILE, "action": "degrade" }));
    node.unwatched.set(true);
    let mut daemon = node.begin(None).await;
    node.write("drifted\n");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    node.end(daemon).await;
    let daemon = node.begin(None).await;
    assert!(node.status().degraded);
    node.end(daemon).await;
    node.write(DECLARED);
    let daemon = node.begin(None).await;
    let status = node.status();
    assert!(!status.degraded && !status.drifted.iter().any(|drifted| drifted.path == FILE));
    assert!(
        status.gaps.iter().any(|gap| gap.reason == GapReason::FanotifyUnwatched.as_str()),
        "{:?}",
        status.gaps
    );
    node.end(daemon).await;
    assert_eq!(of_file(node.recorded(RecordKind::Recovered)).len(), 1);
}

#[tokio::test]
async fn a_drifted_unit_is_not_mistaken_for_its_file_after_a_restart() {
    let node = Node::new(&json!({ "path": FILE, "action": "observe" }));
    // The unit's file exists, and the link that enables it does not.
    let unit = node.path("root/etc/systemd/system/a.service");
    fs::write(&unit, "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n").unwrap();
    fs::set_permissions(&unit, fs::Permissions::from_mode(0o644)).unwrap();
    for _ in 0..3 {
        let daemon = node.begin(None).await;
        node.end(daemon).await;
    }
    let mut kinds: Vec<_> = node
        .recorded(RecordKind::Drift)
        .into_iter()
        .flat_map(|record| {
            record.differences.into_iter().map(move |difference| (record.thing, difference.kind))
        })
        .filter(|(_, kind)| *kind != DifferenceKind::Owner)
        .collect();
    kinds.dedup();
    assert_eq!(kinds, [(Some(ThingKind::Unit), DifferenceKind::UnitEnablement)]);
    assert_eq!(node.recorded(RecordKind::Recovered), []);
}

#[tokio::test]
async fn the_end_of_an_apply_is_no_recovery_of_a_thing_that_it_does_not_write() {
    let node = Node::new(&json!({ "path": FILE, "action": "observe" }));
    let mut daemon = node.begin(None).await;
    node.write("drifted\n");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    // Another config is current, which the loop has not noticed yet.
    fs::create_dir_all(node.path("state/apply/generations/1/config")).unwrap();
    fs::copy(node.path("config/a.ign"), node.path("state/apply/generations/1/config/a.ign")).unwrap();
    std::os::unix::fs::symlink("generations/1", node.path("state/apply/current")).unwrap();
    node.changed(&mut daemon, &file(), None).await;
    assert!(matches!(daemon.agent.run_end, Some(RunEnd::ApplyEnded)));
    let carried = node.end(daemon).await;
    let daemon = node.begin(Some(carried)).await;
    assert_eq!(node.status().drifted.iter().filter(|drifted| drifted.path == FILE).count(), 1);
    node.end(daemon).await;
    assert_eq!(node.recorded(RecordKind::Recovered), []);
}

#[tokio::test]
async fn a_revert_that_failed_is_tried_again_while_the_thing_is_drifted() {
    let node = Node::new(&revert());
    let mut daemon = node.begin(None).await;
    // Holdfast does not remove a directory with content.
    fs::remove_file(node.file()).unwrap();
    fs::create_dir(node.file()).unwrap();
    fs::write(node.file().join("kept"), "").unwrap();
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    assert!(node.file().is_dir());
    fs::remove_file(node.file().join("kept")).unwrap();
    fs::remove_dir(node.file()).unwrap();
    // No record reports this.
    for _ in 0..10 {
        node.settle(&mut daemon).await;
    }
    assert_eq!(node.content(), DECLARED);
    node.end(daemon).await;
    let reverted = node.recorded(RecordKind::Reverted);
    assert!(reverted[0].detail.contains_key("error") && !reverted[0].detail.contains_key("actions"));
    assert!(reverted.last().unwrap().detail.contains_key("actions"));
    assert_eq!(of_file(node.recorded(RecordKind::Recovered)).len(), 1);
}

#[tokio::test]
async fn between_a_change_and_its_verification_a_compliant_thing_is_unknown() {
    let node = Node::new(&revert());
    let mut daemon = node.begin(None).await;
    let expectations = &daemon.agent.verdicts.desired.expectations;
    let thing = expectations.iter().position(|expectation| expectation.thing == file()).unwrap();
    let thing = ThingId(u32::try_from(thing).unwrap());
    assert_eq!(daemon.agent.verdicts.verdict_now(thing), Some(VerdictKind::Compliant));
    let changed = ThingChange { own: false, outside_evidence: false };
    daemon.agent.verdicts.detector.changed(thing, node.clock.boot_ns(), changed);
    assert_eq!(daemon.agent.verdicts.verdict_now(thing), Some(VerdictKind::Unknown));
    node.settle(&mut daemon).await;
    assert_eq!(daemon.agent.verdicts.verdict_now(thing), Some(VerdictKind::Compliant));
    node.end(daemon).await;
}
