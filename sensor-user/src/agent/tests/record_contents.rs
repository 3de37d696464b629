//! The state before and after in records.

use super::*;
use sha2::{Digest as _, Sha256};

/// The record of the drift after a change of the file's content, and the log's text.
async fn drift(rule: &serde_json::Value, content: &str) -> (Node, Record, String) {
    let node = Node::new(rule);
    let mut daemon = node.begin(None).await;
    node.write(content);
    node.changed(&mut daemon, &file(), Some(alice())).await;
    node.end(daemon).await;
    let recorded = node.recorded(RecordKind::Drift);
    let record = recorded.into_iter().find(|record| record.path.as_deref() == Some(FILE)).unwrap();
    let text = fs::read_to_string(node.path("log/forensic.jsonl")).unwrap();
    (node, record, text)
}

fn digest(content: &str) -> serde_json::Value {
    hex::encode(Sha256::digest(content)).into()
}

#[tokio::test]
async fn a_record_has_digests_and_metadata_before_and_after() {
    let rule = json!({ "path": FILE, "action": "observe" });
    let node = Node::new(&rule);
    let mut daemon = node.begin(None).await;
    for content in ["first\n", "second\n", DECLARED] {
        node.write(content);
        node.changed(&mut daemon, &file(), Some(alice())).await;
    }
    fs::remove_file(node.file()).unwrap();
    node.changed(&mut daemon, &file(), Some(alice())).await;
    node.end(daemon).await;
    let filter = Filter { path: Some(PathBuf::from(FILE)), ..Filter::default() };
    let recorded = forensic::tail(&node.path("log"), 100, &filter).unwrap();
    let sides: Vec<[serde_json::Value; 2]> = recorded
        .into_iter()
        .map(|entry| {
            let record = entry.record;
            [record.before, record.after].map(|side| side.unwrap_or_default()["sha256"].clone())
        })
        .collect();
    let [declared, first, second] = [DECLARED, "first\n", "second\n"].map(digest);
    let nothing = serde_json::Value::Null;
    assert_eq!(
        sides,
        [
            [declared.clone(), first.clone()],
            [first, second.clone()],
            [second, declared.clone()],
            [declared, nothing],
        ]
    );
    let last = node.recorded(RecordKind::Drift).pop().unwrap();
    assert_eq!(last.after, Some(json!({ "seen": "missing" })));
    assert_eq!(last.before.unwrap()["mode"], 0o644);
}

#[tokio::test]
async fn before_the_first_verification_the_state_before_is_unknown() {
    let node = Node::new(&json!({ "path": FILE, "action": "observe" }));
    node.write("found\n");
    let daemon = node.begin(None).await;
    node.end(daemon).await;
    let recorded = node.recorded(RecordKind::Drift);
    let record = recorded.into_iter().find(|record| record.path.as_deref() == Some(FILE)).unwrap();
    assert_eq!(record.before, None);
    assert_eq!(record.after.unwrap()["sha256"], digest("found\n"));
}

#[tokio::test]
async fn a_record_has_a_diff_if_the_policy_says_that_the_content_is_no_secret() {
    let rule = json!({ "path": FILE, "action": "revert", "secret": false });
    let (node, record, _) = Box::pin(drift(&rule, "one\n2\nthree\n")).await;
    let wanted = "--- declared\n+++ found\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n";
    assert_eq!(record.diff.as_deref(), Some(wanted));
    assert_eq!(node.content(), DECLARED, "and then it was written back");
}

#[tokio::test]
async fn the_log_has_only_digests_of_a_secret() {
    for rule in [
        json!({ "path": FILE, "action": "observe" }),
        json!({ "path": FILE, "action": "observe", "secret": true }),
        json!({ "path": "/elsewhere", "action": "observe", "secret": false }),
    ] {
        let (_, record, log) = Box::pin(drift(&rule, "hunter2\n")).await;
        assert_eq!((record.diff, record.detail.get("no_diff")), (None, None));
        assert!(!log.contains("hunter2") && !log.contains("three"), "{log}");
    }
}

#[tokio::test]
async fn a_record_without_an_allowed_diff_has_the_reason() {
    let rule = json!({ "path": FILE, "action": "observe", "secret": false });
    let large = "x".repeat(100_000);
    for (content, why) in [("\0", "not text"), (large.as_str(), "too large")] {
        let (_, record, log) = Box::pin(drift(&rule, content)).await;
        assert_eq!((record.diff, record.detail["no_diff"].as_str()), (None, Some(why)));
        assert!(log.len() < 20_000);
    }
}
