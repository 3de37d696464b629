//! Paths where a drift policy expects nothing.

use super::unknown_executions::with_baseline;
use super::*;
use crate::image::{Images, index_baseline, take_baseline};
use crate::quarantine::{Manifest, Quarantine};
use sensor_model::expectation::Expected;
use std::path::Path;

const PATH: &str = "/etc/ld.so.preload";

fn node_with(path: &str, action: &str) -> Node {
    Node::new(&json!({ "path": path, "absent": true, "action": action }))
}

fn node(action: &str) -> Node {
    node_with(PATH, action)
}

fn absent() -> Thing {
    Thing::file(PATH)
}

/// The path on the disk.
fn place(node: &Node, path: &str) -> PathBuf {
    node.path("root").join(path.trim_start_matches('/'))
}

fn items(node: &Node) -> Vec<Manifest> {
    let quarantine = Quarantine::open_existing(&node.path("state")).unwrap();
    quarantine.map(|quarantine| quarantine.items().unwrap().0).unwrap_or_default()
}

fn is_drifted(node: &Node, path: &str) -> bool {
    node.status().drifted.iter().any(|drifted| drifted.path == path)
}

/// The records of a kind about a path.
fn recorded(node: &Node, kind: RecordKind, path: &str) -> Vec<Record> {
    let mut records = node.recorded(kind);
    records.retain(|record| record.path.as_deref() == Some(path));
    records
}

#[tokio::test]
async fn a_file_made_where_nothing_may_be_is_drift_with_its_actor_and_the_rule_until_it_is_removed() {
    let node = node("degrade");
    let mut daemon = node.begin(None).await;
    assert!(!is_drifted(&node, PATH));
    fs::write(place(&node, PATH), "/tmp/evil.so").unwrap();
    node.changed(&mut daemon, &absent(), Some(mallory())).await;
    let status = node.status();
    assert!(is_drifted(&node, PATH) && status.degraded, "{status:?}");
    let page = node.metrics.page().unwrap();
    assert!(
        page.contains("holdfast_source_drifted_things{source=\"policy\",name=\"/etc/ld.so.preload\"} 1"),
        "{page}"
    );
    fs::remove_file(place(&node, PATH)).unwrap();
    node.changed(&mut daemon, &absent(), Some(alice())).await;
    assert!(!is_drifted(&node, PATH) && !node.status().degraded);
    node.end(daemon).await;
    let [drift] = &recorded(&node, RecordKind::Drift, PATH)[..] else { panic!("not one drift") };
    assert_eq!(drift.actor.as_ref().map(|actor| actor.pid), Some(8));
    assert_eq!(drift.differences[0].kind.as_str(), "unexpected");
    assert_eq!(drift.differences[0].text, format!("unexpected regular file \"{PATH}\""));
    assert_eq!((drift.source.as_deref(), &drift.detail["source_kind"]), (Some(PATH), &json!("policy")));
    assert_eq!(recorded(&node, RecordKind::Recovered, PATH).len(), 1);
}

#[tokio::test]
async fn an_object_that_was_there_before_the_daemon_is_drift_too_whatever_its_type() {
    type Make = fn(&Path);
    let makes: [(&str, Make); 4] = [
        ("regular file", |path| fs::write(path, "").unwrap()),
        ("directory", |path| fs::create_dir(path).unwrap()),
        ("symbolic link", |path| std::os::unix::fs::symlink("/dev/null", path).unwrap()),
        ("named pipe", |path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap()),
    ];
    for (kind, make) in makes {
        let node = node("observe");
        make(&place(&node, PATH));
        let daemon = node.begin(None).await;
        assert!(is_drifted(&node, PATH) && !node.status().degraded, "{kind}");
        node.end(daemon).await;
        let texts: Vec<String> = recorded(&node, RecordKind::Drift, PATH)
            .into_iter()
            .flat_map(|record| record.differences)
            .map(|difference| difference.text)
            .collect();
        assert_eq!(texts, [format!("unexpected {kind} \"{PATH}\"")]);
    }
}

#[tokio::test]
async fn a_rename_onto_the_path_is_drift_and_a_rename_away_ends_it() {
    let node = node("observe");
    let mut daemon = node.begin(None).await;
    let other = place(&node, "/etc/other");
    fs::write(&other, "x").unwrap();
    fs::rename(&other, place(&node, PATH)).unwrap();
    node.changed(&mut daemon, &absent(), Some(mallory())).await;
    assert!(is_drifted(&node, PATH));
    fs::rename(place(&node, PATH), &other).unwrap();
    node.changed(&mut daemon, &absent(), Some(mallory())).await;
    assert!(!is_drifted(&node, PATH));
    node.end(daemon).await;
}

