//! An apply beside the daemon, as the daemon tells of it.

use super::*;
use crate::apply::Store;
use sensor_model::node_state::{NodeState, Standing, Wait};
use std::io;
use std::sync::Mutex;

/// What was logged.
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
    for wait in Wait::ALL {
        let standing = Standing {
            state: NodeState::Working,
            waiting_for: format!("the {} of this test", wait.name()),
            wait: Some(wait),
            apply: Some(1),
            ..Standing::default()
        };
        fs::write(store.path().join("state.json"), json!(standing).to_string()).unwrap();
        daemon.agent.follow_applies(&mut daemon.changes).unwrap();
        daemon.agent.write();
        let status: serde_json::Value =
            serde_json::from_slice(&fs::read(node.path("run/status.json")).unwrap()).unwrap();
        assert_eq!(status["node"]["wait"], wait.name());
        assert_eq!(status["node"]["waiting_for"], standing.waiting_for);
        let page = node.telemetry.page().unwrap();
        for other in Wait::ALL {
            let line =
                format!("holdfast_node_waiting{{wait=\"{}\"}} {}", other.name(), u8::from(other == wait));
            assert!(page.contains(&line), "{wait:?}: {line}");
        }
        let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(logged.contains(&standing.waiting_for), "{wait:?}: {logged}");
    }
    node.end(daemon).await;
}
