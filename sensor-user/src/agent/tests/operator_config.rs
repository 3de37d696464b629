//! The config that the Machine Config Operator's daemon stores on its node.

use super::*;
use crate::desired::MachineConfigs;
use sensor_model::config_digest::digest_of_object;
use sensor_model::status::ConfigOrigin;
use serde_json::Value;

/// Stores what `a.ign` declares as that daemon does: as another file of the same name, without `kind` and `apiVersion`.
fn store(node: &Node, name: &str) {
    let config: Value = serde_json::from_slice(&fs::read(node.path("config/a.ign")).unwrap()).unwrap();
    let stored = json!({ "metadata": { "name": name }, "spec": { "config": config, "osImageURL": "" } });
    let new = node.path("currentconfig.new");
    fs::write(&new, stored.to_string()).unwrap();
    fs::rename(new, node.path("currentconfig")).unwrap();
}

#[tokio::test]
async fn a_config_that_the_operators_daemon_stores_is_in_force_within_one_tick() {
    let node = Node::new(&json!({ "path": FILE, "action": "observe" }));
    let mut daemon = node.begin(None).await;
    store(&node, "rendered-worker-1");
    let source = StateSource::MachineConfigs(MachineConfigs::Operator(node.path("currentconfig")));
    daemon.agent.options.inputs.source = source;
    let stored = |daemon: &mut Daemon| {
        daemon.agent.canary_tick(&mut daemon.changes).unwrap();
        match daemon.agent.run_end.take() {
            Some(RunEnd::Reloaded(desired)) => Some(desired.sources.clone()),
            None => None,
            Some(other) => panic!("{other:?}"),
        }
    };
    assert_eq!(stored(&mut daemon), Some(vec!["rendered-worker-1".to_owned()]));
    assert_eq!(stored(&mut daemon), None, "nothing is read again without a change");
    node.declare("another\n");
    store(&node, "rendered-worker-2");
    assert_eq!(stored(&mut daemon), Some(vec!["rendered-worker-2".to_owned()]));
    // Half a file is no config: the present one stays, and the daemon says so.
    fs::write(node.path("currentconfig"), "{\"metadata\":").unwrap();
    assert_eq!(stored(&mut daemon), None);
    node.end(daemon).await;
}

#[tokio::test]
async fn the_status_has_the_digest_that_the_object_of_the_cluster_has_and_another_one_if_the_file_is_changed()
{
    let node = Node::new(&json!({ "path": FILE, "action": "observe" }));
    let digest = || {
        let bytes = fs::read(node.path("currentconfig")).unwrap();
        digest_of_object("the object", &bytes).unwrap()
    };
    store(&node, "rendered-worker-1");
    let source = StateSource::MachineConfigs(MachineConfigs::Operator(node.path("currentconfig")));
    let mut daemon = node.begin(None).await;
    let named = node.status().config.unwrap();
    assert_eq!((named.origin, named.name.as_deref()), (ConfigOrigin::Named, Some("a.ign")));
    assert_eq!(named.digest, digest(), "the same content under another name");
    daemon.agent.options.inputs.source = source.clone();
    daemon.agent.canary_tick(&mut daemon.changes).unwrap();
    let Some(RunEnd::Reloaded(desired)) = daemon.agent.run_end.take() else { panic!("the source changed") };
    let before = desired.config(&source);
    assert_eq!((before.origin, before.name.as_deref()), (ConfigOrigin::Operator, Some("rendered-worker-1")));
    daemon.agent.verdicts.desired = *desired;
    // What this declares has no expectation of its own.
    let mut stored: Value = serde_json::from_slice(&fs::read(node.path("currentconfig")).unwrap()).unwrap();
    stored["spec"]["config"]["storage"]["filesystems"] = json!([{ "device": "/dev/a", "format": "xfs" }]);
    fs::write(node.path("currentconfig"), stored.to_string()).unwrap();
    daemon.agent.canary_tick(&mut daemon.changes).unwrap();
    let Some(RunEnd::Reloaded(desired)) = daemon.agent.run_end.take() else { panic!("the file changed") };
    let after = desired.config(&source);
    assert_eq!((after.name, after.digest == before.digest), (before.name, false));
    assert_eq!(after.digest, digest());
    node.end(daemon).await;
}
