//! Executions and loads of files that nothing expects.

use super::*;
use crate::event::CheckedRecord;
use crate::image::{Images, index_baseline, index_packages, take_baseline};
use md5::{Digest as _, Md5};
use sensor_common::op::RECORD_IN_DIRECTORY;
use sensor_common::record::ChangeRecord;
use zerocopy::FromZeros as _;

/// A process executes a file in a directory, and the file has no entry in the kernel's map.
pub(super) fn executed(node: &Node, daemon: &mut Daemon, directory: &str, name: &str) {
    ran(node, daemon, Operation::Exec, directory, name);
}

/// The same for a load.
fn loaded(node: &Node, daemon: &mut Daemon, directory: &str, name: &str) {
    ran(node, daemon, Operation::Load, directory, name);
}

fn ran(node: &Node, daemon: &mut Daemon, operation: Operation, directory: &str, name: &str) {
    let mut record = ChangeRecord::new_zeroed();
    record.time_ns = node.clock.boot_ns();
    record.operation = operation as u16;
    record.flags = RECORD_IN_DIRECTORY;
    record.name[..name.len()].copy_from_slice(name.as_bytes());
    record.name_length = u16::try_from(name.len()).unwrap();
    record.tgid = u32::MAX;
    let change = CheckedRecord { record, operation };
    let watch = daemon.agent.verifications.verifier.registry.find(directory.as_ref()).unwrap();
    daemon.agent.executed_without_entry(&[watch], &change);
}

/// The path of each record of an execution, with its reason.
fn recorded(node: &Node) -> Vec<(String, String)> {
    let records = node.recorded(RecordKind::Exec).into_iter();
    records
        .map(|record| {
            assert_eq!((record.thing, record.verdict, record.source.as_deref()), (None, None, None));
            (record.path.unwrap(), record.detail["reason"].as_str().unwrap().to_owned())
        })
        .collect()
}

fn unknown(path: &str) -> (String, String) {
    (path.to_owned(), "unknown-executable".to_owned())
}

/// A host with a rule about what its baseline has in `/usr/bin`, with and without the index of the baseline.
pub(super) fn with_baseline(is_indexed: bool) -> Node {
    let node = Node::new(&json!({ "path": "/usr/bin/", "image": true, "action": "observe" }));
    for directory in ["root/usr/bin/below", "root/usr/bin/empty"] {
        fs::create_dir_all(node.path(directory)).unwrap();
    }
    for name in ["shipped", "below/shipped"] {
        fs::write(node.path("root/usr/bin").join(name), "program").unwrap();
    }
    if is_indexed {
        let observer = Observer::new(&node.path("root")).unwrap();
        let baseline = take_baseline(&observer, &[PathBuf::from("/usr/bin")], &mut |_| {}).unwrap();
        let text = serde_json::to_vec(&baseline).unwrap();
        index_baseline("baseline.json".as_ref(), &text, &Images::of(&node.path("state"))).unwrap();
    }
    for name in ["late", "below/late", "empty/late"] {
        fs::write(node.path("root/usr/bin").join(name), "program").unwrap();
    }
    node
}

#[tokio::test]
async fn a_file_that_no_index_has_is_recorded_and_one_of_the_image_is_not() {
    let node = with_baseline(true);
    let mut daemon = node.begin(None).await;
    for (directory, name) in [
        ("/usr/bin", "late"),
        ("/usr/bin", "shipped"),
        ("/usr/bin/below", "late"),
        ("/usr/bin/below", "shipped"),
        ("/usr/bin/empty", "late"),
    ] {
        executed(&node, &mut daemon, directory, name);
    }
    // The kernel programs report nothing in a directory in which only some names are known.
    executed(&node, &mut daemon, "/etc", "late");
    let page = node.metrics.page().unwrap();
    assert!(page.contains("holdfast_unknown_executions_total 3\n"), "{page}");
    let expected = ["/usr/bin/late", "/usr/bin/below/late", "/usr/bin/empty/late"].map(unknown);
    node.end(daemon).await;
    assert_eq!(recorded(&node), expected);
}

