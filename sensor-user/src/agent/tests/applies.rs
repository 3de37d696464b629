//! An apply while the daemon runs, as the daemon reports it.

use super::*;
use crate::apply::Store;
use sensor_model::node_state::{NodeState, Standing, Wait};
use std::io;
use std::sync::Mutex;

/// The lines of the log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn each_wait_of_an_apply_is_in_the_status_the_metrics_and_the_log_while_it_lasts() {
    let node = Node::new(&json!({ "path": FILE, "action": "observe" }));
    let mut daemon = node.begin(None).await;
    let store = Store::open(&node.path("state")).unwrap();
    let log = Lines::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    for &wait in Wait::ALL {
        let standing = Standing {
            state: NodeState::Working,
            waiting_for: format!("the {} of this test", wait.as_str()),
            wait: Some(wait),
            apply: Some(1),
            ..Standing::default()
        };
        fs::write(store.path().join("state.json"), json!(standing).to_string()).unwrap();
        daemon.agent.follow_applies(&mut daemon.changes).unwrap();
        daemon.agent.end_turn();
        let status: serde_json::Value =
            serde_json::from_slice(&fs::read(node.path("run/status.json")).unwrap()).unwrap();
        assert_eq!(status["node"]["wait"], wait.as_str());
        assert_eq!(status["node"]["waiting_for"], standing.waiting_for);
        let page = node.metrics.page().unwrap();
        for &other in Wait::ALL {
            let line =
                format!("holdfast_node_waiting{{wait=\"{}\"}} {}", other.as_str(), u8::from(other == wait));
            assert!(page.contains(&line), "{wait:?}: {line}");
        }
        let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(logged.contains(&standing.waiting_for), "{wait:?}: {logged}");
    }
    node.end(daemon).await;
}

#[tokio::test]
async fn a_path_that_an_os_update_overwrote_is_recorded_once_with_the_update_as_operation() {
    let node = Node::new(&json!({ "path": FILE, "action": "observe" }));
    let (store, other) = (Store::open(&node.path("state")).unwrap(), "/etc/systemd/system/a.wants/a.service");
    let generation = store.path().join("generations/1");
    fs::create_dir_all(&generation).unwrap();
    let taken =
        |path: &str| json!({ "path": path, "time": "2026-01-02T03:04:05.000000000Z", "found": "file" });
    let entry = json!({
        "id": 1, "previous": null, "rollback_to": null, "began": "", "ended": "", "result": "done", "reason": "",
        "problems": [], "config": "", "paths": 0, "put_again": [taken(FILE), taken(other)],
        "plan": {
            "schema": "holdfast.plan/v1", "reconcilable": true, "reasons": [], "changes": [], "steps": [],
            "drain": false, "reboot": true,
        },
    });
    fs::write(generation.join("history.json"), entry.to_string()).unwrap();
    for _ in 0..2 {
        let daemon = node.begin(None).await;
        node.end(daemon).await;
        let recorded = node.recorded(RecordKind::Reverted);
        let paths: Vec<_> = recorded.iter().map(|record| record.path.as_deref().unwrap()).collect();
        assert_eq!(paths, [FILE, other]);
        for record in &recorded {
            assert_eq!((record.operation.as_deref(), &record.actor), (Some("os-update"), &None));
            assert_eq!(record.time, "2026-01-02T03:04:05.000000000Z");
            assert_eq!(record.detail["found"], "file");
        }
        assert!(recorded[0].source.is_some() && recorded[0].thing.is_some());
    }
}
