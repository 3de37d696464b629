//! Denials, which any user may cause without end.

use super::*;
use crate::agent::registry::Concerned;
use crate::event::CheckedRecord;
use sensor_common::record::ChangeRecord;
use zerocopy::FromZeros as _;

/// A deny rule refuses a user's change of the node's file.
fn deny(daemon: &mut Daemon, uid: u32, login_uid: u32) {
    let agent = &mut daemon.agent;
    let mut record = ChangeRecord::new_zeroed();
    (record.time_ns, record.uid, record.login_uid) = (agent.verdicts.clock.boot_ns(), uid, login_uid);
    record.detail = Operation::OpenWrite as u64;
    let change = CheckedRecord { record, operation: Operation::Denied };
    let expectations = &agent.verdicts.desired.expectations;
    let thing = expectations.iter().position(|expectation| expectation.thing == file()).unwrap();
    let concerned =
        Concerned { in_evidence: vec![ThingId(u32::try_from(thing).unwrap())], ..Concerned::default() };
    let actor = agent.intake.actor(&change);
    let verifier = &agent.verifications.verifier;
    agent.denials.record_denial(&[], &concerned, (&change, &actor), verifier, &mut agent.verdicts);
}

fn is_counted(record: &Record) -> bool {
    record.detail.contains_key("count")
}

#[tokio::test]
async fn a_users_denials_fill_one_budget_of_the_log_and_all_are_counted() {
    const LOGINS: u32 = 1500;
    const EACH: u32 = 6;
    let node = Node::new(&json!({ "path": FILE, "action": "observe" }));
    fs::write(node.path("root/etc/passwd"), "root:x:0:0::/:/bin/sh\nalice:x:1000:1000::/:/bin/sh\n").unwrap();
    let mut daemon = node.begin(None).await;
    daemon.agent.end_turn();
    let log = node.path("log/forensic.jsonl");
    // A process that never logged in can set any login.
    for login in 0..LOGINS {
        for _ in 0..EACH {
            deny(&mut daemon, 1000, login);
        }
    }
    deny(&mut daemon, 0, u32::MAX);
    daemon.agent.record_counts(u64::MAX);
    node.end(daemon).await;
    let filter = Filter { kinds: vec![RecordKind::Denied], ..Filter::default() };
    let recorded: Vec<Record> = forensic::tail(&node.path("log"), usize::MAX, &filter)
        .unwrap()
        .into_iter()
        .map(|entry| entry.record)
        .collect();
    let all = |record: &Record| record.detail.get("count").map_or(1, |count| count.as_u64().unwrap());
    assert_eq!(recorded.iter().map(all).sum::<u64>(), u64::from(LOGINS * EACH + 1));
    let length = fs::metadata(log).unwrap().len();
    assert!(length > 128 << 10 && length < 384 << 10, "{length}");
    let of_root = |record: &&Record| record.actor.as_ref().is_some_and(|actor| actor.uid == 0);
    let roots: Vec<&Record> = recorded.iter().filter(of_root).collect();
    assert!(roots.len() == 1 && !is_counted(roots[0]), "{roots:?}");
    let too_many: Vec<&Record> =
        recorded.iter().filter(|record| record.detail.get("reason") == Some(&"too-many".into())).collect();
    assert_eq!((too_many.len(), &too_many[0].detail["uid"]), (1, &1000.into()));
    let folded =
        u64::from(LOGINS * EACH + 1) - recorded.iter().filter(|record| !is_counted(record)).count() as u64;
    let line = format!("holdfast_forensic_folded_total{{kind=\"denied\"}} {folded}");
    assert!(node.metrics.page().unwrap().lines().any(|found| found == line), "{line}");
}

#[tokio::test]
async fn the_first_denials_have_a_record_each_and_one_record_counts_the_others_of_a_minute() {
    let node = Node::new(&json!({ "path": FILE, "action": "observe" }));
    let mut daemon = node.begin(None).await;
    for _ in 0..100 {
        deny(&mut daemon, 1000, 1000);
    }
    daemon.agent.heartbeat();
    assert_eq!(
        daemon.agent.verdicts.records.iter().filter(|record| record.kind == RecordKind::Denied).count(),
        4
    );
    node.clock.0.fetch_add(61_000_000_000, Ordering::Relaxed);
    daemon.agent.heartbeat();
    let counted: Vec<&Record> =
        daemon.agent.verdicts.records.iter().filter(|record| is_counted(record)).collect();
    assert_eq!(counted.len(), 1);
    let record = counted[0];
    assert_eq!((&record.detail["count"], record.path.as_deref()), (&96.into(), Some(FILE)));
    assert_eq!(record.operation.as_deref(), Some("open-write"));
    assert_eq!(record.actor.as_ref().map(|actor| actor.uid), Some(1000));
}
