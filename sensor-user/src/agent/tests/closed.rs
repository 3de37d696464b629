//! Directories that a drift policy closes.

use super::*;
use crate::agent::holdfast_writers::WriterUpdate;
use crate::quarantine::{Manifest, Quarantine};
use std::path::Path;

const DIRECTORY: &str = "/etc/closed";

fn node(action: &str) -> Node {
    let node = Node::new(&json!({ "path": "/etc/closed/", "closed": true, "action": action }));
    fs::create_dir(node.path("root/etc/closed")).unwrap();
    node
}

fn closed() -> Thing {
    Thing::closed_directory(DIRECTORY)
}

fn items(node: &Node) -> Vec<Manifest> {
    let quarantine = Quarantine::open_existing(&node.path("state")).unwrap();
    quarantine.map(|quarantine| quarantine.items().unwrap().0).unwrap_or_default()
}

/// What the records of drift of the directory found.
fn found(node: &Node) -> Vec<Vec<String>> {
    let drifts = node.recorded(RecordKind::Drift).into_iter();
    let drifts = drifts.filter(|record| record.path.as_deref() == Some(DIRECTORY));
    drifts.map(|record| record.differences.into_iter().map(|difference| difference.found).collect()).collect()
}

#[tokio::test]
async fn a_revert_moves_an_undeclared_object_and_the_record_says_to_where_and_who_made_it() {
    let node = node("revert");
    let mut daemon = node.begin(None).await;
    fs::write(node.path("root/etc/closed/x"), "content").unwrap();
    fs::write(node.path("root/etc/closed/y"), "content").unwrap();
    node.changed(&mut daemon, &closed(), Some(mallory())).await;
    assert_eq!(fs::read_dir(node.path("root/etc/closed")).unwrap().count(), 0);
    let items = items(&node);
    assert_eq!(items.len(), 2);
    assert_eq!(items[0].path, "/etc/closed/x");
    assert_eq!((items[0].actors[0].pid, items[0].rule.as_str()), (8, "/etc/closed/"));
    node.end(daemon).await;
    let reverted = node.recorded(RecordKind::Reverted);
    assert_eq!(reverted.len(), 1);
    let detail = &reverted[0].detail;
    assert_eq!(
        detail["quarantined"],
        json!([
            { "path": "/etc/closed/x", "item": items[0].id },
            { "path": "/etc/closed/y", "item": items[1].id },
        ])
    );
    assert_eq!(detail["made_by"][0]["pid"], 8);
    assert!(!detail.contains_key("error"), "{detail:?}");
    assert_eq!(found(&node), [["/etc/closed/x", "/etc/closed/y"]]);
}

#[tokio::test]
async fn what_is_written_again_and_again_is_moved_a_few_times_a_minute_and_is_drift_in_between() {
    let node = node("revert");
    let mut daemon = node.begin(None).await;
    for number in 0..40 {
        fs::write(node.path("root/etc/closed/x"), number.to_string()).unwrap();
        node.changed(&mut daemon, &closed(), Some(mallory())).await;
    }
    assert_eq!(items(&node).len(), 3);
    let drifted = node.status().drifted;
    assert!(drifted.iter().any(|drifted| drifted.path == DIRECTORY), "{drifted:?}");
    node.end(daemon).await;
}