#[tokio::test]
async fn another_content_of_the_unexpected_file_is_a_record_of_its_own_with_its_own_actor() {
    let node = node("observe");
    let mut daemon = node.begin(None).await;
    fs::write(place(&node, PATH), "").unwrap();
    node.changed(&mut daemon, &absent(), Some(alice())).await;
    fs::write(place(&node, PATH), "/tmp/evil.so").unwrap();
    node.changed(&mut daemon, &absent(), Some(mallory())).await;
    node.end(daemon).await;
    let drifts = recorded(&node, RecordKind::Drift, PATH);
    let actors: Vec<u32> = drifts.iter().filter_map(|record| Some(record.actor.as_ref()?.pid)).collect();
    assert_eq!(actors, [7, 8]);
}

#[tokio::test]
async fn a_path_below_a_missing_directory_is_watched_when_the_directory_is_made() {
    let path = "/etc/missing/below/x";
    let node = node_with(path, "observe");
    let mut daemon = node.begin(None).await;
    let registry = &daemon.agent.verifications.verifier.registry;
    for above in ["/", "/etc", "/etc/missing", "/etc/missing/below", path] {
        assert!(registry.find(Path::new(above)).is_some(), "no watch of {above}");
    }
    assert!(!is_drifted(&node, path));
    fs::create_dir_all(place(&node, "/etc/missing/below")).unwrap();
    fs::write(place(&node, path), "").unwrap();
    node.changed(&mut daemon, &Thing::file(path), Some(mallory())).await;
    assert!(is_drifted(&node, path));
    node.end(daemon).await;
}

#[tokio::test]
async fn a_revert_moves_the_object_to_the_quarantine_and_the_record_says_who_made_it() {
    let node = node("revert");
    let mut daemon = node.begin(None).await;
    fs::write(place(&node, PATH), "content").unwrap();
    node.changed(&mut daemon, &absent(), Some(mallory())).await;
    assert!(!place(&node, PATH).exists() && !is_drifted(&node, PATH));
    let [item] = &items(&node)[..] else { panic!("{:?}", items(&node)) };
    assert_eq!((&*item.path, &*item.rule, item.actors[0].pid), (PATH, PATH, 8));
    assert!(item.policy.ends_with("a.json"), "{}", item.policy);
    node.end(daemon).await;
    let [reverted] = &recorded(&node, RecordKind::Reverted, PATH)[..] else { panic!("not one move") };
    assert_eq!(reverted.detail["quarantined"], json!([{ "path": PATH, "item": item.id }]));
    assert_eq!(reverted.detail["made_by"][0]["pid"], 8);
    assert!(!reverted.detail.contains_key("error"), "{:?}", reverted.detail);
}

#[tokio::test]
async fn a_revert_never_moves_a_directory_it_degrades_the_node_and_says_which_key_is_about_directories() {
    let path = "/etc/sudoers.d";
    let node = node_with(path, "revert");
    fs::create_dir(place(&node, path)).unwrap();
    fs::write(place(&node, "/etc/sudoers.d/alice"), "").unwrap();
    let mut daemon = node.begin(None).await;
    fs::write(place(&node, "/etc/sudoers.d/bob"), "").unwrap();
    node.changed(&mut daemon, &Thing::file(path), Some(mallory())).await;
    for name in ["alice", "bob"] {
        assert!(place(&node, path).join(name).exists(), "{name} was moved");
    }
    assert_eq!(items(&node), []);
    assert!(is_drifted(&node, path) && node.status().degraded);
    node.end(daemon).await;
    let reverted = recorded(&node, RecordKind::Reverted, path);
    let errors: Vec<&str> = reverted.iter().filter_map(|record| record.detail["error"].as_str()).collect();
    assert!(!errors.is_empty() && errors.iter().all(|error| error.contains("closed: true")), "{errors:?}");
}

#[tokio::test]
async fn nothing_is_moved_by_a_daemon_that_observes_or_without_the_lists_of_packages() {
    for observes in [true, false] {
        let node = node("revert");
        node.observes.set(observes);
        if !observes {
            // The format of RHEL 8.
            fs::create_dir_all(node.path("root/var/lib/rpm")).unwrap();
            fs::write(node.path("root/var/lib/rpm/Packages"), "").unwrap();
        }
        let mut daemon = node.begin(None).await;
        fs::write(place(&node, PATH), "").unwrap();
        node.changed(&mut daemon, &absent(), Some(mallory())).await;
        assert!(place(&node, PATH).exists() && is_drifted(&node, PATH) && node.status().degraded);
        node.end(daemon).await;
        assert_eq!(recorded(&node, RecordKind::Reverted, PATH).is_empty(), observes);
    }
}

#[tokio::test]
async fn a_path_that_a_config_declares_is_as_the_config_says_and_not_absent() {
    let node = node_with(FILE, "revert");
    let mut daemon = node.begin(None).await;
    assert!(!is_drifted(&node, FILE));
    node.write("other");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    assert!(is_drifted(&node, FILE), "the declared content is compared");
    assert_eq!((node.content().as_str(), items(&node).len()), ("other", 0), "the rule is not about it");
    node.end(daemon).await;
}

