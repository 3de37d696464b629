//! A daemon that writes no managed path, and has another process write back.

use super::super::ordered_reverts::{OrderedRevert, RevertResult};
use super::super::write_back::{Quarantined, WriteBackError, WrittenBack};
use super::*;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

/// What the tests see of a process that writes back.
#[derive(Debug, Default)]
struct Process {
    /// The orders so far.
    orders: Vec<Vec<OrderedRevert>>,
    is_under_way: bool,
    /// Whether the newest order is to use the last usable configs.
    last_usable: bool,
    recovered: usize,
    over: Option<Vec<RevertResult>>,
}

#[derive(Debug, Clone, Default)]
struct PlayedReverts(Rc<RefCell<Process>>);

impl RevertOrders for PlayedReverts {
    fn recover(&mut self) {
        self.0.borrow_mut().recovered += 1;
    }

    fn is_under_way(&self) -> bool {
        self.0.borrow().is_under_way
    }

    fn begin(&mut self, things: Vec<OrderedRevert>, last_usable: bool) {
        let mut process = self.0.borrow_mut();
        assert!(!process.is_under_way, "two orders at once");
        process.is_under_way = true;
        process.orders.push(things);
        process.last_usable = last_usable;
    }

    fn poll_over(&mut self, _: &mut Context<'_>) -> Poll<Vec<RevertResult>> {
        self.0.borrow_mut().over.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl PlayedReverts {
    /// The things of the newest order.
    fn newest(&self) -> Vec<OrderedRevert> {
        self.0.borrow().orders.last().cloned().unwrap_or_default()
    }

    fn orders(&self) -> usize {
        self.0.borrow().orders.len()
    }

    /// The order is over, with this result for each thing.
    async fn end(
        &self,
        node: &Node,
        daemon: &mut Daemon,
        result: impl Fn() -> Result<WrittenBack, WriteBackError>,
    ) {
        let results =
            self.newest().into_iter().map(|ordered| RevertResult { ordered, result: result() }).collect();
        self.0.borrow_mut().is_under_way = false;
        daemon.agent.record_reverts(results);
        node.settle(daemon).await;
    }
}

/// A node in the mode `manage`, with this rule for the file.
fn node(action: &str) -> (Node, PlayedReverts) {
    let node = Node::new(&json!({ "path": FILE, "action": action }));
    node.observes.set(true);
    let reverts = PlayedReverts::default();
    *node.reverts.borrow_mut() = Some(Box::new(reverts.clone()));
    (node, reverts)
}

fn refused() -> Result<WrittenBack, WriteBackError> {
    Err(WriteBackError::new(io::Error::other("systemd does not start it")))
}

fn of_file(node: &Node) -> Vec<Record> {
    let records = node.recorded(RecordKind::Reverted).into_iter();
    records.filter(|record| record.path.as_deref() == Some(FILE)).collect()
}

#[tokio::test]
async fn a_drifted_thing_is_ordered_with_its_actors_and_its_result_is_recorded() {
    let (node, reverts) = node("revert");
    let mut daemon = node.begin(None).await;
    node.write("forbidden\n");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    assert_eq!(node.content(), "forbidden\n", "the daemon wrote it itself");
    let [ordered] = &reverts.newest()[..] else { panic!("{:?}", reverts.newest()) };
    assert_eq!((&ordered.thing, &ordered.actors[..]), (&file(), &[mallory()][..]));
    assert!(!serde_json::to_string(ordered).unwrap().contains("forbidden"), "a request has contents");
    assert!(of_file(&node).is_empty(), "there is no result yet");

    node.write(DECLARED);
    let done = || Ok(WrittenBack { actions: vec!["content written".to_owned()], ..WrittenBack::default() });
    reverts.end(&node, &mut daemon, done).await;
    node.end(daemon).await;
    let [record] = &of_file(&node)[..] else { panic!("{:?}", of_file(&node)) };
    assert_eq!(record.detail["actions"], json!(["content written"]));
    assert_eq!(record.operation.as_deref(), Some("revert"));
    assert!(record.before.is_some() && !record.detail.contains_key("error"), "{record:?}");
    assert_eq!(reverts.orders(), 1, "the thing is as declared");
}

#[tokio::test]
async fn an_order_names_the_last_usable_configs_while_the_daemon_uses_them() {
    for last_usable in [false, true] {
        let (node, reverts) = node("revert");
        let mut daemon = node.begin(None).await;
        let inputs = &mut daemon.agent.options.inputs;
        inputs.replaced = last_usable.then(|| (inputs.source.clone(), inputs.policies.clone()));
        node.write("forbidden\n");
        node.changed(&mut daemon, &file(), Some(mallory())).await;
        assert_eq!((reverts.orders(), reverts.0.borrow().last_usable), (1, last_usable));
    }
}

#[tokio::test]
async fn what_the_process_moved_to_the_quarantine_is_in_the_record_with_who_made_it() {
    let (node, reverts) = node("revert");
    let mut daemon = node.begin(None).await;
    node.write("forbidden\n");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    node.write(DECLARED);
    let moved = || {
        let quarantined = vec![Quarantined { path: "/etc/x".to_owned(), item: "1".to_owned() }];
        Ok(WrittenBack { quarantined, left: refused().err(), ..WrittenBack::default() })
    };
    reverts.end(&node, &mut daemon, moved).await;
    node.end(daemon).await;
    let detail = &of_file(&node)[0].detail;
    assert_eq!(detail["quarantined"], json!([{ "path": "/etc/x", "item": "1" }]));
    assert_eq!(
        (&detail["made_by"][0]["pid"], &detail["error"]),
        (&json!(8), &json!("systemd does not start it"))
    );
}

#[tokio::test]
async fn a_failed_order_is_recorded_and_tried_again_after_a_pause() {
    let (node, reverts) = node("revert");
    let mut daemon = node.begin(None).await;
    node.write("forbidden\n");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    reverts.end(&node, &mut daemon, refused).await;
    for _ in 0..4 {
        node.settle(&mut daemon).await;
    }
    assert_eq!(reverts.orders(), 2, "it was not tried again");
    node.end(daemon).await;
    let records = of_file(&node);
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].detail["error"], "systemd does not start it");
}

#[tokio::test]
async fn while_an_order_is_under_way_a_due_thing_waits_and_keeps_no_loop_busy() {
    let (node, reverts) = node("revert");
    let mut daemon = node.begin(None).await;
    node.write("forbidden\n");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    node.write("worse\n");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    assert_eq!(reverts.orders(), 1);
    assert_eq!(daemon.agent.next_revert(), None);
    reverts.end(&node, &mut daemon, refused).await;
    for _ in 0..4 {
        node.settle(&mut daemon).await;
    }
    assert_eq!(reverts.orders(), 2);
    node.end(daemon).await;
}

#[tokio::test]
async fn nothing_is_ordered_under_another_rule_and_the_result_of_a_released_thing_is_recorded() {
    let (node, reverts) = node("degrade");
    let mut daemon = node.begin(None).await;
    node.write("forbidden\n");
    node.changed(&mut daemon, &file(), Some(mallory())).await;
    assert_eq!(reverts.orders(), 0);
    // A config released the thing while an earlier order was under way.
    let ordered = OrderedRevert { thing: Thing::file("/etc/released"), found: None, actors: Vec::new() };
    daemon.agent.record_reverts(vec![RevertResult { ordered, result: refused() }]);
    node.end(daemon).await;
    let records = node.recorded(RecordKind::Reverted);
    assert_eq!((records.len(), records[0].path.as_deref()), (1, Some("/etc/released")));
}
