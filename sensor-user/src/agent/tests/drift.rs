//! What an open drift is, by thing, over reload, apply and restart; and what is written back.

use super::super::mounts::Announced;
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
async fn what_an_allowed_actor_changed_stays_over_reload_and_restart_and_so_does_the_actor() {
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
    assert_eq!(of_file(node.told(RecordKind::Drift)).len(), 1, "told once");
    assert!(of_file(node.told(RecordKind::Recovered)).is_empty());
}

#[tokio::test]
async fn what_somebody_else_changes_after_a_restart_is_written_back() {
    let node = Node::new(&revert());
    let mut daemon = node.begin(None).await;
    node.write("allowed\n");
    node.changed(&mut daemon, &file(), Some(alice())).await;
    node.end(daemon).await;
    let mut daemon = node.begin(None).await;
    node.write("forbidden\n");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    assert_eq!(node.content(), DECLARED);
    // Also where nobody was told to have changed it.
    node.end(daemon).await;
    node.write("forbidden\n");
    let daemon = node.begin(None).await;
    assert_eq!(node.content(), DECLARED);
    node.end(daemon).await;
    let told = of_file(node.told(RecordKind::Drift));
    let actors: Vec<_> = told.iter().map(|record| record.actor.as_ref().map(|actor| actor.pid)).collect();
    assert_eq!(actors, [Some(7), Some(8), None]);
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

/// Somebody who says that it ran the program, from this file.
fn runner(from: &Path) -> Actor {
    let from = fs::metadata(from).unwrap();
    let exe_file = Some(FileIdentity { device: from.dev(), inode: from.ino(), volume: 0, generation: None });
    Actor { pid: 7, exe: Some("/usr/bin/writer".to_owned()), exe_file, ..Actor::default() }
}

#[tokio::test]
async fn a_program_that_was_mounted_over_an_allowed_one_is_written_back_and_the_allowed_one_is_not() {
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
async fn a_path_that_fits_a_glob_and_leads_elsewhere_is_no_allowed_program() {
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
    // What runs from the new one is, and stays allowed over a restart when the program is replaced again.
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
async fn what_is_found_after_our_own_write_is_somebody_elses_and_is_written_back() {
    let node = Node::new(&revert());
    let mut daemon = node.begin(None).await;
    // Written back, and changed again before the new inode was watched.
    node.write("forbidden\n");
    let ours = Actor { pid: 9, holdfast: true, ..Actor::default() };
    node.changed(&mut daemon, &file(), Some(ours)).await;
    assert_eq!(node.content(), DECLARED);
    node.end(daemon).await;
    let told = of_file(node.told(RecordKind::Drift));
    assert_eq!(told.len(), 1);
    assert_eq!((&told[0].actor, told[0].operation.as_deref()), (&None, Some("sweep")));
}

#[tokio::test]
async fn nothing_is_vouched_for_while_the_mount_table_cannot_be_read_and_everything_is_again_when_it_can() {
    let node = Node::new(&revert());
    let mut daemon = node.begin(None).await;
    let reason = |daemon: &Daemon| {
        daemon.agent.verdicts.detector.gaps().map(|gap| gap.reason.clone()).collect::<Vec<_>>()
    };
    let verdict = |daemon: &Daemon| {
        let things = daemon.agent.verdicts.desired.expectations.iter().map(|expectation| &expectation.thing);
        let (id, _) = (0..).zip(things).find(|(_, thing)| **thing == file()).unwrap();
        daemon.agent.verdicts.detector.thing_verdict(id).unwrap().verdict
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
    // Drift is found meanwhile.
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
    let told = node.told(RecordKind::Gap);
    let told: Vec<_> = told.iter().filter(|record| record.detail["reason"] == "mounts-unreadable").collect();
    assert_eq!(told.len(), 2, "its begin and its end: {told:?}");
}

#[tokio::test]
async fn a_mount_that_a_look_sees_before_the_table_is_read_again_is_its_makers() {
    let node = Node::new(&json!({ "path": FILE, "action": "observe" }));
    let mut daemon = node.begin(None).await;
    daemon.agent.mounts.file = node.path("table");
    fs::write(node.path("table"), "").unwrap();
    daemon.agent.compare_mounts(&mut daemon.changes).unwrap();
    node.settle(&mut daemon).await;
    // The record comes before the mount is there.
    daemon.agent.mounts.announced.push(Announced {
        key: InodeKey::default(),
        actor: mallory(),
        operation: Operation::MoveMount,
        at_ns: node.clock.boot_ns(),
    });
    daemon.agent.compare_mounts(&mut daemon.changes).unwrap();
    let due = daemon.agent.mounts.due.as_mut().unwrap();
    assert!(*due > node.clock.boot_ns(), "it is read again later");
    // Later than any look at what is mounted there.
    *due = u64::MAX;

    let point = node.file().parent().unwrap().canonicalize().unwrap();
    fs::write(node.path("table"), format!("30 22 0:20 / {} rw - tmpfs tmpfs rw\n", point.display())).unwrap();
    node.write("mounted over\n");
    let things = &daemon.agent.verdicts.desired.expectations;
    let id = things.iter().position(|expectation| expectation.thing == file()).unwrap();
    let seen = Event { own: false, beyond: true };
    daemon.agent.verdicts.detector.event(u32::try_from(id).unwrap(), node.clock.boot_ns(), seen);
    daemon.agent.turn(&mut daemon.changes).await.unwrap();
    node.settle(&mut daemon).await;
    node.end(daemon).await;
    let told = of_file(node.told(RecordKind::Drift));
    assert_eq!(told.len(), 1);
    assert_eq!((&told[0].actor, told[0].operation.as_deref()), (&Some(mallory()), Some("move-mount")));
}

#[tokio::test]
async fn whoever_made_a_drift_that_is_open_is_not_covered_by_an_allowed_actor_who_comes_later() {
    let rule = json!({ "path": FILE, "action": "degrade", "allowedActors": { "users": ["alice"] } });
    let node = Node::new(&rule);
    let mut daemon = node.begin(None).await;
    node.write("forbidden\n");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    assert!(node.status().degraded);
    node.write("forbidden\nallowed\n");
    node.changed(&mut daemon, &file(), Some(alice())).await;
    assert!(node.status().degraded);
    // Once it is as declared again, the next drift is its maker's alone.
    node.write(DECLARED);
    node.changed(&mut daemon, &file(), Some(alice())).await;
    node.write("allowed\n");
    node.changed(&mut daemon, &file(), Some(alice())).await;
    assert!(!node.status().degraded);
    node.end(daemon).await;
    let told = of_file(node.told(RecordKind::Drift));
    let pids = |record: &Record| record.actors.iter().map(|actor| actor.pid).collect::<Vec<_>>();
    assert_eq!(told.iter().map(pids).collect::<Vec<_>>(), [vec![], vec![8, 7], vec![]]);
    let allowed: Vec<_> = told.iter().map(|record| record.detail.contains_key("allowed")).collect();
    assert_eq!(allowed, [false, false, true]);
}

#[tokio::test]
async fn a_change_whose_record_was_lost_may_be_anybodys_and_is_not_allowed() {
    let rule = json!({ "path": FILE, "action": "degrade", "allowedActors": { "users": ["alice"] } });
    let node = Node::new(&rule);
    let mut daemon = node.begin(None).await;
    node.write("allowed\n");
    node.announced(&mut daemon, &file(), Some(alice()), false);
    daemon.agent.verdicts.missed("recursion-missed");
    node.settle(&mut daemon).await;
    assert!(node.status().degraded);
    node.end(daemon).await;
    let told = of_file(node.told(RecordKind::Drift));
    assert_eq!(told[0].actor, Some(alice()));
    assert!(!told[0].detail.contains_key("allowed"));
    assert_eq!(told[0].detail["more_actors"], 1);
}

#[tokio::test]
async fn a_policy_that_no_longer_allows_it_counts_from_the_reload_on() {
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
async fn a_drift_is_allowed_only_where_all_who_changed_the_file_are_and_names_who_is_not() {
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
        let told = of_file(node.told(RecordKind::Drift));
        assert_eq!(told[0].detail.get("allowed").is_some(), expected);
        if expected {
            assert_eq!((told[0].actor.clone(), told[0].actors.clone()), (Some(alice()), vec![]));
        } else {
            assert_eq!(told[0].actor, Some(mallory()));
            assert_eq!(told[0].actors, [mallory(), alice()]);
        }
        // A restart knows no more than the log.
        let daemon = node.begin(None).await;
        assert_eq!(node.status().degraded, !expected);
        node.end(daemon).await;
    }
}

#[tokio::test]
async fn an_attempt_that_the_kernel_refuses_takes_no_blame() {
    let node = Node::new(&json!({ "path": FILE, "action": "degrade" }));
    let mut daemon = node.begin(None).await;
    node.write("root's\n");
    node.announced(&mut daemon, &file(), Some(alice()), false);
    node.announced(&mut daemon, &file(), Some(mallory()), true);
    node.settle(&mut daemon).await;
    // Where nobody else is known, nobody is named, and what was tried is told as that.
    node.write("unseen\n");
    node.announced(&mut daemon, &file(), Some(mallory()), true);
    node.settle(&mut daemon).await;
    node.end(daemon).await;
    let told = of_file(node.told(RecordKind::Drift));
    assert_eq!((told[0].actor.clone(), told[0].actors.len()), (Some(alice()), 0));
    assert_eq!((&told[1].actor, told[1].operation.as_deref()), (&None, Some("sweep")));
    assert_eq!(told[1].detail["attempt"]["pid"], mallory().pid);
}

#[tokio::test]
async fn whoever_made_what_is_found_is_named_when_something_else_is_declared() {
    let node = Node::new(&revert());
    let mut daemon = node.begin(None).await;
    node.write("allowed\n");
    node.changed(&mut daemon, &file(), Some(alice())).await;
    let carried = node.end(daemon).await;
    node.declare("another\n");
    let daemon = node.begin(Some(carried)).await;
    assert_eq!(node.content(), "allowed\n");
    node.end(daemon).await;
    let told = of_file(node.told(RecordKind::Drift));
    assert_eq!(told[1].actor, Some(alice()));
    assert_eq!(told[1].operation.as_deref(), Some("config"));
}

#[tokio::test]
async fn a_drift_that_nobody_vouches_for_is_over_once_it_was_seen_to_be_after_a_restart() {
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
    assert!(status.gaps.iter().any(|gap| gap.reason == reasons::UNWATCHED), "{:?}", status.gaps);
    node.end(daemon).await;
    assert_eq!(of_file(node.told(RecordKind::Recovered)).len(), 1);
}

#[tokio::test]
async fn a_unit_that_had_drifted_is_not_taken_for_its_file_after_a_restart() {
    let node = Node::new(&json!({ "path": FILE, "action": "observe" }));
    // Its file is there, the link that enables it is not.
    let unit = node.path("root/etc/systemd/system/a.service");
    fs::write(&unit, "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n").unwrap();
    fs::set_permissions(&unit, fs::Permissions::from_mode(0o644)).unwrap();
    for _ in 0..3 {
        let daemon = node.begin(None).await;
        node.end(daemon).await;
    }
    let mut kinds: Vec<_> = node
        .told(RecordKind::Drift)
        .into_iter()
        .flat_map(|record| {
            record.differences.into_iter().map(move |difference| (record.thing, difference.kind))
        })
        .filter(|(_, kind)| *kind != DifferenceKind::Owner)
        .collect();
    kinds.dedup();
    assert_eq!(kinds, [(Some(ThingKind::Unit), DifferenceKind::UnitEnablement)]);
    assert_eq!(node.told(RecordKind::Recovered), []);
}

#[tokio::test]
async fn the_end_of_an_apply_is_no_recovery_of_what_it_has_nothing_to_do_with() {
    let node = Node::new(&json!({ "path": FILE, "action": "observe" }));
    let mut daemon = node.begin(None).await;
    node.write("drifted\n");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    // Another config is current, which the loop has not noticed yet.
    fs::create_dir_all(node.path("state/apply/generations/1/config")).unwrap();
    fs::copy(node.path("config/a.ign"), node.path("state/apply/generations/1/config/a.ign")).unwrap();
    std::os::unix::fs::symlink("generations/1", node.path("state/apply/current")).unwrap();
    node.changed(&mut daemon, &file(), None).await;
    assert!(matches!(daemon.agent.ended, Some(Ended::Applied)));
    let carried = node.end(daemon).await;
    let daemon = node.begin(Some(carried)).await;
    assert_eq!(node.status().drifted.iter().filter(|drifted| drifted.path == FILE).count(), 1);
    node.end(daemon).await;
    assert_eq!(node.told(RecordKind::Recovered), []);
}

#[tokio::test]
async fn a_revert_that_failed_is_tried_again_while_the_thing_is_drifted() {
    let node = Node::new(&revert());
    let mut daemon = node.begin(None).await;
    // A directory with something in it is not thrown away.
    fs::remove_file(node.file()).unwrap();
    fs::create_dir(node.file()).unwrap();
    fs::write(node.file().join("kept"), "").unwrap();
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    assert!(node.file().is_dir());
    fs::remove_file(node.file().join("kept")).unwrap();
    fs::remove_dir(node.file()).unwrap();
    // Nobody tells of that.
    for _ in 0..10 {
        node.settle(&mut daemon).await;
    }
    assert_eq!(node.content(), DECLARED);
    node.end(daemon).await;
    let reverted = node.told(RecordKind::Reverted);
    assert!(reverted[0].detail.contains_key("error") && !reverted[0].detail.contains_key("actions"));
    assert!(reverted.last().unwrap().detail.contains_key("actions"));
    assert_eq!(of_file(node.told(RecordKind::Recovered)).len(), 1);
}

#[tokio::test]
async fn between_a_change_and_the_look_at_it_nobody_says_that_a_thing_is_as_declared() {
    let node = Node::new(&revert());
    let mut daemon = node.begin(None).await;
    let expectations = &daemon.agent.verdicts.desired.expectations;
    let id = expectations.iter().position(|expectation| expectation.thing == file()).unwrap();
    let id = u32::try_from(id).unwrap();
    assert_eq!(daemon.agent.verdicts.verdict_now(id), Some(VerdictKind::Compliant));
    let changed = Event { own: false, beyond: false };
    daemon.agent.verdicts.detector.event(id, node.clock.boot_ns(), changed);
    assert_eq!(daemon.agent.verdicts.verdict_now(id), Some(VerdictKind::Unknown));
    node.settle(&mut daemon).await;
    assert_eq!(daemon.agent.verdicts.verdict_now(id), Some(VerdictKind::Compliant));
    node.end(daemon).await;
}