#[tokio::test]
async fn a_declared_file_to_which_a_link_leads_is_not_moved_although_a_rule_names_it_otherwise() {
    // The config declares a file in `/etc`.
    let link = FILE.replace("/etc/", "/alias/");
    let node = node_with(&link, "revert");
    std::os::unix::fs::symlink("etc", place(&node, "/alias")).unwrap();
    let mut daemon = node.begin(None).await;
    node.changed(&mut daemon, &file(), Some(alice())).await;
    assert!(!is_drifted(&node, &link) && items(&node).is_empty());
    assert!(place(&node, FILE).exists());
    node.end(daemon).await;
}

#[tokio::test]
async fn an_object_to_which_a_link_leads_stays_and_the_record_says_how_to_name_it() {
    let link = FILE.replace("/etc/", "/alias/");
    let node = node_with(&link, "revert");
    let mut daemon = node.begin(None).await;
    // After the start: the place of the path is another one now.
    std::os::unix::fs::symlink("etc", place(&node, "/alias")).unwrap();
    node.changed(&mut daemon, &Thing::file(&link), Some(mallory())).await;
    assert!(place(&node, FILE).exists() && items(&node).is_empty());
    assert!(is_drifted(&node, &link) && node.status().degraded);
    node.end(daemon).await;
    let reverted = recorded(&node, RecordKind::Reverted, &link);
    let errors: Vec<&str> = reverted.iter().filter_map(|record| record.detail["error"].as_str()).collect();
    assert!(!errors.is_empty() && errors.iter().all(|error| error.contains(FILE)), "{errors:?}");
}

#[tokio::test]
async fn what_a_baseline_has_may_be_there_without_a_rule_about_the_image() {
    let node = node("revert");
    fs::write(place(&node, PATH), "accepted").unwrap();
    let observer = Observer::new(&node.path("root")).unwrap();
    let baseline = take_baseline(&observer, &[PATH.into()], &mut |_| {}).unwrap();
    let text = serde_json::to_vec(&baseline).unwrap();
    index_baseline("baseline.json".as_ref(), &text, &Images::of(&node.path("state"))).unwrap();
    let daemon = node.begin(None).await;
    assert!(!is_drifted(&node, PATH) && place(&node, PATH).exists());
    node.end(daemon).await;
}

#[tokio::test]
async fn an_object_that_the_image_may_have_is_unknown_without_an_index_and_drift_once_a_process_changed_it() {
    let node = node("observe");
    fs::create_dir_all(node.path("root/run")).unwrap();
    fs::write(node.path("root/run/ostree-booted"), "").unwrap();
    fs::write(place(&node, PATH), "").unwrap();
    let mut daemon = node.begin(None).await;
    let status = node.status();
    let gaps: Vec<_> = status.gaps.iter().map(|gap| gap.reason.as_str()).collect();
    assert_eq!((is_drifted(&node, PATH), gaps), (false, vec!["image-not-indexed"]));
    fs::write(place(&node, PATH), "x").unwrap();
    node.changed(&mut daemon, &absent(), Some(mallory())).await;
    assert!(is_drifted(&node, PATH));
    node.end(daemon).await;
}

#[tokio::test]
async fn what_the_deployment_ships_in_its_copy_of_etc_may_be_there_without_an_index() {
    let node = node("observe");
    let shipped = format!("root/usr{PATH}");
    for path in ["root/run/ostree-booted", &shipped, &format!("root{PATH}")] {
        let path = node.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let daemon = node.begin(None).await;
    let all = &daemon.agent.verdicts.desired.expectations;
    assert!(all.iter().all(|one| one.expected != Expected::Absent));
    node.end(daemon).await;
}

#[tokio::test]
async fn what_an_index_has_at_the_path_is_expected_and_another_executed_file_there_is_still_unknown() {
    let node = with_baseline(true);
    let rules = ["shipped", "late"]
        .map(|name| json!({ "path": format!("/usr/bin/{name}"), "absent": true, "action": "observe" }));
    let policy = json!({
        "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": { "name": "absent" },
        "spec": { "rules": rules },
    });
    fs::write(node.path("policy/b.json"), policy.to_string()).unwrap();
    let mut daemon = node.begin(None).await;
    let at = |daemon: &Daemon, path: &str| -> Vec<Expected> {
        let all = daemon.agent.verdicts.desired.expectations.iter();
        all.filter(|one| *one.thing.path() == *Path::new(path)).map(|one| one.expected.clone()).collect()
    };
    assert!(matches!(at(&daemon, "/usr/bin/shipped")[..], [Expected::File(_)]));
    assert_eq!(at(&daemon, "/usr/bin/late"), [Expected::Absent]);
    assert!(is_drifted(&node, "/usr/bin/late") && !is_drifted(&node, "/usr/bin/shipped"));
    super::unknown_executions::executed(&node, &mut daemon, "/usr/bin", "late");
    node.end(daemon).await;
    let executed = recorded(&node, RecordKind::Exec, "/usr/bin/late");
    assert_eq!(executed.len(), 1);
    assert_eq!(executed[0].detail["reason"], "unknown-executable");
}