#[tokio::test]
async fn nothing_is_moved_by_a_daemon_that_observes_or_without_the_lists_of_packages_and_image() {
    // The format of RHEL 8, and an ostree host without an index.
    let packages = ("root/var/lib/rpm/Packages", "a database of packages could not be read");
    let image = ("root/run/ostree-booted", "the booted image has no index");
    for unread in [None, Some(packages), Some(image)] {
        let node = node("revert");
        node.observes.set(unread.is_none());
        if let Some((path, _)) = unread {
            let path = node.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let mut daemon = node.begin(None).await;
        fs::write(node.path("root/etc/closed/x"), "").unwrap();
        node.changed(&mut daemon, &closed(), Some(mallory())).await;
        assert!(node.path("root/etc/closed/x").exists());
        assert_eq!(items(&node), []);
        assert!(node.status().degraded);
        node.end(daemon).await;
        let reverted = node.recorded(RecordKind::Reverted);
        let errors: Vec<_> = reverted.iter().map(|record| record.detail["error"].to_string()).collect();
        assert_eq!(errors.is_empty(), unread.is_none());
        let reason = unread.unwrap_or_default().1;
        assert!(errors.iter().all(|error| error.contains(reason)), "{errors:?}");
    }
}

#[tokio::test]
async fn half_of_a_path_moves_nothing_and_says_why() {
    let node = Node::new(&json!({ "path": "/etc/", "closed": true, "action": "revert" }));
    let mut daemon = node.begin(None).await;
    fs::write(node.path("root/etc/x"), "").unwrap();
    node.changed(&mut daemon, &Thing::closed_directory("/etc"), Some(mallory())).await;
    assert!(node.path("root/etc/x").exists());
    assert_eq!(items(&node), []);
    assert!(node.status().degraded);
    node.end(daemon).await;
    let reverted = node.recorded(RecordKind::Reverted);
    assert!(
        reverted[0].detail["error"].to_string().contains("a directory such as /etc/cron.d/"),
        "{reverted:?}"
    );
}

#[tokio::test]
async fn nothing_is_moved_in_the_last_turns_of_a_run_because_the_next_config_may_declare_it() {
    let node = node("revert");
    let mut daemon = node.begin(None).await;
    daemon.agent.run_end = Some(RunEnd::StopRequested);
    fs::write(node.path("root/etc/closed/x"), "").unwrap();
    node.changed(&mut daemon, &closed(), Some(mallory())).await;
    assert!(node.path("root/etc/closed/x").exists());
    daemon.agent.run_end = None;
    node.settle(&mut daemon).await;
    assert!(!node.path("root/etc/closed/x").exists());
    node.end(daemon).await;
}

#[tokio::test]
async fn temporary_names_of_another_holdfast_are_no_drift_while_it_writes() {
    let node = node("degrade");
    let mut daemon = node.begin(None).await;
    let _writer = daemon.agent.holdfast_writers.connect(4_242);
    fs::write(node.path("root/etc/closed/.holdfast-4242-1.new"), "").unwrap();
    node.changed(&mut daemon, &closed(), None).await;
    assert_eq!(found(&node), [[""; 0]; 0]);
    // Those of another process are, and other names too.
    fs::write(node.path("root/etc/closed/.holdfast-4243-1.new"), "").unwrap();
    node.changed(&mut daemon, &closed(), Some(mallory())).await;
    daemon.agent.holdfast_writers.disconnect_all();
    daemon.agent.handle_writer_update(WriterUpdate::Gone, &mut daemon.changes).unwrap();
    node.settle(&mut daemon).await;
    node.end(daemon).await;
    let [own, other] = [4_242, 4_243].map(|pid| format!("/etc/closed/.holdfast-{pid}-1.new"));
    assert_eq!(found(&node), [vec![other.clone()], vec![own, other]]);
}

#[tokio::test]
async fn a_directory_that_begins_to_match_a_glob_is_closed_without_a_reload() {
    let node = Node::new(&json!({ "path": "/etc/glob.*", "closed": true, "action": "observe" }));
    let mut daemon = node.begin(None).await;
    let registry = &daemon.agent.verifications.verifier.registry;
    let watched = registry.find(Path::new("/etc")).unwrap();
    assert!(registry.is_searched(&[watched]));
    daemon.agent.evaluation.name_changed(daemon.agent.verdicts.now(), daemon.agent.options.canary_every);
    fs::create_dir(node.path("root/etc/glob.d")).unwrap();
    daemon.agent.evaluate_when_due();
    assert!(daemon.agent.run_end.is_none(), "the kernel reports a name before it exists");
    node.clock.0.fetch_add(60_000_000_000, Ordering::Relaxed);
    daemon.agent.evaluate_when_due();
    let Some(RunEnd::Reloaded(desired)) = daemon.agent.run_end.take() else { panic!("no reload") };
    let new = Thing::closed_directory("/etc/glob.d");
    assert!(desired.expectations.iter().any(|expectation| expectation.thing == new));
    node.end(daemon).await;
}

/// What the daemon finds in a directory of an image-based host without an index: the open drifts, and the gaps of the directory.
fn uncertain(node: &Node) -> (Vec<String>, Vec<String>) {
    let status = node.status();
    let is_it = |path: &str| path == DIRECTORY;
    let drifted = status.drifted.iter().filter(|one| is_it(&one.path));
    let gaps = status.gaps.iter().map(|gap| gap.reason.as_str().to_owned());
    (drifted.map(|one| one.path.clone()).collect(), gaps.collect())
}

#[tokio::test]
async fn without_an_index_a_name_that_the_image_may_have_is_unknown_and_one_that_a_process_made_is_drift() {
    let node = node("observe");
    fs::create_dir_all(node.path("root/run")).unwrap();
    fs::write(node.path("root/run/ostree-booted"), "").unwrap();
    fs::write(node.path("root/etc/closed/x"), "").unwrap();
    let mut daemon = node.begin(None).await;
    assert_eq!(uncertain(&node), (vec![], vec!["image-not-indexed".to_owned()]));
    fs::write(node.path("root/etc/closed/y"), "").unwrap();
    node.changed(&mut daemon, &closed(), Some(mallory())).await;
    assert_eq!(uncertain(&node), (vec![DIRECTORY.to_owned()], vec![]));
    node.end(daemon).await;
    // Another run knows from the first one that the name is not the image's.
    let daemon = node.begin(None).await;
    assert_eq!(uncertain(&node), (vec![DIRECTORY.to_owned()], vec![]));
    node.end(daemon).await;
    assert_eq!(node.recorded(RecordKind::Recovered).len(), 0);
}

#[tokio::test]
async fn what_the_deployment_ships_in_its_copy_of_etc_is_declared_without_an_index_and_nothing_else_is() {
    for pristine in ["usr/etc", "usr/share/flatcar/etc"] {
        let node = node("observe");
        let shipped = format!("root/{pristine}/closed/x");
        for path in ["root/run/ostree-booted", &shipped, "root/etc/closed/x"] {
            let path = node.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let daemon = node.begin(None).await;
        assert_eq!(uncertain(&node), (vec![], vec![]));
        node.end(daemon).await;
        fs::write(node.path("root/etc/closed/y"), "").unwrap();
        let daemon = node.begin(None).await;
        assert_eq!(uncertain(&node), (vec![DIRECTORY.to_owned()], vec![]));
        node.end(daemon).await;
        assert_eq!(found(&node), [["/etc/closed/y"]]);
    }
}

#[tokio::test]
async fn a_name_that_a_verification_finds_before_its_record_is_read_is_drift_at_once_with_its_actor() {
    let node = node("observe");
    fs::create_dir_all(node.path("root/run")).unwrap();
    fs::write(node.path("root/run/ostree-booted"), "").unwrap();
    let mut daemon = node.begin(None).await;
    fs::write(node.path("root/etc/closed/x"), "").unwrap();
    let thing = daemon.thing(&closed());
    let at_ns = node.clock.boot_ns();
    let change = AttributedChange { actor: Some(mallory()), operation: Operation::Write.name(), at_ns };
    daemon.changes = Changes::Test(vec![(thing, change)]);
    daemon.agent.verdicts.detector.changed(thing, at_ns, ThingChange { own: false, outside_evidence: true });
    node.settle(&mut daemon).await;
    assert_eq!(uncertain(&node), (vec![DIRECTORY.to_owned()], vec![]));
    node.end(daemon).await;
    let drifts = node.recorded(RecordKind::Drift);
    let drift = drifts.iter().find(|record| record.path.as_deref() == Some(DIRECTORY)).unwrap();
    assert_eq!(drift.actor.as_ref().map(|actor| actor.pid), Some(8));
    assert_eq!(node.recorded(RecordKind::Gap).len(), 0, "it was unknown first");
}