#[tokio::test]
async fn on_a_host_of_dpkg_a_file_of_no_package_is_recorded_and_one_of_a_package_is_not() {
    let node = Node::new(&json!({ "path": "/usr/bin/", "image": true, "action": "observe" }));
    for (path, content) in [
        (
            "var/lib/dpkg/status",
            "Package: a\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n".to_owned(),
        ),
        ("var/lib/dpkg/info/a.list", "/usr/bin/shipped\n/usr/bin/edited\n".to_owned()),
        ("var/lib/dpkg/info/a.md5sums", {
            let sum = hex::encode(Md5::digest("program"));
            format!("{sum}  usr/bin/shipped\n{sum}  usr/bin/edited\n")
        }),
        ("usr/bin/shipped", "program".to_owned()),
        ("usr/bin/edited", "another program".to_owned()),
        ("usr/bin/late", "program".to_owned()),
    ] {
        let path = node.path("root").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let observer = Observer::new(&node.path("root")).unwrap();
    index_packages(&observer, &Images::of(&node.path("state")), &mut |_, _| {}).unwrap();
    let mut daemon = node.begin(None).await;
    for name in ["late", "shipped", "edited"] {
        executed(&node, &mut daemon, "/usr/bin", name);
    }
    node.end(daemon).await;
    // The index has the name of the edited file, although nothing watches it.
    assert_eq!(recorded(&node), [unknown("/usr/bin/late")]);
}

#[tokio::test]
async fn a_load_of_a_file_that_no_index_has_is_recorded_and_counted_apart_from_executions() {
    let node = with_baseline(true);
    let mut daemon = node.begin(None).await;
    executed(&node, &mut daemon, "/usr/bin", "late");
    for (directory, name) in
        [("/usr/bin", "late"), ("/usr/bin", "shipped"), ("/usr/bin/below", "late"), ("/etc", "late")]
    {
        loaded(&node, &mut daemon, directory, name);
    }
    let page = node.metrics.page().unwrap();
    assert!(page.contains("holdfast_unknown_executions_total 1\n"), "{page}");
    assert!(page.contains("holdfast_unknown_loads_total 2\n"), "{page}");
    node.end(daemon).await;
    let operations: Vec<_> = node.recorded(RecordKind::Exec).into_iter().map(|it| it.operation).collect();
    assert_eq!(operations, ["exec", "load", "load"].map(|it| Some(it.to_owned())));
    assert_eq!(recorded(&node), ["/usr/bin/late", "/usr/bin/late", "/usr/bin/below/late"].map(unknown));
}

#[tokio::test]
async fn a_load_of_a_declared_file_that_is_not_enrolled_yet_has_no_record() {
    let node = with_baseline(true);
    let mut daemon = node.begin(None).await;
    let (directory, name) = FILE.rsplit_once('/').unwrap();
    daemon.agent.verifications.verifier.registry.report_executions_in(directory.as_ref());
    loaded(&node, &mut daemon, directory, name);
    executed(&node, &mut daemon, directory, name);
    node.end(daemon).await;
    let records = node.recorded(RecordKind::Exec);
    let of_file: Vec<_> = records.iter().map(|it| (it.path.as_deref(), it.operation.as_deref())).collect();
    assert_eq!(of_file, [(Some(FILE), Some("exec"))], "only loads of files of the image have records");
}

#[tokio::test]
async fn a_load_that_the_policy_ignores_has_no_record() {
    let node = with_baseline(true);
    let policy = json!({
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "DriftPolicy",
        "metadata": { "name": "ignored" },
        "spec": { "rules": [{ "path": "/usr/bin/late", "image": true, "action": "ignore" }] },
    });
    fs::write(node.path("policy/b.json"), policy.to_string()).unwrap();
    let mut daemon = node.begin(None).await;
    loaded(&node, &mut daemon, "/usr/bin", "late");
    loaded(&node, &mut daemon, "/usr/bin/below", "late");
    node.end(daemon).await;
    assert_eq!(recorded(&node), [unknown("/usr/bin/below/late")]);
}

#[tokio::test]
async fn without_an_index_no_file_is_unknown() {
    let node = with_baseline(false);
    // A config declares a file in the directory, so the directory is watched.
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": { "files": [
            { "path": FILE, "contents": { "source": "data:,x" } },
            { "path": "/usr/bin/declared", "contents": { "source": "data:,x" } },
        ] },
    });
    fs::write(node.path("config/a.ign"), config.to_string()).unwrap();
    let mut daemon = node.begin(None).await;
    executed(&node, &mut daemon, "/usr/bin", "late");
    loaded(&node, &mut daemon, "/usr/bin", "late");
    node.end(daemon).await;
    assert_eq!(recorded(&node), []);
}

#[tokio::test]
async fn in_a_closed_directory_a_name_is_unknown_that_is_drift_there() {
    let rule =
        json!({ "path": "/etc/closed/", "closed": true, "action": "observe", "except": ["allowed-*"] });
    let node = Node::new(&rule);
    fs::create_dir(node.path("root/etc/closed")).unwrap();
    let mut daemon = node.begin(None).await;
    executed(&node, &mut daemon, "/etc/closed", "allowed-one");
    executed(&node, &mut daemon, "/etc/closed", "other");
    loaded(&node, &mut daemon, "/etc/closed", "allowed-one");
    loaded(&node, &mut daemon, "/etc/closed", "other.so");
    node.end(daemon).await;
    assert_eq!(recorded(&node), ["/etc/closed/other", "/etc/closed/other.so"].map(unknown));
}

#[tokio::test]
async fn many_executions_or_loads_of_one_file_are_counted_in_one_record() {
    let node = with_baseline(true);
    let mut daemon = node.begin(None).await;
    for _ in 0..20 {
        executed(&node, &mut daemon, "/usr/bin", "late");
        loaded(&node, &mut daemon, "/usr/bin", "late");
    }
    daemon.agent.record_counts(u64::MAX);
    node.end(daemon).await;
    let records = node.recorded(RecordKind::Exec);
    assert_eq!(records.len(), 10);
    let counting = records.iter().filter(|record| record.detail.contains_key("count"));
    let mut counted: Vec<_> = counting.map(|it| (it.operation.as_deref(), &it.detail["count"])).collect();
    // Both began at the same time, so their order is not defined.
    counted.sort_by_key(|(operation, _)| *operation);
    assert_eq!(counted, [(Some("exec"), &json!(16)), (Some("load"), &json!(16))]);
    assert!(records.iter().all(|record| record.path.as_deref() == Some("/usr/bin/late")));
}

#[tokio::test]
async fn executions_of_a_file_of_the_image_are_reported_while_it_differs() {
    let node = with_baseline(true);
    let mut daemon = node.begin(None).await;
    let program = Thing::file("/usr/bin/shipped");
    let are_reported = |daemon: &Daemon| {
        let registry = &daemon.agent.verifications.verifier.registry;
        registry.get(registry.find(&program.path()).unwrap()).unwrap().reports_executions()
    };
    assert!(!are_reported(&daemon));
    for (content, differs) in [("evil", true), ("program", false)] {
        fs::write(node.path("root/usr/bin/shipped"), content).unwrap();
        node.changed(&mut daemon, &program, Some(alice())).await;
        assert_eq!(are_reported(&daemon), differs, "{content}");
    }
    node.end(daemon).await;
}
